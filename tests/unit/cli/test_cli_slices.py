"""Calls of the command line that ask for slices: what is wrong with them is said in one line, before any compiling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from systolic.chips import CHIPS
from systolic.cli import main

SHAPE = "bf16[16,32]@data,model"


@pytest.fixture
def function(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text("def step(x):\n    return x\n")
    return f"{tmp_path / 'mine.py'}:step"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--topology", "2x4", "--mesh", "data=4,model=4", "--arg", SHAPE), "16 devices"),
        (("--topology", "2x4", "--mesh", "data=2,model=2", "--arg", SHAPE), "4 devices"),
        (("--topology", "2x4x2", "--mesh", "data=2,model=8", "--arg", SHAPE), "2 dimensions"),
        (("--topology", "wide", "--mesh", "data=2,model=4", "--arg", SHAPE), "wide"),
        (("--topology", "2x4", "--mesh", "data", "--arg", SHAPE), "NAME=SIZE"),
        (("--topology", "2x4", "--mesh", "row=2,column=4", "--arg", SHAPE), "no axis 'data'"),
        (("--topology", "2x4", "--arg", SHAPE), "--mesh"),
        (("--mesh", "data=2,model=4", "--arg", SHAPE), "--topology"),
        (("--topology", "2x4", "--explicit", "--arg", SHAPE), "--mesh"),
    ],
)
def test_bad_calls(function: str, options: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", function, "--chip", "v6e", *options]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert len(said.strip().splitlines()) == 1


def test_chips_show_their_links(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chips", "--json", "-"]) == 0
    for row in json.loads(capsys.readouterr().out)["rows"]:
        if row["name"] not in CHIPS:  # for a roofline only
            continue
        links = CHIPS[row["name"]].links
        assert links is not None
        assert row["links"]["bytes_per_s"] == links.bytes_per_s
        assert row["sources"]["links.bytes_per_s"]
    assert main(["chips", "v7x"]) == 0
    shown = capsys.readouterr().out
    assert "6 × 90" in shown
    assert "links.die_bytes_per_s" in shown
