"""The tile sizes of a function: what `explain` may change, as its author would.

A tile size is a number that is a dimension of a block of the function's Pallas calls, and is in a keyword argument of
the function; or else in an argument of a function that it calls, or in a constant of a module. It may be part of a
tuple or of a record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.analysis import KernelCall
from systolic.explaining.entering import Home
from systolic.explaining.places import Part, is_record, numbers_in

_LEAST = 8  # smaller numbers are counts of something more often than tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place among what a function takes that is chosen."""

    name: str  # the argument, or the constant
    part: Part = None  # the place in a tuple, or the field of a record; None: the argument itself
    home: Home | None = None  # the variable, where it is not a keyword argument of the function; None: it is one

    @staticmethod
    def of(text: str) -> Place:
        """Read "block_q" or "block_sizes.block_q"."""
        name, _, field = text.partition(".")
        return Place(name=name, part=field or None)

    def __str__(self) -> str:
        if self.part is None:
            return self.name
        return f"{self.name}.{self.part}" if isinstance(self.part, str) else f"{self.name}[{self.part}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileParameter(Place):
    """A tile size."""

    value: int  # the current size
    largest: int  # the largest dimension that is cut into blocks of this size


def keywords(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword arguments of a function that have a value, bound by `functools.partial` or by default."""
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


def tile_parameters(
    fn: Callable[..., Any], calls: Sequence[KernelCall], inside: Mapping[Home, Any] | None = None
) -> list[TileParameter]:
    """Find the numbers that are sizes of blocks.

    `inside`: what the functions inside of it were entered with, in order; see `values_seen`.
    """
    inside = inside or {}
    largest = _blocks(calls)

    def parameters_of(name: str, value: Any, home: Home | None = None) -> Iterator[TileParameter]:
        for part, number in numbers_in(value):
            if number >= _LEAST and number in largest:
                yield TileParameter(name=name, part=part, value=number, largest=largest[number], home=home)

    keywords_of_fn = keywords(fn)
    mine = []
    for name, value in keywords_of_fn.items():
        # What is left to the function is what it then calls others with, by the same name.
        mine += parameters_of(name, record_inside(inside, name) if value is None else value)
    for home, value in inside.items():
        if not home.function:
            mine += parameters_of(home.name, value, home)
    # A number goes on from call to call: the outermost has it first.
    values_of_fn = {parameter.value for parameter in mine}
    for function in dict.fromkeys((home.module, home.function) for home in inside if home.function):
        values = {home: value for home, value in inside.items() if (home.module, home.function) == function}
        new = [parameter for home, value in values.items() for parameter in parameters_of(home.name, value, home)]
        new = [
            parameter
            for parameter in new
            if parameter.value not in values_of_fn and parameter.name not in keywords_of_fn
        ]
        values_of_fn |= {parameter.value for parameter in new}
        mine += new
    return mine


def _blocks(calls: Sequence[KernelCall]) -> dict[int, int]:
    """Sizes of blocks, each with the largest dimension that is cut into such."""
    largest: dict[int, int] = {}
    for call in calls:
        for operand in call.of("input", "output"):
            for block, size in zip(operand.block, operand.shape, strict=True):
                largest[block] = max(largest.get(block, 0), size)
        for operand in call.of("scratch"):  # of kernels that cut their arrays themselves
            if operand.memory == "vmem" and not any(operand.is_cut for operand in call.operands):
                for block in operand.block:
                    largest.setdefault(block, 0)
    return largest


def record_inside(inside: Mapping[Home, Any], name: str) -> Any:
    """Return the record of this name that was passed to a function; None if there is none."""
    return next((value for home, value in inside.items() if home.name == name and is_record(value)), None)
