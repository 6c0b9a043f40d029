"""Pieces of generated code for the programs of both kinds of cores."""

from __future__ import annotations

from collections.abc import Sequence


def until(attempt: str, where: str) -> list[str]:
    """Make code that retries until another core has made it possible; `where` is for the message of a deadlock."""
    return [f"r = {attempt}", "while r is None:", f"    blocked({where})", "    yield None", f"    r = {attempt}"]


def dispatch(bodies: Sequence[list[str]], first: int, end: int, indent: str) -> list[str]:
    """Make code that finds the block by bisection: a loop of forty blocks costs six comparisons a round."""
    if end - first == 1:
        return [indent + line for line in bodies[first]]
    middle = (first + end) // 2
    return [
        f"{indent}if block < {middle}:",
        *dispatch(bodies, first, middle, indent + " "),
        f"{indent}else:",
        *dispatch(bodies, middle, end, indent + " "),
    ]
