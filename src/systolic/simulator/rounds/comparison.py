"""Compare two moments of a simulation, which `state` has read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.simulator.hardware.at_once import array_of
from systolic.simulator.hardware.hbm_pipe import SAME_CYCLES
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.round_words import RoundWords
from systolic.simulator.hardware.values import Unknown

_SAME_SHARE = 1e-6  # by which rates differ, and sums of them, through rounding


@dataclass(slots=True)
class Word:
    """A word of a program: in two rounds that do the same it may differ."""

    value: Any


@dataclass(slots=True)
class Time:
    """A time that counts from the begin of a round."""

    cycles: float


class Contents:
    """Contents of a buffer: in two rounds the same object, or equal words."""

    def __init__(self, words: Callable[[], Any]) -> None:
        self._words = words

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Contents) or self._words is other._words:
            return isinstance(other, Contents)
        now, before = self._words(), other._words()
        if isinstance(now, Unknown) or isinstance(before, Unknown):
            return same_word(now, before)
        return len(now) == len(before) and all(map(same_word, now, before))

    __hash__ = None  # type: ignore[assignment]


State = list[Any]


def words_differ(now: State, before: State) -> bool | None:
    """Compare two moments: return whether words of programs differ; None: something else does."""
    if len(now) != len(before):
        return None
    differ = False
    for one, other in zip(now, before, strict=True):
        if type(one) is Word and type(other) is Word:
            differ = differ or not same_word(one.value, other.value)
        elif not same_word(one, other):
            return None
    return differ


def are_next(now: State, before: State, rounds: int) -> bool:
    """True if a moment is the same as one before, with the next round's words in place of those that differ.

    Words are compared in so many rounds.
    """
    return len(now) == len(before) and all(
        _is_next(one.value, other.value, rounds) if type(one) is Word and type(other) is Word else same_word(one, other)
        for one, other in zip(now, before, strict=True)
    )


def _is_next(now: Any, before: Any, rounds: int) -> bool:
    if type(now) is RoundWords or type(before) is RoundWords:
        earlier, later = _rows(now, rounds), _rows(before, rounds)
        if earlier is not None and later is not None:
            return bool((earlier[:-1] == later[1:]).all())
        return all(map(same_word, _in_rounds(now, rounds)[:-1], _in_rounds(before, rounds)[1:]))
    return same_word(now, before)


def _rows(word: Any, rounds: int) -> np.ndarray | None:
    """Return an array with a row for each round; None if a word is not known or too large."""
    array = array_of(word)
    if array is None:
        return None
    rows = np.atleast_2d(array)[:rounds]
    return np.broadcast_to(rows, (rounds, rows.shape[1]))


def _in_rounds(word: Any, rounds: int) -> Sequence[Any]:
    return word.values[:rounds] if type(word) is RoundWords else (word,) * rounds


def same_word(one: Any, other: Any) -> bool:
    """True if two words or other values are the same, or equally unknown."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other) or kind is RoundWords:
        return False
    if kind is Unknown:
        return (one.why, one.computed, one.argument) == (other.why, other.computed, other.argument)
    if kind is Lanes:
        return one.key == other.key
    if kind is Time:
        return abs(one.cycles - other.cycles) <= SAME_CYCLES
    if kind is float:
        return math.isclose(one, other, rel_tol=_SAME_SHARE, abs_tol=_SAME_SHARE)
    return bool(one == other)
