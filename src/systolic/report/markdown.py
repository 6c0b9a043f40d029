"""Text in Markdown: every name, flag and title is shown as it stands, and makes no heading, image, mention or link."""

from __future__ import annotations

import re

# Characters that begin or end something anywhere in a line; `_` inside of a word does not.
_ANYWHERE = re.compile(r"[\\`*\[\]<|~&]|(?<![^\W_])_|_(?![^\W_])")
# A heading, quotation, list, underline of a heading.
_AT_START = re.compile(r"(?=[#>+=-])|(?<=\d)(?=[.)])")
# Names of people, issues, pages, pictures and formulas, which GitHub finds in text even behind a backslash: a space of
# no width parts them.
_APART = re.compile(r"[@#](?=\w)|:(?=//|[\w+-]+:)|(?<![a-z0-9])www(?=\.)|(?<![a-z0-9])GH(?=-\d)", re.IGNORECASE)
_NO_SPACE = "&#8203;"


def markdown_text(text: str) -> str:
    """Escape text for a paragraph of Markdown. A line stays a line, without the spaces in front of it."""
    return "\n".join(map(_line, text.split("\n")))


def markdown_cell(text: str) -> str:
    """Escape text for a cell of a table, in one line."""
    return _escaped(" ".join(text.split()))


def _line(text: str) -> str:
    words = _escaped(text.strip())
    start = re.match(r"\d*", words)
    assert start is not None
    at = start.end()
    if _AT_START.match(words, at):
        words = f"{words[:at]}\\{words[at:]}"
    return words


def _escaped(text: str) -> str:
    parted = _APART.sub(rf"\g<0>{_NO_SPACE}", _ANYWHERE.sub(r"\\\g<0>", text))
    return parted.replace("$", "&#36;")  # GitHub takes a formula's mark for one behind a backslash too
