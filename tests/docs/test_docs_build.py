"""The pages build without a warning, and hold what they are generated from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import systolic
from systolic.lessons import LESSONS
from systolic.lessons.ladder import RUNGS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from nothing: what was read before does not warn again."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "read", DOCS, folder / "html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_lesson_and_rung_has_a_page_with_its_code(built: Path) -> None:
    for folder, names in (("lessons", LESSONS), ("ladder", RUNGS)):
        for name in names:
            page = (built / "generated" / folder / f"{name}.html").read_text("utf-8")
            assert 'class="highlight-python' in page
            assert 'id="numbers"' in page
            drawn = folder == "ladder" or name == "pipelining"
            assert (f"_images/{name}.svg" in page) == drawn


def test_every_public_name_is_on_the_page_of_the_interface(built: Path) -> None:
    page = (built / "api.html").read_text("utf-8")
    missing = [name for name in systolic.__all__ if name != "__version__" and f'id="systolic.{name}"' not in page]
    assert missing == []


def test_pages_that_people_wrote_are_reached(built: Path) -> None:
    index = (built / "index.html").read_text("utf-8")
    for page in DOCS.glob("*.md"):
        if page.stem != "index":
            assert f'href="{page.stem}.html"' in index, page.stem
