"""A word that differs from round to round of a loop, while one round is executed for all that remain.

The first of its values is the word in the round that is executed, the n-th what it is n rounds later. Arithmetic goes
value by value, at once where all are known, and values that are all the same turn back into one. Any other use takes
the first value, so that the round is executed as it would be without the others, and the probe notes how many rounds
have the same value. A value may be that of all devices, as `Lanes`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.at_once import LARGEST, array_of, at_once, largest_in
from systolic.simulator.hardware.lanes import joined_array
from systolic.simulator.hardware.values import Unknown

_T = TypeVar("_T")


ROUNDS = 256  # for which words are computed at once; in longer loops some more are executed


class Probe:
    """The execution of some rounds for all that remain."""

    def __init__(self) -> None:
        self.alike = ROUNDS  # rounds that do the same, from the present one on: others may differ in what words decide
        self.skipped = 0  # rounds; if there are any, the probe is over

    @property
    def failed(self) -> bool:
        return self.alike < 2

    def limit(self, alike: int) -> None:
        """Record that so many rounds do the same, from the present one on, and others may not."""
        if self.skipped >= alike:
            raise SimulationError("a round of a loop depends on its number, and the ones before it did not")
        self.alike = min(self.alike, alike)


class RoundWords:
    """One word per round, from the present one on."""

    __slots__ = ("_values", "array", "largest", "probe")

    def __init__(self, probe: Probe, values: tuple[Any, ...]) -> None:
        self.probe = probe
        self._values: tuple[Any, ...] | None = values
        rows = [np.atleast_1d(row) for row in map(array_of, values) if row is not None]
        alike = len(rows) == len(values) and len({row.dtype for row in rows}) == 1
        # The same for arithmetic at once, where all are numbers of no more than 62 bits, or truths: a row for each
        # round, of one number for each device, or of one for all.
        self.array: np.ndarray | None = np.stack(np.broadcast_arrays(*rows)) if alike else None
        self.largest = 0 if self.array is None else largest_in(self.array)  # where there is an array

    @classmethod
    def of(cls, probe: Probe, array: np.ndarray) -> RoundWords:
        """Return the words of an array of results."""
        made = cls.__new__(cls)
        made.probe, made._values, made.array, made.largest = probe, None, array, largest_in(array)
        if made.largest > LARGEST:
            made._values, made.array = made.values, None
        return made

    def __repr__(self) -> str:
        return f"RoundWords{self.values[:3]!r}"

    def __len__(self) -> int:
        return len(self.values if self.array is None else self.array)

    def __getitem__(self, number: int) -> Any:
        """Return the word of a round."""
        return self.values[number] if self.array is None else joined_array(self.array[number].copy())

    @property
    def values(self) -> tuple[Any, ...]:
        if self._values is None:
            assert self.array is not None
            self._values = tuple(self[number] for number in range(len(self.array)))
        return self._values

    def of_device(self, number: int) -> Any:
        """Return the words of one device."""
        if self.array is not None:
            return _joined_rows(
                self.probe, self.array[:, number : number + 1] if self.array.shape[1] > 1 else self.array
            )
        words = tuple(value.values[number] if hasattr(value, "key") else value for value in self.values)
        return _joined(self.probe, words)

    def settled(self, *_: object) -> Any:
        """Return the present round's word where all rounds need the same."""
        if self.array is not None:
            differs = iter((self.array != self.array[0]).any(axis=1).nonzero()[0].tolist())
        else:
            first, *others = map(_key, self.values)
            differs = (number for number, other in enumerate(others, start=1) if other != first)
        self.probe.limit(next(differs, len(self)))
        return self[0]

    def places(self) -> set[int]:
        """Return the values of all rounds and devices."""
        if self.array is not None:
            return set(np.unique(self.array).tolist())
        return {place for value in self.values for place in getattr(value, "values", (value,))}

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
    probe, count = words[0].probe, min(map(len, words))
    array = at_once(function, operands) if max(map(len, words)) == count else None
    if array is not None:
        return _joined_rows(probe, array)
    rounds = zip(
        *(operand.values[:count] if type(operand) is RoundWords else (operand,) * count for operand in operands),
        strict=True,
    )
    results = [function(*of_round) for of_round in rounds]
    if type(results[0]) is tuple:
        return tuple(_joined(probe, part) for part in zip(*results, strict=True))
    return _joined(probe, results)


def of_devices(words: Sequence[Any]) -> Any:
    """Return one word of all devices for a word of each, of which some differ by round; None if one is not known."""
    rounds = next(word for word in words if type(word) is RoundWords)
    columns = [np.broadcast_to(array, (len(rounds), 1)) for array in map(array_of, words) if array is not None]
    if len(columns) < len(words) or len({column.dtype for column in columns}) > 1:
        return None
    return _joined_rows(rounds.probe, np.hstack(columns))


def _joined_rows(probe: Probe, array: np.ndarray) -> Any:
    # Few words are the same: a look at two of them is often enough.
    if (array[-1] == array[0]).all() and (array == array[0]).all():
        return joined_array(array[0].copy())
    if array[0, -1] == array[0, 0] and (array == array[:, :1]).all():
        array = array[:, :1].copy()
    return RoundWords.of(probe, array)


def _joined(probe: Probe, values: Sequence[Any]) -> Any:
    first = values[0]
    kind = type(first)
    if kind is Unknown and all(type(value) is kind for value in values):
        return first
    keys = list(map(_key, values))
    if all(key == keys[0] for key in keys):
        return first
    if all(_is_word(value) for value in values):
        return RoundWords(probe, tuple(values))
    probe.limit(1)
    return first


def _key(value: Any) -> Any:
    """Return an object that is equal where values are: the values of all devices are compared one by one."""
    return value.key if hasattr(value, "key") else (type(value), value) if _is_word(value) else id(value)


def _is_word(value: Any) -> bool:
    return isinstance(value, int) or hasattr(value, "key")


def present(value: _T | RoundWords) -> _T:
    """Return the present round's word where all rounds need the same."""
    return value.settled() if type(value) is RoundWords else value  # type: ignore[return-value]


def in_round(number: int, word: Any) -> Any:
    """Return the word, or the words of a list, that a later round has."""
    if type(word) is list:
        return [in_round(number, item) for item in word]
    return word[number] if type(word) is RoundWords else word


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
