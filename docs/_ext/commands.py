"""Mark the commands on a page: a shell's colors and a button that copies, unlike the commands' output.

Pages show both as indented blocks. A command begins with the name of a program, and an empty line ends it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from pygments.lexers.shell import BashLexer
from pygments.token import Name, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pygments.token import _TokenType
    from sphinx.application import Sphinx

_PROGRAM = re.compile(r"(?:dask|git|make|pip|pytest|python3?|sed|systolic)\s")
_COLUMNS = re.compile(r"\S {3,}\S")  # words apart, as in a table
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][\w-]*)")
_FINDING = re.compile(r"^ *fix  \S", re.MULTILINE)  # of `systolic check`


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_lexer("command", CommandLexer)
    app.connect("doctree-read", lambda app, tree: mark_commands(tree))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class CommandLexer(BashLexer):
    """Mark the options of a command, in addition to what a shell's lexer marks."""

    def get_tokens_unprocessed(
        self, text: str, stack: Iterable[str] = ("root",)
    ) -> Iterator[tuple[int, _TokenType, str]]:
        for start, token, value in super().get_tokens_unprocessed(text, stack):
            # Every second part is an option.
            for number, part in enumerate(_OPTION.split(value) if token is Text else [value]):
                yield start, Name.Attribute if number % 2 else token, part
                start += len(part)


def mark_commands(tree: nodes.document) -> None:
    """Give commands the class `command`, and output in sentences, whose long lines wrap, the class `sentences`.

    Output that follows its command after an empty line becomes a block of its own.
    """
    for block in list(tree.findall(nodes.literal_block)):
        language = block.get("language", "none")
        # A fence that names a language states its content.
        if language == "none" and _PROGRAM.match(block.astext()):
            block.replace_self(_split(block))
        elif language in ("none", "text") and _is_sentences(block.astext()):
            block["classes"].append("sentences")


def _split(block: nodes.literal_block) -> list[nodes.literal_block]:
    """Return the commands of a block and their output, in turn."""
    parts: list[nodes.literal_block] = []
    for paragraph in re.split(r"\n{2,}", block.astext()):
        is_command = bool(_PROGRAM.match(paragraph))
        if parts and is_command == ("command" in parts[-1]["classes"]):
            paragraph = f"{parts.pop().astext()}\n\n{paragraph}"
        parts.append(_block(block, paragraph, is_command))
    return parts


def _block(source: nodes.literal_block, text: str, is_command: bool) -> nodes.literal_block:
    block = nodes.literal_block(text, text, language="command" if is_command else "text")
    block.source, block.line = source.source, source.line
    if is_command:
        block["classes"].append("command")
    elif _is_sentences(text):
        block["classes"].append("sentences")
    return block


def _is_sentences(text: str) -> bool:
    """True if the text has no columns that wrapping would break, or is a finding, whose last line must be seen."""
    return bool(_FINDING.search(text)) or not _COLUMNS.search(text)
