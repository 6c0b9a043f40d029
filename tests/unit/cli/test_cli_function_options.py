"""`--param` and `--over`: the value that was written, or one line of error; never a bug."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from systolic.cli import main
from systolic.cli.function import StaticChoices, StaticParameter

HOSTILE = ["{[]:1}", "{{}}", "-" * 9000, "-" * 20_000, "1" * 5000, "{" * 90 + "}" * 90]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{text[:6]}-{len(text)}")
def test_a_value_that_python_cannot_make_is_a_wrong_call(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.py"
    file.write_text("def f(x, a=1): return x\n")
    for command in (["check", "--param"], ["tune", "--over"]):
        code = main([command[0], f"{file}:f", "--arg", "f32[8,128]", command[1], f"a={text}"])
        err = capsys.readouterr().err
        assert (code, len(err.splitlines())) == (2, 1)
        assert "a=" in err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128", 128),
        ("(8, 16)", (8, 16)),
        ("None", None),
        ("minimal", "minimal"),
        ("-----", "-----"),
        ("1]#", "1]#"),
        ("'128'", "128"),
        (r"C:\data", r"C:\data"),
        ("", ""),
    ],
)
def test_one_value(text: str, value: Any) -> None:
    assert StaticParameter().convert(f"a={text}", None, None) == ("a", value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128,256", (128, 256)),
        ("(8,16),(16,8)", ((8, 16), (16, 8))),
        ("[1], [2]", ([1], [2])),
        ("1],[2", ("1]", "[2")),  # and not two lists
        ("1]#", ("1]#",)),
        ("none,full", ("none", "full")),
        ("8,", (8,)),
    ],
)
def test_several_values(text: str, values: Any) -> None:
    assert StaticChoices().convert(f"a={text}", None, None) == ("a", values)


@pytest.mark.parametrize("arguments", [["check", "--param"], ["tune", "--over"]], ids=" ".join)
def test_a_name_that_is_given_twice(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command, option = arguments
    assert main([command, "a.py:f", option, "a=1", option, "a=2"]) == 2
    assert "a is given twice; give it once" in capsys.readouterr().err


def test_a_name_is_needed() -> None:
    with pytest.raises(click.BadParameter, match="write NAME=VALUE"):
        StaticParameter().convert("=1", None, None)
