"""Commands on a page: told from what they print, highlighted as a shell's, and alone in having a button that copies.

Pages show both as indented blocks; a command begins with the name of a program, and an empty line ends it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_PROGRAM = re.compile(r"(?:dask|git|make|pip|pytest|python3?|sed|systolic)\s")


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("doctree-read", lambda app, tree: mark_commands(tree))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mark_commands(tree: nodes.document) -> None:
    """Gives blocks of commands the class `command`, and what one printed below an empty line a block of its own."""
    for block in list(tree.findall(nodes.literal_block)):
        # A fence that names a language says what it holds.
        if block.get("language", "none") != "none" or not _PROGRAM.match(block.astext()):
            continue
        paragraphs = re.split(r"\n{2,}", block.astext())
        made = []
        for number, text in enumerate(paragraphs):
            is_command = bool(_PROGRAM.match(text))
            if number and is_command == ("command" in made[-1]["classes"]):
                text = f"{made.pop().astext()}\n\n{text}"
            made.append(_block(block, text, is_command))
        block.replace_self(made)


def _block(like: nodes.literal_block, text: str, is_command: bool) -> nodes.literal_block:
    found = nodes.literal_block(text, text, language="bash" if is_command else "text")
    found.source, found.line = like.source, like.line
    if is_command:
        found["classes"].append("command")
    return found
