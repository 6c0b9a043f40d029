"""Compare a result with a reference in float64, with a tolerance derived from the reference, for any function.

Every element has its own tolerance. Let u be the unit roundoff of the accumulator (2^-24, float32), v that of the
result's dtype, and r the response of the element to rounding: the deviation of the float64 reference when every input
and every rounded intermediate changes by a random relative amount of deviation u (`perturbing.py`). For a sum of k
products of deviation σ that is r² ≥ 2k·u²σ², since both factors of each are changed. A kernel that multiplies, and sums
one after the other, has the variance

    products      u² · k σ²             ≤ r² / 2
    the sums      u² · Σ_{j=1..k} j σ²  ≤ r² (k + 1) / 4

together r²(k + 3)/4. So the tolerance is

    2v · |reference| + reach · r · √(k + 3) / 2                 reach = √(2 ln(2 · elements / p)), p = 10^-6

The first term is one unit in the last place of the result. `reach` is the number of deviations that the largest of all
normal errors exceeds once in a million checks. Sums in blocks, trees or a CPU's float32 chains have smaller errors. For
other functions than sums of products, r is the condition of the function, as the reference computes it: a backward
stable algorithm has errors of that order.

A kernel that rounds its running sum, or an intermediate, s times to the coarser of bfloat16 and the result's dtype
(unit w) has the same error with w for u and s for k. An error between the tolerance and this is a loss of precision,
not a wrong result.

The tolerance assumes independent errors. The limit assumes the worst order of the sum: every rounding is as large as
possible, all have one sign, and each term is rounded again in each of k additions. N = 2k changes of response r
together have at most √N·r, by Cauchy and Schwarz, so the limit is

    2v · |reference| + u · k · √(2k) · r

An error between the tolerance and the limit is unlikely, but rounding may cause it: it is a note, not an error.

All this assumes that the function is linear within u of its inputs. A softmax of scores around 10^8 is not: if one
score wins by less than the scores are rounded, another rounding makes another score win. So the reference is also
evaluated with changes of u, and is not steady where an element moves further than the linear response predicts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from systolic.checking.perturbing import perturbed
from systolic.support.bugs import runs_user_code

_FALSE_ALARM = 1e-6  # as in bench.accuracy
_UNIT = 2.0**-24  # of float32, in which TPUs sum
_UNIT_BFLOAT16 = 2.0**-8
# The relative change: far above float64's rounding, and small enough for a function of large numbers to be linear.
_CHANGE = 1e-8
_SAMPLES = 2
_FLUSHED = 2.0**-126  # below it float32 is zero on a TPU, and in interpret mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The results of a reference.

    Attributes:
      values: the flat results in float64, integers in 32 bits or more.
      responses: the response of each to relative changes of everything that is rounded.
      steady: True where a result responds linearly to rounding; elsewhere a result that differs may be right.
      native: the results in the arguments' own dtypes if some are narrow integers, which may wrap on purpose; else
        none.
    """

    values: tuple[np.ndarray, ...]
    responses: tuple[np.ndarray, ...]
    steady: tuple[bool, ...]
    native: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One result against its reference, element by element.

    Attributes:
      error: |result − reference|; infinite if only one of them is NaN.
      tolerance: the error that rounding explains.
      coarse: the error that sums rounded to bfloat16, or to the result's dtype, would explain.
      limit: the error that the worst order of the sum would explain; at least the tolerance.
    """

    error: np.ndarray
    tolerance: np.ndarray
    coarse: np.ndarray
    limit: np.ndarray

    @property
    def worst(self) -> tuple[float, float] | None:
        """Error and tolerance of the element that is farthest above its tolerance; None if no error is finite."""
        if not self.error.size:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.error == 0, 0.0, self.error / self.tolerance)
        at = int(np.argmax(np.where(np.isfinite(self.error), np.nan_to_num(ratio, nan=np.inf), -1.0)))
        return (float(self.error.flat[at]) if self.lost < self.error.size else 0.0), float(self.tolerance.flat[at])

    @property
    def lost(self) -> int:
        """Elements that are NaN or infinite where the reference is not, or the other way round."""
        return int((~np.isfinite(self.error)).sum())


class ReferenceFunction:
    """A reference, evaluated in float64, and again with small changes at its roundings.

    Floats are widened to float64, integers of fewer than 32 bits to int32: `lhs @ rhs` of 8-bit integers would
    overflow, and TPUs sum them in int32. Other integers stay: they are sizes and indices.

    Args:
      reference: takes the flat arguments.
    """

    def __init__(self, reference: Callable[..., Any]) -> None:
        self._reference = runs_user_code(lambda *arguments: _leaves(reference(*arguments)))
        self._run: Callable[..., Any] | None = None

    def evaluated(self, arguments: Sequence[np.ndarray], seed: int) -> Reference:
        """Evaluate it.

        Args:
          arguments: flat, of any dtypes; of the same shapes each time.
          seed: seed of the changes.

        Raises:
          Exception: any exception of the reference.
        """
        import jax

        # A value far beyond any range is not a response: it overflowed.
        with jax.enable_x64(True), np.errstate(over="ignore", invalid="ignore"):
            wide = [_widened(argument) for argument in arguments]
            if self._run is None:
                self._run = jax.jit(functools.partial(perturbed, jax.make_jaxpr(self._reference)(*wide)))
            values = self._values(wide, 0, 0.0)
            squares = [np.zeros(value.shape) for value in values]
            furthest = [np.zeros(value.shape) for value in values]
            for sample in range(_SAMPLES):
                moved = self._values(wide, seed * _SAMPLES + sample, _CHANGE)
                rounded = self._values(wide, seed * _SAMPLES + sample, _UNIT)
                for at, value in enumerate(values):
                    squares[at] += _distance(moved[at], value) ** 2
                    furthest[at] = np.fmax(furthest[at], _distance(rounded[at], value))
        responses = tuple(np.sqrt(_evened(total / _SAMPLES)) / _CHANGE for total in squares)
        steady = tuple(map(_is_steady, values, responses, furthest))
        narrow = any(argument.dtype.kind in "iu" and argument.dtype.itemsize < 4 for argument in arguments)
        native = tuple(self._native(arguments)) if narrow else ()
        return Reference(values=tuple(values), responses=responses, steady=steady, native=native)

    @runs_user_code
    def _values(self, wide: Sequence[Any], seed: int, change: float) -> list[np.ndarray]:
        assert self._run is not None
        return [np.asarray(result) for result in self._run(wide, float(seed), change)]

    @runs_user_code
    def _native(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        import jax

        return [np.asarray(result) for result in jax.jit(self._reference)(*arguments)]


def _distance(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.nan_to_num(np.abs(first.astype(np.float64) - other.astype(np.float64)))


def _is_steady(value: np.ndarray, response: np.ndarray, furthest: np.ndarray) -> bool:
    """True if changes of one unit move no element further than the same number of normal errors reaches."""
    with np.errstate(invalid="ignore", over="ignore"):
        straight = _reach(value) * _UNIT * np.nan_to_num(response) + 2 * _UNIT * np.abs(np.nan_to_num(value))
        return bool((furthest <= straight).all())


def _leaves(results: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(results)


def _widened(array: np.ndarray) -> np.ndarray:
    import jax.numpy as jnp

    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return array.astype(np.complex128)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(np.float64)
    narrow = jnp.issubdtype(array.dtype, jnp.integer) and array.dtype.itemsize < 4
    return array.astype(np.int32) if narrow else array


def _evened(squares: np.ndarray) -> np.ndarray:
    """Raise mean squares of few samples to the averages of their rows and columns.

    A mean of two squares may be near zero by chance. The variances of a product's elements are about the variance of a
    row times the variance of a column.
    """
    if squares.ndim < 2 or not squares.size:
        return np.maximum(squares, squares.mean() if squares.size else 0)
    # Elements may be infinite, or so large that the products of their squares are; then the results are infinite, too.
    with np.errstate(over="ignore", invalid="ignore"):
        rows, columns = squares.mean(axis=-1, keepdims=True), squares.mean(axis=-2, keepdims=True)
        mean = squares.mean(axis=(-2, -1), keepdims=True)
        evened = np.divide(rows * columns, mean, out=np.zeros_like(squares), where=mean > 0)
    return np.fmax(squares, evened)


def compared(
    result: np.ndarray,
    expected: np.ndarray,
    response: np.ndarray,
    *,
    terms: int,
    roundings: int,
    native: np.ndarray | None = None,
) -> Comparison:
    """Compare a result with its reference; see above for the tolerance. Integers have to be equal.

    Args:
      result: the kernel's result, in its dtype.
      expected: the reference's result, in float64 or of an integer dtype, of the same shape.
      response: the response of the reference to relative changes of the inputs.
      terms: number of terms that an element sums, k above.
      roundings: number of roundings of a running sum, s above.
      native: the reference's result in the arguments' own dtypes; for a narrow integer dtype it is right, too.
    """
    import jax.numpy as jnp

    if not jnp.issubdtype(result.dtype, jnp.inexact):
        exact = expected.dtype.kind in "iub"
        difference = np.abs(result.astype(np.float64) - expected.astype(np.float64))
        if native is not None and native.dtype == result.dtype:
            difference[result == native] = 0.0
        # A result that is rounded to an integer at the end may be off by one half; integer arithmetic may not.
        allowed = np.zeros(difference.shape) if exact else np.full(difference.shape, 0.5) + _reach(result) * response
        return Comparison(error=difference, tolerance=allowed, coarse=allowed, limit=allowed)
    kind = ml_dtypes.finfo(np.float32 if result.dtype.kind == "c" else result.dtype)
    unit_out = float(kind.eps) / 2
    got, right = (
        array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in (result, expected)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        # A value beyond the largest number of the dtype is infinite there, which is right.
        right = np.where(np.abs(right) > float(kind.max), right.astype(result.dtype).astype(right.dtype), right)
        error = np.abs(got - right)
    error[(got == right) | (np.isnan(got) & np.isnan(right))] = 0.0  # equal infinities, and NaN in both
    error[np.isnan(error)] = np.inf
    # A reference that rounds to its own dtype, whatever its arguments, is only that exact.
    own_rounding = float(ml_dtypes.finfo(expected.dtype).eps) / 2 if expected.dtype.kind in "fV" else 0.0
    least = max(float(kind.smallest_subnormal) / 2, min(float(kind.smallest_normal), _FLUSHED))
    scale = 2 * (unit_out + own_rounding) * np.nan_to_num(np.abs(right)) + least
    reach = _reach(result)
    response = np.nan_to_num(response)
    tolerance = scale + reach * _UNIT * response * math.sqrt(terms + 3) / 2
    return Comparison(
        error=error,
        tolerance=tolerance,
        limit=np.maximum(tolerance, scale + _UNIT * response * terms * math.sqrt(2 * terms)),
        coarse=scale + reach * max(_UNIT_BFLOAT16, unit_out) * response * math.sqrt(roundings + 3) / 2,
    )


def _reach(result: np.ndarray) -> float:
    return math.sqrt(2 * math.log(2 * max(result.size, 1) / _FALSE_ALARM))


def is_nan(array: np.ndarray) -> np.ndarray:
    """Return a mask of the elements that are NaN, for types that `np.isnan` refuses, too."""
    with np.errstate(invalid="ignore"):
        return array != array


def place(wrong: np.ndarray) -> str:
    """Describe where the marked elements lie: an edge, some rows, or everywhere."""
    where = np.argwhere(wrong)
    total = int(wrong.sum())
    share = f"{total:,} of {wrong.size:,} elements ({total / wrong.size:.1%})"
    if wrong.ndim == 0 or not total:
        return share
    low, high = where.min(axis=0), where.max(axis=0)
    names = [f"dimension {at}" for at in range(wrong.ndim)]
    names[-1] = "columns"
    if wrong.ndim > 1:
        names[-2] = "rows"
    parts = [
        f"{name} {first}..{last} of {size}"
        for name, first, last, size in zip(names, low, high, wrong.shape, strict=True)
        if last - first + 1 < size
    ]
    return f"{share}, in {', '.join(parts)}" if parts else f"{share}, everywhere"
