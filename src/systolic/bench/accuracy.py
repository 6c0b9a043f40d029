"""Check a product against an exact reference, with a tolerance that follows from k and the dtypes.

A tolerance that is too wide passes a kernel that lost a row of k; one that is too narrow fails an honest rounding. So
it is derived, in `tolerance`, and tests plant faults to see that they are caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Float, Shaped

from systolic.spec import MatmulSpec, accumulator_dtype

# Chance that an honest kernel fails one check. Not a margin by feel: it enters the tail of the distribution.
_FALSE_ALARM = 1e-6


class ResultError(ValueError):
    """A result that cannot be compared: another shape or dtype than the problem's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The largest error of a result, and the largest that rounding explains."""

    max_abs_error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Within the tolerance. NaN anywhere in the result makes the error NaN, which is never ok."""
        return self.max_abs_error <= self.tolerance

    def as_row(self) -> dict[str, float | bool]:
        """Return the columns of a lesson's table."""
        return {"max_abs_error": self.max_abs_error, "tolerance": self.tolerance, "ok": self.ok}


def _is_integer(dtype: str) -> bool:
    return accumulator_dtype(dtype) == "int32"


def operands(spec: MatmulSpec, seed: int = 0) -> tuple[Shaped[np.ndarray, "m k"], Shaped[np.ndarray, "k n"]]:
    """Return `lhs[m, k]` and `rhs[k, n]` in the spec's dtypes: standard normal floats, integers of the full range."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, dtype: str) -> np.ndarray:
        if _is_integer(dtype):
            limits = ml_dtypes.iinfo(dtype)
            return random.integers(limits.min, limits.max, (rows, columns), endpoint=True).astype(dtype)
        return random.standard_normal((rows, columns), np.float32).astype(dtype)

    return matrix(spec.m, spec.k, spec.dtype_lhs), matrix(spec.k, spec.n, spec.dtype_rhs)


def reference(lhs: Shaped[np.ndarray, "m k"], rhs: Shaped[np.ndarray, "k n"]) -> Shaped[np.ndarray, "m n"]:
    """Return `lhs @ rhs` in float64; for integers exact, in int64."""
    wide = lhs.astype(np.float64), rhs.astype(np.float64)
    if not (_is_integer(lhs.dtype.name) and _is_integer(rhs.dtype.name)):
        return wide[0] @ wide[1]
    # Whole numbers below 2^53 are exact in float64, whose product is a hundred times faster than int64's.
    if lhs.shape[1] * np.abs(wide[0]).max() * np.abs(wide[1]).max() < 2**53:
        return (wide[0] @ wide[1]).astype(np.int64)
    return lhs.astype(np.int64) @ rhs.astype(np.int64)


def tolerance(spec: MatmulSpec, output_roundings: int) -> float:
    """Return the largest absolute error that rounding explains, for `operands`; zero for integers.

    Let u be the unit rounding of the accumulator (2^-24 for float32) and v the output's (2^-8 for bfloat16:
    seven bits and a hidden one, half a step). Operands are standard normal, so a sum of j products has the standard
    deviation √j. The sum over k is taken in s = `output_roundings` chunks of c = k/s terms, each from zero, and the
    running sum is rounded to the output at the end of each. Every rounding adds an independent error of at most the
    unit times the rounded value; their variances add up:

        products               k terms of variance 1                        u² · k
        within the chunks      s · Σ_{j=1..c} j                             u² · k (c + 1) / 2
        of the running sum     Σ_{t=1..s} t·c                               v² · k (s + 1) / 2

    The root of the total is the deviation of one element. The largest of m·n elements is within r deviations,

        r = √(2L) + L/√k        L = ln(2·m·n / p)

    because a product of two normals has the log moment function −½·ln(1 − t²), at most t²/(2(1 − t)): a sum of k of
    them exceeds √(2kL) + L with a probability of at most e^−L (Bernstein's bound for sub-gamma variables; Boucheron,
    Lugosi, Massart, Concentration Inequalities, 2.4). With p = 10^-6 an honest kernel fails once in a million checks.
    Where the result is rounded once and that is the larger part, the bound is strict: v times the largest sum.

    A rounding is off by at most a unit, and by about 0.4 of one in the root mean square, and p is small: up to
    k = 1024, the errors seen of honest kernels stay two to ten times below. A CPU's blocked sums widen that for longer
    k in float32 (20 times at 8192), as do bfloat16 products summed to a float32 result, whose short sums are exact (20
    times); one lost row of k is a hundred times above the tolerance even then.

    Float operands are taken to be multiplied at the accumulator's precision, as TPU interpret mode does. A TPU itself
    rounds float32 operands to bfloat16 first, which this tolerance reports as wrong.
    """
    if _is_integer(spec.dtype_lhs):
        return 0.0
    unit_acc = float(ml_dtypes.finfo(spec.dtype_accumulator).eps) / 2
    unit_out = float(ml_dtypes.finfo(spec.dtype_out).eps) / 2
    k, chunks = spec.k, output_roundings
    variance = unit_acc**2 * k * (1 + (k / chunks + 1) / 2) + unit_out**2 * k * (chunks + 1) / 2
    tail = math.log(2 * spec.m * spec.n / _FALSE_ALARM)
    reach = math.sqrt(2 * tail) + tail / math.sqrt(k)
    return reach * math.sqrt(variance)


def max_abs_error(result: Shaped[np.ndarray, "m n"], expected: Shaped[np.ndarray, "m n"], spec: MatmulSpec) -> float:
    """Return the largest deviation of `result` from `expected`; NaN if one element is NaN.

    Raises:
      ResultError: the result does not have the problem's shape or output dtype.
    """
    if result.shape != (spec.m, spec.n) or result.dtype.name != spec.dtype_out:
        raise ResultError(
            f"the result is {result.dtype.name}{list(result.shape)}; the product is {spec.dtype_out}{[spec.m, spec.n]}"
        )
    difference: Float[np.ndarray, "m n"] = (result.astype(expected.dtype) - expected).astype(np.float64)
    return float(np.max(np.abs(difference)))


def check(
    multiply: Callable[[np.ndarray, np.ndarray], object],
    spec: MatmulSpec,
    output_roundings: int,
    seed: int = 0,
) -> Accuracy:
    """Run `multiply(lhs, rhs)`, which returns an array, on `operands(spec, seed)` and compare with `reference`.

    Raises:
      ResultError: the result does not have the problem's shape or output dtype.
    """
    lhs, rhs = operands(spec, seed)
    result = np.asarray(multiply(lhs, rhs))
    return Accuracy(
        max_abs_error=max_abs_error(result, reference(lhs, rhs), spec),
        tolerance=tolerance(spec, output_roundings),
    )
