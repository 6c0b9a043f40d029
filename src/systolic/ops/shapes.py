"""Shapes of the arrays of a product: broadcasting, symbolic sizes, and a batch that becomes rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from jax import Array, lax

from systolic.spec import Side


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """As NumPy has it, but sizes may be symbols.

    Raises:
      ValueError: the shapes do not broadcast.
    """
    return cast(tuple[int, ...], lax.broadcast_shapes(*shapes))


def is_symbolic(arrays: Sequence[Any]) -> bool:
    """Whether sizes are symbols, as `jax.export.symbolic_shape` makes them."""
    return not all(isinstance(size, int) for array in arrays for size in array.shape)


def fold(
    transpose_lhs: bool, beside: Sequence[Side], arrays: Sequence[Array]
) -> tuple[list[Array], tuple[int, ...] | None]:
    """The arrays with the batch in the rows of lhs, where rhs is the same for all; and the batch to unfold to.

    One product of many rows reads rhs less often than many products. It takes rows that are stored one matrix after
    the other, which is so where they fill registers; else only a small lhs is worth the copy.
    """
    lhs, rhs, *extras = arrays
    batch = tuple(max(sizes) for sizes in zip(*(array.shape[:-2] for array in arrays), strict=True))
    if math.prod(batch) == 1:
        return [array.reshape(array.shape[-2:]) for array in arrays], batch
    rows = lhs.shape[-2]
    foldable = not transpose_lhs and lhs.shape[:-2] == batch and math.prod(rhs.shape[:-2]) == 1
    for side, extra in zip(beside, extras, strict=True):
        same = math.prod(extra.shape[:-2]) == 1
        every = extra.shape[:-2] == batch and extra.shape[-2] == rows
        foldable &= same if side == "rhs" else every or (same and extra.shape[-2] == 1)
    if not foldable or (rows % 8 and lhs.size > rhs.size):
        return list(arrays), None

    def flat(array: Array) -> Array:
        return array.reshape(-1, array.shape[-1]) if array.shape[:-2] == batch else array.reshape(array.shape[-2:])

    return [flat(array) for array in arrays], batch
