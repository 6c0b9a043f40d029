"""A word that differs from round to round of a loop, while one round is executed for all that remain.

The first of its values is the word in the round that is executed, the n-th what it is n rounds later. Arithmetic goes
value by value, and values that are all the same turn back into one. Any other use takes the first value, so that the
round is executed as it would be without the others, and the probe notes that they may differ.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.values import Unknown

_T = TypeVar("_T")


class Probe:
    """The execution of some rounds for all that remain."""

    def __init__(self) -> None:
        self.failed = False  # rounds may differ in more than in words that decide nothing
        self.skips = False  # over: the rounds in between are skipped

    def fail(self) -> None:
        if self.skips:
            raise SimulationError("a round of a loop depends on its number, and the ones before it did not")
        self.failed = True


class RoundWords:
    """One word per round, from the present one on."""

    __slots__ = ("probe", "values")

    def __init__(self, probe: Probe, values: tuple[Any, ...]) -> None:
        self.probe = probe
        self.values = values

    def __repr__(self) -> str:
        return f"RoundWords{self.values[:3]!r}"

    def settled(self, *_: object) -> Any:
        """Return the present round's word where all rounds need the same."""
        self.probe.fail()
        return self.values[0]

    def __bool__(self) -> bool:
        return bool(self.settled())

    def __hash__(self) -> int:
        return hash(self.settled())

    def __index__(self) -> int:
        return operator.index(self.settled())

    def __int__(self) -> int:
        return int(self.settled())

    def __float__(self) -> float:
        return float(self.settled())

    def __truediv__(self, other: Any) -> Any:
        return self.settled() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.settled()

    def __neg__(self) -> Any:
        return in_each_round(operator.neg, self)

    def __invert__(self) -> Any:
        return in_each_round(operator.invert, self)


def in_each_round(function: Callable[..., Any], *operands: Any) -> Any:
    """Make a function work on the words of every round; a function that returns several gives each of them."""
    words = [operand for operand in operands if type(operand) is RoundWords]
    probe, count = words[0].probe, min(len(word.values) for word in words)
    rounds = zip(
        *(operand.values[:count] if type(operand) is RoundWords else (operand,) * count for operand in operands),
        strict=True,
    )
    results = [function(*of_round) for of_round in rounds]
    if type(results[0]) is tuple:
        return tuple(_joined(probe, part) for part in zip(*results, strict=True))
    return _joined(probe, results)


def _joined(probe: Probe, values: Sequence[Any]) -> Any:
    first = values[0]
    kind = type(first)
    if any(type(value) is not kind for value in values):
        probe.fail()
        return first
    if kind is Unknown:
        return first
    if kind is int or kind is bool:
        return first if all(value == first for value in values) else RoundWords(probe, tuple(values))
    if any(value is not first for value in values):
        probe.fail()
    return first


def present(value: _T | RoundWords) -> _T:
    """Return the present round's word where all rounds need the same."""
    return value.settled() if type(value) is RoundWords else value  # type: ignore[return-value]


def _operation(function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: RoundWords, other: Any) -> Any:
        return in_each_round(function, self, other)

    def backward(self: RoundWords, other: Any) -> Any:
        return in_each_round(function, other, self)

    return forward, backward


for _name in ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift", "and", "or", "xor"):
    for _prefix, _method in zip(("", "r"), _operation(getattr(operator, f"__{_name}__")), strict=True):
        setattr(RoundWords, f"__{_prefix}{_name}__", _method)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(RoundWords, f"__{_name}__", _operation(getattr(operator, f"__{_name}__"))[0])
