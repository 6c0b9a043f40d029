"""Subjects of trials of any function: its name and arguments, and the static arguments that were tried."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from systolic.ops.op import Kept, register_kept
from systolic.support.call_errors import WrongCallError

_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_LONGEST = 200  # characters of a value


class FunctionConfigError(WrongCallError, ValueError):
    """A static argument that cannot be kept: no name of Python's, or a value that no literal gives back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """A function and its arguments."""

    name: str  # the function's, with its module
    # Dtype and sizes of each array, "bfloat16 1024,512", and a digest of its values where these are known.
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """A static keyword argument, or a field of the record that it holds: "block_q", "block_sizes.block_q"."""

    name: str  # the argument's
    value: str  # the Python literal

    def __post_init__(self) -> None:
        parts = self.name.split(".")
        if len(parts) > 2 or not all(part.isidentifier() and part.isascii() for part in parts):
            raise FunctionConfigError(f"{self.name!r} is not a name of an argument")
        try:
            same = len(self.value) <= _LONGEST and repr(ast.literal_eval(self.value)) == self.value
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            same = False
        if not same:
            raise FunctionConfigError(
                f"{self.name}={self.value[:_LONGEST]} cannot be kept: give numbers, text, True, False, None, or tuples "
                f"of these, of {_LONGEST} characters at most"
            )

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def arguments_of(keywords: Iterable[Keyword]) -> dict[str, Any]:
    return {keyword.name: ast.literal_eval(keyword.value) for keyword in keywords}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionConfig:
    """The static arguments that a function was tried with."""

    keywords: tuple[Keyword, ...]  # none: the function as it is
    # A digest of JAX's trace. A function that was changed has another one, and its trials do not count any more.
    program: str

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.program):
            raise FunctionConfigError(f"program={self.program[:40]!r} is no digest")

    @property
    def arguments(self) -> dict[str, Any]:
        return arguments_of(self.keywords)

    def __str__(self) -> str:
        return ", ".join(map(str, self.keywords)) or "as it is"


class Functions(Kept):
    """The kind of trials whose subject is a function."""

    name = "function"
    spec_type = FunctionSpec

    def words(self, spec: FunctionSpec) -> tuple[str, str, str]:
        return spec.name, "; ".join(spec.arguments), ""


FUNCTIONS = Functions()
register_kept(FUNCTIONS)
