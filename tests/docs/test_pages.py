"""The pages as they are written: their length, and what kept results say."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_kept_results_name_no_folder_of_whoever_made_them() -> None:
    for file in (DOCS / "gallery").iterdir():
        text = gzip.decompress(file.read_bytes()).decode()
        assert re.findall(r'(?<![\w.])/[^"\s]*\.py', text) == [], file.name


def test_a_page_has_at_most_1500_words() -> None:
    pages = [page for page in DOCS.rglob("*.md") if "generated" not in page.parts]
    assert len(pages) > 40
    assert [page.name for page in pages if len(page.read_text("utf-8").split()) > 1500] == []
