"""Text in Markdown stays text, by a parser of CommonMark with tables; what GitHub adds to that is looked for."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from systolic.report.markdown import markdown_cell, markdown_text

HOSTILE = [
    "# h",
    "![x](http://example.org/a.png)",
    "@team",
    "me@example.org and x@y.z",
    "[a](b) [c]: d",
    "<img src=x> <!-- c -->",
    "<https://example.org>",
    "https://example.org/a_b www.example.org mailto:a@b.c",
    "`code` ``a`` ```",
    "a|b",
    "a \\| b \\",
    "*b* _e_ __init__ a_b_c **d** ~~s~~ ~~~",
    "- item",
    "+ item",
    "1. item",
    "12) item",
    "> quoted",
    "===",
    "---",
    "***",
    "    indented",
    "&amp; &#35; &lt;",
    "_www.a.b _e_www.a.b xGH-4 x_GH-4",
    "$x$ $$y$$",
    "#12 o/r#3 GH-4 :tada: file.py:zero:",
    "|a|b|\n|-|-|\n|c|d|",
    "plain\n# h\n===\n\n    code",
]
# GitHub's own: a mention, an issue, a page, a picture.
_LIVE = re.compile(r"@\w|#\w|://|(?<![a-z0-9])(www\.|GH-\d)|:\w+:")


def shown(tokens: list[Token]) -> str:
    """The text that a reader sees; fails where it is more than text."""
    words = []
    for token in tokens:
        words.append("\n")
        assert token.type in ("paragraph_open", "inline", "paragraph_close"), token.type
        for part in token.children or ():
            assert part.type in ("text", "softbreak", "text_special"), part.type
            words.append(part.content or "\n")
    return "".join(words)


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    seen = shown(parser.parse(f"before\n{markdown_text(text)}"))
    assert not _LIVE.search(seen)
    assert plain(seen.replace("\u200b", "")) == plain(f"before\n{text}")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_cell_stays_one_cell(text: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    table = f"| a | b |\n| --- | --- |\n| {markdown_cell(text)} | {markdown_cell(text)} |"
    tokens = parser.parse(table)
    assert tokens[-1].type == "table_close"
    cells = [tokens[at + 1] for at, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 2
    for cell in cells:
        assert not _LIVE.search(shown([cell]))
        assert plain(shown([cell]).replace("\u200b", "")) == plain(text)


def test_names_of_functions_are_read_as_they_are() -> None:
    assert markdown_text("kernels.py:scratch_matmul 2.5 µs, 3.0% slower") == (
        "kernels.py:scratch_matmul 2.5 µs, 3.0% slower"
    )
