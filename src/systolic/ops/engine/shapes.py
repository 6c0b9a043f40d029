"""Shapes of the arrays of a product: broadcasting, symbolic sizes, and a batch that becomes rows."""

from __future__ import annotations

import math
from typing import cast

from jax import Array, lax

from systolic.spec import Operands, Side

# Each of two products of one array has a multiple of this many columns: blocks of one do not reach into the other.
WHOLE_BLOCK_COLUMNS = 256


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which these broadcast, as in NumPy; sizes may be symbols. Raise ValueError if they do not."""
    return cast(tuple[int, ...], lax.broadcast_shapes(*shapes))


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """True if an array of this shape broadcasts to the target, which stays as it is."""
    try:
        return broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def is_symbolic(operands: Operands) -> bool:
    """True if sizes are symbols, as `jax.export.symbolic_shape` makes them."""
    return not all(isinstance(size, int) for array in operands.present() for size in array.shape)


def fold(transpose_lhs: bool, operands: Operands) -> tuple[Operands, tuple[int, ...] | None]:
    """Return the operands with the batch in the rows of lhs if rhs is the same for all, and the batch to unfold to.

    One product of many rows reads rhs less often than many products. It needs rows that are stored one matrix after the
    other, as they are if they fill registers; else only a small lhs is worth the copy.
    """
    lhs, rhs = operands.lhs, operands.rhs
    batch = tuple(max(sizes) for sizes in zip(*(array.shape[:-2] for array in operands.present()), strict=True))
    if math.prod(batch) == 1:
        return operands.map(lambda array: array.reshape(array.shape[-2:])), batch
    rows = lhs.shape[-2]

    def fits(array: Array, side: Side) -> bool:
        same = math.prod(array.shape[:-2]) == 1
        fits = array.shape[:-2] == batch and array.shape[-2] == rows
        return same if side == "rhs" else fits or (same and array.shape[-2] == 1)

    foldable = not transpose_lhs and lhs.shape[:-2] == batch and all(operands.map(fits, operands.sides).present())
    if not foldable or (rows % 8 and lhs.size > rhs.size):
        return operands, None

    def flat(array: Array) -> Array:
        return array.reshape(-1, array.shape[-1]) if array.shape[:-2] == batch else array.reshape(array.shape[-2:])

    return operands.map(flat), batch
