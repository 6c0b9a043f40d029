"""Links of a Markdown page: right where the page lies in the repository, and made right for where it is served from."""

from __future__ import annotations

import os
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# Pages outside docs/, and what they are called in docs/generated.
PAGES = {"README.md": "readme", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}

_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def rebased(text: str, folder: Path, served_from: Path) -> str:
    """The text with its links to files of the repository changed, for a page that moves to another folder.

    A link to one of `PAGES` leads to the page that is generated of it. A link to another file stays one: Sphinx serves
    the file as a download. A folder cannot be served: of its link the text remains.

    Args:
      text: Markdown.
      folder: where its links are right.
      served_from: where the page will lie.
    """

    def changed(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link["target"]))
        if not target.exists() or not target.is_relative_to(REPOSITORY):
            return link[0]
        if target.is_dir():
            return link["text"]
        page = PAGES.get(str(target.relative_to(REPOSITORY)))
        if page is not None:
            target = REPOSITORY / "docs" / "generated" / f"{page}.md"
        return f"[{link['text']}]({os.path.relpath(target, served_from)}{link['anchor'] or ''})"

    return _LINK.sub(changed, text)
