"""One slice of a step: which rows and columns, its product, and zeros past the end of k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.problem import MatmulProblem
from systolic.tiling import LANES, Blocking, sublane_multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows and columns of the output tile, from `row` and `column` on."""

    row: Any
    column: Any
    n_rows: int
    n_columns: int

    @classmethod
    def number(cls, number: Any, blocking: Blocking) -> Slice:
        """The slice of that number, counted along the rows of slices."""
        across = blocking.tiles.tile_n // blocking.slice_n
        row, column = (number, 0) if across == 1 else (number // across, number % across)
        if blocking.tiles.tile_m == blocking.slice_m:
            row, column = 0, number
        return cls(
            row=times(row, blocking.slice_m),
            column=times(column, blocking.slice_n),
            n_rows=blocking.slice_m,
            n_columns=blocking.slice_n,
        )

    @property
    def rows(self) -> Any:
        """To index a ref with."""
        return pl.ds(self.row, self.n_rows)

    @property
    def columns(self) -> Any:
        """To index a ref with."""
        return pl.ds(self.column, self.n_columns)

    def moved(self, row: Any, column: Any) -> tuple[Any, Any]:
        """Its rows and columns in a matrix whose tile begins at `row`, `column`."""
        return pl.ds(row + self.row, self.n_rows), pl.ds(column + self.column, self.n_columns)


def times(number: Any, step: int) -> Any:
    """A multiple of `step`, which the compiler is told."""
    return number * step if isinstance(number, int) else pl.multiple_of(number * step, step)


def multiply(lhs: tuple[Any, ...], rhs: tuple[Any, ...], piece: Slice, problem: MatmulProblem) -> Array:
    """The product of a slice in the accumulator's dtype; of two parts each, three products, the small ones first."""
    dimensions = (((0 if problem.transpose_lhs else 1,), (1 if problem.transpose_rhs else 0,)), ((), ()))
    exact = problem.precision == "highest" and problem.dtype_multiplied == "float32"

    def dot(a: Any, b: Any) -> Array:
        left = a[:, piece.rows] if problem.transpose_lhs else a[piece.rows, :]
        right = b[piece.columns, :] if problem.transpose_rhs else b[:, piece.columns]
        return lax.dot_general(
            left,
            right,
            dimensions,
            precision=lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT,
            preferred_element_type=jnp.dtype(problem.dtype_accumulator),
        )

    if len(lhs) == 1:
        return dot(lhs[0], rhs[0])
    (lhs_high, lhs_low), (rhs_high, rhs_low) = lhs, rhs
    return (dot(lhs_low, rhs_high) + dot(lhs_high, rhs_low)) + dot(lhs_high, rhs_high)


def zero_past(ref: Any, used: int, axis: int) -> None:
    """Zeros in a block from row or column `used` on.

    Whole registers are overwritten; the one in which the matrix ends is read, masked and written back.
    """
    size = ref.shape[axis]
    step = LANES if axis == 1 else max(16, sublane_multiple(ref.dtype.name))
    start, end = used // step * step, min(-(-used // step) * step, size)

    def at(low: int, high: int) -> tuple[slice, slice]:
        return (slice(low, high), slice(None)) if axis == 0 else (slice(None), slice(low, high))

    if used % step:
        edge = ref[at(start, end)]
        number = lax.broadcasted_iota(jnp.int32, edge.shape, axis)
        ref[at(start, end)] = jnp.where(number < used - start, edge, jnp.zeros_like(edge))
    if end < size:
        rest = at(end, size)
        shape = (size - end, ref.shape[1]) if axis == 0 else (ref.shape[0], size - end)
        ref[rest] = jnp.zeros(shape, ref.dtype)
