"""The package as an index and pip see it: extras that messages name, and the README without files next to it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from systolic.compiler import CompilerMissing
from systolic.support import extras
from systolic.support.extras import REQUIREMENTS, DrawingMissing, install_command, missing

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_messages_name_what_the_extras_install(pyproject: dict[str, Any]) -> None:
    declared = pyproject["project"]["optional-dependencies"]
    for extra, requirements in REQUIREMENTS.items():
        assert [found.partition(";")[0] for found in declared[extra]] == list(requirements)
    # `make setup` installs these alone, and tests use all of the others.
    for extra in ("report", "cluster", "docs"):
        assert set(declared[extra]) <= set(declared["dev"])


def test_links_of_the_index_page_lead_somewhere(pyproject: dict[str, Any]) -> None:
    hook = pyproject["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    page = (ROOT / "README.md").read_text("utf-8")
    assert re.search(r"\]\((?!https?:)", page)
    for substitution in hook["substitutions"]:
        page = re.sub(substitution["pattern"], substitution["replacement"], page)
    assert re.findall(r"\]\((?!https?:)[^)]*\)|<img[^>]*>|^\[[^\]]*\]: .*", page, re.MULTILINE) == []
    assert "docs/tuning.md" in page  # the words of a link remain


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_no_command_is_named_where_there_is_no_wheel(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(extras.platform, "system", lambda: "Linux")
    monkeypatch.setattr(extras.platform, "machine", lambda: "x86_64")
    assert str(CompilerMissing()).endswith('python -m pip install "jax[tpu]>=0.10.2"')
    monkeypatch.setattr(extras.platform, "system", lambda: system)
    monkeypatch.setattr(extras.platform, "machine", lambda: machine)
    assert "pip" not in str(CompilerMissing())
    assert f"{system} on {machine}" in str(CompilerMissing())
    assert "distributed" in install_command("cluster")


def test_what_draws_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing("report") == []
    extras.check_drawing()
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name == "vl_convert" else name)
    assert missing("report") == ["vl_convert"]
    with pytest.raises(DrawingMissing, match=r"vl_convert.* python -m pip install"):
        extras.check_drawing()
