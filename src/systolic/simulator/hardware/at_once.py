"""Arithmetic on the words of all devices, or of all rounds of a loop, at once with NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from systolic.simulator.hardware.values import larger, smaller

_FITS = (1 << 63) - 1  # NumPy's whole numbers
LARGEST = (1 << 62) - 1  # sums and differences of such words fit
# Functions whose results may be larger than that: their largest results.
_MOST: dict[Callable[..., Any], Callable[[int, int], int]] = {
    operator.mul: operator.mul,
    operator.lshift: lambda word, bits: word << min(bits, 64),
}
# Functions for which NumPy computes the same of such words.
AT_ONCE: dict[Callable[..., Any], Callable[..., Any]] = {
    **{
        function: function
        for function in (operator.add, operator.sub, operator.and_, operator.or_, operator.xor, operator.neg)
    },
    **{
        function: function
        for function in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
    },
    **{function: function for function in (operator.mul, operator.lshift, operator.rshift)},
    smaller: np.minimum,
    larger: np.maximum,
}


def at_once(function: Callable[..., Any], operands: Sequence[Any]) -> np.ndarray | None:
    """Return the results for all words; None if it cannot be computed so, or an operand is unknown or too large."""
    computed = AT_ONCE.get(function)
    if computed is None:
        return None
    arrays = [array_of(operand) for operand in operands]
    bound = _MOST.get(function)
    if any(array is None for array in arrays) or (bound is not None and bound(*map(_largest, operands)) > _FITS):
        return None
    return computed(*arrays)


def array_of(word: Any) -> Any:
    """Return what NumPy computes with, which broadcasts; None if a word is not known or too large."""
    if type(word) is int:
        return word if abs(word) <= LARGEST else None
    return word if type(word) is bool else getattr(word, "array", None)


def largest_in(array: np.ndarray) -> int:
    """Return the largest absolute value."""
    return 1 if array.dtype == bool else max(int(array.max()), -int(array.min()))


def _largest(operand: Any) -> int:
    return abs(operand) if isinstance(operand, int) else operand.largest
