"""Change the links of a Markdown page, which are right in the repository, for the place that it is served from."""

from __future__ import annotations

import os
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# Pages outside docs/ → their names in docs/generated.
PAGES = {"README.md": "readme", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}

_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def rebased(text: str, folder: Path, served_from: Path) -> str:
    """Return the text with its links to files of the repository changed, for a page that moves to another folder.

    A link to one of `PAGES` leads to the page generated from it. A link to another file stays: Sphinx serves the file
    as a download. A folder cannot be served: the text of its link remains, without the link.

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
