"""Guess a reference for a function without one: the known function that its results are closest to.

The candidate with the smallest median error is compared element by element: all results agree with it, or most, or too
few to mean anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from systolic.checking.comparing import Reference, ReferenceFunction, compared
from systolic.checking.known_functions import KnownFunction, known_functions

# Share of the nonzero results in which a function must agree. Wrong functions agree in few, a maximum or a selection in
# half of them. Sums of many terms never agree by chance, not even in one block of four or five.
_MIN_AGREEING_SHARE = 0.6
_MIN_AGREEING_SUMS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A function that gives the same results, or most of them.

    Attributes:
      function: the known function.
      wrong: marks results that differ.
      coarse: marks results that differ as if sums or intermediates were rounded to bfloat16.
    """

    function: KnownFunction
    wrong: np.ndarray
    coarse: np.ndarray

    @property
    def text(self) -> str:
        """The function as Python text."""
        return self.function.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesser:
    """Compares results with known functions.

    Attributes:
      terms: number of terms that an element sums.
      roundings: number of roundings of a running sum.
      rounds: True if anything may be rounded to a narrow type.
    """

    terms: int
    roundings: int
    rounds: bool = True

    def guess(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Guess | None:
        """Return a known function with which all or most results agree; None if there is none."""
        if len(outputs) != 1 or not outputs[0].size:
            return None
        closest = _closest(inputs, outputs[0])
        if closest is None:
            return None
        guess, expected = self.compared(closest, inputs, outputs[0])
        counted = expected.values[0] != 0
        agreeing = 1 - float(guess.wrong[counted].mean() if counted.any() else guess.wrong.mean())
        return guess if agreeing >= (_MIN_AGREEING_SUMS if closest.is_sum else _MIN_AGREEING_SHARE) else None

    def compared(
        self, function: KnownFunction, inputs: Sequence[np.ndarray], output: np.ndarray
    ) -> tuple[Guess, Reference]:
        """Compare results with a known function, and return the function's results, too."""
        expected = ReferenceFunction(function.fn).evaluated(inputs, 0)
        native = expected.native[0] if expected.native else None
        against = compared(
            output,
            expected.values[0],
            expected.responses[0],
            terms=self.terms,
            roundings=self.roundings,
            native=native,
        )
        inexact = against.error > against.limit
        wrong = against.error > (np.maximum(against.limit, against.coarse) if self.rounds else against.limit)
        return Guess(function=function, wrong=wrong, coarse=inexact & ~wrong), expected


def _closest(inputs: Sequence[np.ndarray], output: np.ndarray) -> KnownFunction | None:
    """Return the known function with the smallest median error."""
    import jax

    best, least = None, np.inf
    got = output.astype(np.float64)
    with jax.enable_x64(True), np.errstate(invalid="ignore", over="ignore"):
        wide = [array if array.dtype.kind in "iub" else array.astype(np.float64) for array in inputs]
        for function in known_functions([array.shape for array in inputs], output.shape):
            error = np.abs(np.asarray(jax.jit(function.fn)(*wide)).astype(np.float64) - got)
            median = float(np.median(np.nan_to_num(error, nan=np.inf)))
            if best is None or median < least:
                best, least = function, median
    return best
