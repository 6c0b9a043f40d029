"""Read a listing's comments, which nest and may run over several lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from systolic.simulator.errors import SimulationError

_EDGE = re.compile(r"/\*|\*/")
# A comment with another one, or with what separates instructions and bundles.
_DIVIDED = re.compile(r"/\*[^*;/{}]*+(?:(?:\*(?!/)|/(?!\*)|;(?!;))[^*;/{}]*+)*+(?:;;|/\*|[{}])")
# Legend lines that the compiler prints above the bundles.
_PREAMBLE = re.compile(r"=|[A-Z]{2}: |$")


def logical_lines(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Join the lines of a comment, and skip the preamble."""
    pending: list[str] = []
    start = depth = 0
    for number, line in enumerate(text.split("\n"), 1):
        opened, closed = (line.count("/*"), line.count("*/")) if "*" in line else (0, 0)
        if not pending:
            if line[:1] != " " and _PREAMBLE.match(line):
                continue
            if opened == closed:
                yield number, line
                continue
            start = number
        pending.append(line)
        depth += opened - closed
        if depth == 0:
            yield start, "\n".join(pending)
            pending = []
        elif depth < 0:
            raise SimulationError(f"{name}, line {number}: a comment ends that has not begun: {line.strip()[:200]}")
    if pending:
        raise SimulationError(f"{name}, line {start}: a comment does not end: {pending[0].strip()[:200]}")


def are_simple(line: str) -> bool:
    """True if a line can be cut into instructions with its comments: none has a comment, `;;` or a brace in it."""
    return "/*" not in line or _DIVIDED.search(line) is None


def split_comments(line: str) -> tuple[str, list[tuple[int, str]]]:
    """Split off comments, which nest: the code without them, and each with its place in that code."""
    if "/*" not in line:
        return line, []
    code: list[str] = []
    comments: list[tuple[int, str]] = []
    depth = last = length = 0
    for edge in _EDGE.finditer(line):
        if edge.group() == "/*":
            if depth == 0:
                piece = line[last : edge.start()]
                code.append(piece)
                length += len(piece)
                last = edge.end()
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                comments.append((length, line[last : edge.start()]))
                last = edge.end()
    code.append(line[last:])
    return "".join(code), comments
