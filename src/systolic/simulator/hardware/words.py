"""Functions of words of any kind: the same on all devices and in all rounds of a loop, or different ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from systolic.simulator.hardware.at_once import AT_ONCE
from systolic.simulator.hardware.lanes import Lanes, each_lane, joined_lanes
from systolic.simulator.hardware.round_words import RoundWords, in_each_round, of_devices
from systolic.simulator.hardware.values import NEVER_WRITTEN, SCALAR_FUNCTIONS, Unknown


def joined(values: Sequence[Any]) -> Any:
    """Return the common value of all lanes, or the lanes if they differ."""
    if any(type(value) is RoundWords for value in values):
        word = of_devices(values)
        return in_each_round(lambda *of_round: joined(of_round), *values) if word is None else word
    return joined_lanes(values)


def lane(value: Any, number: int) -> Any:
    """Return a device's word."""
    if type(value) is RoundWords:
        return value.of_device(number)
    return value.values[number] if type(value) is Lanes else value


def picked(predicate: Any, chosen: Any, otherwise: Any) -> Any:
    """Choose between two words; return the predicate itself if it is an unknown value."""
    kind = type(predicate)
    if kind is RoundWords or (kind is Lanes and RoundWords in (type(chosen), type(otherwise))):
        return in_each_round(picked, predicate, chosen, otherwise)
    if kind is Lanes:
        return each_lane(picked, predicate, chosen, otherwise)
    return predicate if kind is Unknown else chosen if predicate else otherwise


AT_ONCE[picked] = np.where


def _of_any_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def of_words(*operands: Any) -> Any:
        of_devices = False
        for operand in operands:
            if operand.__class__ is RoundWords:
                return in_each_round(of_words, *operands)
            of_devices = of_devices or operand.__class__ is Lanes
        return each_lane(function, *operands) if of_devices else function(*operands)

    if function in AT_ONCE:
        AT_ONCE[of_words] = AT_ONCE[function]
    return of_words


# Names in the Python code that is made of programs. It has no others, but those that its translator adds.
SCOPE: dict[str, Any] = {
    "nothing": NEVER_WRITTEN,
    "Unknown": Unknown,
    "Lanes": Lanes,
    "picked": picked,
    **{function.__name__: _of_any_kind(function) for function in SCALAR_FUNCTIONS},
    "__builtins__": {},
}
