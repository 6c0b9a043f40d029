"""Make the pages in docs/generated/: lessons, rungs, commands, gallery, the repository's own pages.

The pages are written before Sphinx looks for sources. An unchanged page is not written, so that Sphinx does not read it
again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_pages import command_pages
from front_picture import front_picture
from gallery import REPORTS, explanation, gallery_page, report_pages
from lesson_pages import lesson_pages, pictures, rung_pages
from links import PAGES, rebased
from quoted_numbers import renewed

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
GENERATED = DOCS / "generated"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    # Before Sphinx looks for the folder of `html_extra_path`.
    app.connect("config-inited", lambda app, config: write_pages())
    app.connect("source-read", _served)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages() -> None:
    """Write docs/generated, and remove pages that no longer exist."""
    pages = {**lesson_pages(), **rung_pages(), **command_pages(), "gallery": gallery_page()}
    for name, page in PAGES.items():
        source = DOCS.parent / name
        pages[page] = rebased(renewed(source, source.read_text("utf-8")), source.parent, GENERATED)
    files = {f"{name}.md": text for name, text in pages.items()}
    files |= {f"pictures/{name}.svg": text for name, text in pictures().items()}
    files["pictures/front.svg"] = front_picture(explanation(REPORTS[0].name))
    files |= {f"site/reports/{name}": text for name, text in report_pages().items()}
    for name, text in files.items():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    current = {GENERATED / name for name in files}
    for path in [*GENERATED.rglob("*.md"), *GENERATED.rglob("*.svg"), *GENERATED.rglob("*.html")]:
        if path not in current:
            path.unlink()


def _served(app: Sphinx, docname: str, source: list[str]) -> None:
    """Renew the numbers that written pages quote, and change their links, which are right in the repository."""
    if not docname.startswith("generated/"):
        page = DOCS / f"{docname}.md"
        source[0] = rebased(renewed(page, source[0]), page.parent, page.parent)
