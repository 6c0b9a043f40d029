"""A word that differs from device to device, while one device is executed for all.

Arithmetic goes lane by lane; lanes that become equal turn back into one value. To branch on lanes, or to name a flag
by them, all have to be equal; else devices diverge, and one cannot represent all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.at_once import LARGEST, at_once, largest_in
from systolic.simulator.hardware.values import Unknown


class DivergedError(SimulationError):
    """Devices do different things, so that one cannot represent all."""


def joined_lanes(values: Sequence[Any]) -> Any:
    """Return the common value of all lanes, or the lanes if they differ."""
    first = values[0]
    kind = type(first)
    if kind is Unknown:
        same = all(type(value) is Unknown for value in values)
    else:
        same = all(type(value) is kind and value == first for value in values)
    return first if same else Lanes(tuple(values))


def joined_array(array: np.ndarray) -> Any:
    """Return the same for an array with a value per device, or with one for all."""
    first = array[0]
    return first.item() if (array == first).all() else Lanes.of(array)


class _Memo:
    """Results of arithmetic on lanes: programs compute the same addresses again in every round of a loop.

    Lanes are found by their identity, so that both operands are kept as long as the result.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        key = (
            function,
            *(id(operand) if type(operand) is Lanes else operand for operand in operands),
            *map(type, operands),
        )
        entry = self._found.get(key)
        if entry is None:
            if len(self._found) >= _MAX_KEPT:
                self._found.clear()
            entry = self._found[key] = (_on_each_lane(function, operands), operands)
        return entry[0]


_MAX_KEPT = 1 << 12
_memo = _Memo()


def each_lane(function: Callable[..., Any], *operands: Any) -> Any:
    """Make a function work on every lane; a function that returns several words gives the lanes of each."""
    if any(type(operand) is Unknown for operand in operands):
        if function in _SAME_IF_UNKNOWN:
            return function(*(_lane(operand, 0) for operand in operands))
        return _on_each_lane(function, operands)
    return _memo(function, operands)


def _on_each_lane(function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    array = at_once(function, operands)
    if array is not None:
        return joined_array(array)
    results = [function(*(_lane(operand, number) for operand in operands)) for number in range(lanes_in(operands))]
    return tuple(map(joined_lanes, zip(*results, strict=True))) if type(results[0]) is tuple else joined_lanes(results)


def _lane(value: Any, number: int) -> Any:
    return value.values[number] if type(value) is Lanes else value


# Functions that return the unknown operand, whatever the other one is.
_SAME_IF_UNKNOWN = frozenset({operator.add, operator.sub, operator.mul})


def _binary(function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: Lanes, other: Any) -> Any:
        return each_lane(function, self, other) if isinstance(other, _WORDS) else NotImplemented

    def backward(self: Lanes, other: Any) -> Any:
        return each_lane(function, other, self) if isinstance(other, _WORDS) else NotImplemented

    return forward, backward


class Lanes:
    """One word per device, by device id."""

    __slots__ = ("_values", "array", "largest")

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values: tuple[Any, ...] | None = values
        numbers = all(type(value) is int for value in values)
        self.largest = max(map(abs, values)) if numbers else 0  # where there is an array
        # The same for arithmetic at once, where all are numbers of no more than 62 bits, or truths.
        self.array: np.ndarray | None = np.array(values, np.int64) if numbers and self.largest <= LARGEST else None

    @classmethod
    def of(cls, array: np.ndarray) -> Lanes:
        """Return the lanes of an array of results."""
        made = cls.__new__(cls)
        made.largest = largest_in(array)
        made._values, made.array = (None, array) if made.largest <= LARGEST else (tuple(array.tolist()), None)
        return made

    @property
    def key(self) -> Any:
        return self.values if self.array is None else (self.array.dtype, self.array.tobytes())

    @property
    def values(self) -> tuple[Any, ...]:
        if self._values is None:
            assert self.array is not None
            self._values = tuple(self.array.tolist())
        return self._values

    def __repr__(self) -> str:
        return f"Lanes{self.values!r}"

    def __bool__(self) -> bool:
        truths = {bool(value) for value in self.values}
        if len(truths) > 1:
            raise DivergedError("a branch that devices take differently")
        return truths.pop()

    def _differ(self, *_: object) -> Any:
        raise DivergedError("a number that devices have differently, where all need the same")

    __add__, __radd__ = _binary(operator.add)
    __sub__, __rsub__ = _binary(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod)
    __lshift__, __rlshift__ = _binary(operator.lshift)
    __rshift__, __rrshift__ = _binary(operator.rshift)
    __and__, __rand__ = _binary(operator.and_)
    __or__, __ror__ = _binary(operator.or_)
    __xor__, __rxor__ = _binary(operator.xor)
    __lt__, __gt__ = _binary(operator.lt)[0], _binary(operator.gt)[0]
    __le__, __ge__ = _binary(operator.le)[0], _binary(operator.ge)[0]
    __eq__, __ne__ = _binary(operator.eq)[0], _binary(operator.ne)[0]  # type: ignore[assignment]

    def __neg__(self) -> Any:
        return each_lane(operator.neg, self)

    def __invert__(self) -> Any:
        return each_lane(operator.invert, self)

    # Every other use of a number takes one that is the same on all devices.
    __hash__ = __index__ = __int__ = __float__ = __abs__ = __round__ = __trunc__ = _differ
    __pow__ = __rpow__ = __divmod__ = __rdivmod__ = __truediv__ = __rtruediv__ = _differ


def lanes_in(values: Sequence[Any]) -> int:
    """Return the number of lanes; 0 if every value is the same on all devices."""
    return next((len(value.values) for value in values if type(value) is Lanes), 0)


# Words that lanes are computed with; those that differ by round compute the result themselves.
_WORDS = (int, float, Unknown, Lanes)
