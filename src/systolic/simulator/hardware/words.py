"""Functions of words of any kind: the same on all devices and in all rounds of a loop, or different ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from systolic.simulator.hardware.at_once import AT_ONCE
from systolic.simulator.hardware.lanes import Lanes, each_lane, joined_lanes
from systolic.simulator.hardware.round_words import RoundWords, in_each_round
from systolic.simulator.hardware.values import SCALAR_FUNCTIONS, Unknown


def joined(values: Sequence[Any]) -> Any:
    """Return the common value of all lanes, or the lanes if they differ."""
    if any(type(value) is RoundWords for value in values):
        return in_each_round(lambda *of_round: joined(of_round), *values)
    return joined_lanes(values)


def lane(value: Any, number: int) -> Any:
    """Return a device's word."""
    if type(value) is RoundWords:
        return in_each_round(lane, value, number)
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


# Functions in the Python expressions of scalar instructions.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "picked": picked,
    **{function.__name__: _of_any_kind(function) for function in SCALAR_FUNCTIONS},
}
