"""The tile sizes among a function's static arguments: what `explain` may change, as its author would.

A keyword argument is a tile size when it holds a number, or a tuple or record of numbers, and a number of it is a
dimension of a block that the function's Pallas calls use.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.analysis import KernelCall
from systolic.bugs import runs_user_code
from systolic.compiler import NamedFunction, function_name

_LEAST = 8  # smaller numbers are counts of something more often than tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class TileParameter:
    """One number among a function's keyword arguments.

    Attributes:
      name: the argument.
      part: the place in a tuple, or the field of a record; None: the argument itself.
      value: what it is now.
      most: the largest dimension that is cut into blocks of this size.
    """

    name: str
    part: int | str | None
    value: int
    most: int

    def __str__(self) -> str:
        return self.name if self.part is None else f"{self.name}[{self.part}]"


def keywords(fn: Callable[..., Any]) -> dict[str, Any]:
    """Finds a function's keyword arguments that have a value: bound by `functools.partial`, or by default."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some callables of C have none
        return {}
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind in kinds and parameter.default is not inspect.Parameter.empty
    }


def tile_parameters(fn: Callable[..., Any], calls: Sequence[KernelCall]) -> list[TileParameter]:
    """Finds the numbers among a function's keyword arguments that are sizes of blocks."""
    largest: dict[int, int] = {}
    for call in calls:
        for operand in call.of("input", "output"):
            for block, size in zip(operand.block, operand.shape, strict=True):
                largest[block] = max(largest.get(block, 0), size)
        for operand in call.of("scratch"):  # of kernels that cut by themselves
            if operand.memory == "vmem" and not any(each.is_cut for each in call.operands):
                for block in operand.block:
                    largest.setdefault(block, 0)
    return [
        TileParameter(name=name, part=part, value=number, most=largest[number])
        for name, value in keywords(fn).items()
        for part, number in _numbers(value)
        if number >= _LEAST and number in largest
    ]


def _numbers(value: Any) -> Iterator[tuple[int | str | None, int]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield None, value
    elif isinstance(value, tuple | list):
        yield from ((at, each) for at, each in enumerate(value) if isinstance(each, int) and not isinstance(each, bool))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            found = getattr(value, each.name)
            if isinstance(found, int) and not isinstance(found, bool):
                yield each.name, found


def with_sizes(fn: Callable[..., Any], sizes: Mapping[TileParameter, int]) -> dict[str, Any]:
    """Makes the keyword arguments that give a function these tile sizes.

    Raises:
      TypeError, ValueError: a record of sizes does not take them.
    """
    known = keywords(fn)
    made: dict[str, Any] = {}
    for parameter, size in sizes.items():
        value = made.get(parameter.name, known[parameter.name])
        if parameter.part is None:
            made[parameter.name] = size
        elif isinstance(parameter.part, str):
            made[parameter.name] = dataclasses.replace(value, **{parameter.part: size})
        else:
            made[parameter.name] = type(value)(size if at == parameter.part else each for at, each in enumerate(value))
    return made


class WithKeywords:
    """A function with keyword arguments bound over what is bound already. May be sent to a worker."""

    def __init__(self, fn: Callable[..., Any] | NamedFunction, sizes: Mapping[TileParameter, int]) -> None:
        self._fn = fn
        self._sizes = dict(sizes)

    @property
    def __name__(self) -> str:  # type: ignore[override]
        return function_name(self._fn)

    @runs_user_code
    def __call__(self, *args: Any) -> Any:
        """Calls the function with these tile sizes."""
        fn = self._fn.load() if isinstance(self._fn, NamedFunction) else self._fn
        return fn(*args, **with_sizes(fn, self._sizes))
