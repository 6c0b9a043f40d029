"""The parts of a Markdown page that can be run: its command blocks and its Python blocks, in their order."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What a command begins with. A block of another program's, in a page of tomorrow, adds it here.
_FIRST_WORD = re.compile(
    r"^(?:cat|cd|cp|curl|dask|docker|export|gcloud|git|make|mkdir|mv|pip|pytest|python3?|ruff|sed|source|sphinx-build|ssh"
    r"|systolic|uv|wget)(?:\s|$)"
)
_COMMAND_LANGUAGES = ("bash", "console", "sh", "shell")
_OUTPUT_LANGUAGES = ("text", "json")

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,}) *(?P<language>\S*)")
_FILE_NAME = re.compile(r"^# (?P<name>[\w./]+\.py)$")


class UnknownBlockError(AssertionError):
    """A block of which nobody knows whether it can be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command, or a block of Python.

    Attributes:
      line: of the page, from 1.
      command: with continued lines joined and without its comment; "" for Python.
      python: the block's text; "" for a command.
      file: what the reader saves this Python as; "" where it is run.
    """

    line: int
    command: str = ""
    python: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    line: int
    language: str | None  # None: indented
    text: str


def steps(page: Path) -> list[Step]:
    """Everything on the page that can be run.

    Raises:
      UnknownBlockError: a block is neither Python, nor commands, nor what a program printed.
    """
    found: list[Step] = []
    for block in _blocks(page.read_text("utf-8").splitlines()):
        where = f"{page.name}:{block.line}"
        language = block.language
        if language == "python":
            first = _FILE_NAME.match(block.text.partition("\n")[0])
            found.append(Step(line=block.line, python=block.text, file=first["name"] if first else ""))
        elif language in (None, "", *_COMMAND_LANGUAGES, *_OUTPUT_LANGUAGES):
            found += _commands(block, where)
        elif not language.startswith("{"):  # a directive of MyST holds what Sphinx reads
            raise UnknownBlockError(f"{where}: nobody knows how to run a block of {language!r}")
    return found


def _commands(block: _Block, where: str) -> Iterator[Step]:
    lines = list(_joined(block))
    prompted = [(number, line[2:]) for number, line in lines if line.startswith("$ ")]
    if block.language in _OUTPUT_LANGUAGES or prompted:
        chosen = prompted
    elif block.language in _COMMAND_LANGUAGES or any(_FIRST_WORD.match(line) for _, line in lines):
        chosen = lines
    elif _is_python(block.text):
        raise UnknownBlockError(f"{where}: this looks like Python; fence it as python, so that it is run")
    else:
        return  # a formula, or what a program printed
    for number, line in chosen:
        if line.lstrip().startswith("#"):
            continue
        if not _FIRST_WORD.match(line):
            raise UnknownBlockError(f"{where}: {line!r} stands among commands and begins with no known program")
        yield Step(line=number, command=re.sub(r"\s+# .*$", "", line).strip())


def _joined(block: _Block) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, those that end with a backslash with the next; and their numbers."""
    held, begun = "", 0
    for number, line in enumerate(block.text.splitlines(), block.line):
        if not held:
            begun = number
        held = f"{held} {line.strip()}" if held else line
        if held.endswith("\\"):
            held = held[:-1].rstrip()
            continue
        if held.strip():
            yield begun, held
        held = ""


def _is_python(text: str) -> bool:
    """True if it parses, and calls something or binds a name, unlike a formula or a program's output."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, (ast.Call, ast.Import, ast.ImportFrom)) for node in ast.walk(tree))


def _blocks(lines: list[str]) -> Iterator[_Block]:
    number = 0
    while number < len(lines):
        begun = number
        fence = _FENCE.match(lines[number])
        if fence is not None:
            closing = re.compile(rf"^ *{re.escape(fence['marks'][0])}{{{len(fence['marks'])},}} *$")
            number += 1
            while number < len(lines) and not closing.match(lines[number]):
                number += 1
            yield _Block(
                line=begun + 2,
                language=fence["language"],
                text=textwrap.dedent("\n".join(lines[begun + 1 : number])),
            )
            number += 1
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            # To Markdown what follows an empty line is the same block; to a reader it is what the command printed.
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            yield _Block(line=begun + 1, language=None, text=textwrap.dedent("\n".join(lines[begun:number])))
        else:
            number += 1
