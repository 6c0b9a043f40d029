"""Guesses a reference for a function without one: the known function that its results are closest to.

The candidate of the least median error is compared element by element: all results agree with it, or most, or too few
for it to mean anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from systolic.checking.comparing import ReferenceFunction, compared
from systolic.checking.known_functions import KnownFunction, known_functions

# Another function agrees in few results, and one with zeros in it in half of them.
_MIN_AGREEING_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A function that gives the same results, or most of them.

    Attributes:
      known: the function.
      wrong: which results are others.
    """

    known: KnownFunction
    wrong: np.ndarray

    @property
    def text(self) -> str:
        """The function as Python has it."""
        return self.known.text


def guessed(
    inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, terms: int, roundings: int, rounds: bool = True
) -> Guess | None:
    """Return a known function with which all or most results agree; None if there is none.

    Args:
      inputs: flat.
      outputs: flat.
      terms: how many terms an element sums.
      roundings: how often a running sum is rounded on the way.
      rounds: whether anything may be rounded to a narrow type.
    """
    if len(outputs) != 1 or not outputs[0].size:
        return None
    closest = _closest(inputs, outputs[0])
    if closest is None:
        return None
    expected = ReferenceFunction(closest.fn).evaluated(inputs, 0)
    native = expected.native[0] if expected.native else None
    against = compared(
        outputs[0], expected.values[0], expected.responses[0], terms=terms, roundings=roundings, native=native
    )
    wrong = against.error > (np.maximum(against.limit, against.coarse) if rounds else against.limit)
    return Guess(known=closest, wrong=wrong) if wrong.mean() <= 1 - _MIN_AGREEING_SHARE else None


def _closest(inputs: Sequence[np.ndarray], output: np.ndarray) -> KnownFunction | None:
    """Finds the known function of the least median error."""
    import jax

    best, least = None, np.inf
    got = output.astype(np.float64)
    with jax.enable_x64(True), np.errstate(invalid="ignore", over="ignore"):
        wide = [array if array.dtype.kind in "iub" else array.astype(np.float64) for array in inputs]
        for known in known_functions([array.shape for array in inputs], output.shape):
            error = np.abs(np.asarray(jax.jit(known.fn)(*wide)).astype(np.float64) - got)
            median = float(np.median(np.nan_to_num(error, nan=np.inf)))
            if best is None or median < least:
                best, least = known, median
    return best
