"""Places of blocks: lists of rows and columns that are checked, sorted, or made of a mask; each also with a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from systolic.spec import BlockSparseError


def places_by_columns(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The order of blocks by columns, and columns and rows in this order; padding is behind them."""
    if is_known(rows) and is_known(columns):
        rows, columns, xp = np.asarray(rows), np.asarray(columns), np
    else:
        import jax.numpy as jnp

        xp = jnp
    columns = xp.where(rows < grid[0], columns, grid[1])
    order = xp.lexsort((rows, columns)).astype(np.int32)
    at_column, at_row = (xp.take_along_axis(one, order, -1) for one in (columns, rows))
    return order, at_column.astype(np.int32), xp.where(at_column < grid[1], at_row, 0).astype(np.int32)


def wanted_places(mask: Any, most_blocks: int | None) -> tuple[Any, Any]:
    """Rows and columns of the true elements of each mask, in order, padded to a length with the number of rows.

    Raises:
      BlockSparseError: the mask is traced and no length is given, or it is known and has more.
    """
    import jax.numpy as jnp

    known = is_known(mask)
    xp: Any = np if known else jnp
    rows, columns = mask.shape[-2:]
    flat = xp.asarray(mask, bool).reshape(*mask.shape[:-2], rows * columns)
    number = flat.sum(-1)
    if known:
        most = int(number.max(initial=0))
        if most_blocks is not None and most > most_blocks:
            raise BlockSparseError(f"the mask wants {most} blocks, above most_blocks={most_blocks}")
        most_blocks = most if most_blocks is None else most_blocks
    if most_blocks is None:
        raise BlockSparseError("the mask is traced: give most_blocks, the room in the list")
    order = np.argsort(~flat, kind="stable") if known else jnp.argsort(~flat)
    more = max(most_blocks - rows * columns, 0)
    place = xp.pad(order[..., :most_blocks], [(0, 0)] * (flat.ndim - 1) + [(0, more)])
    is_block = xp.arange(most_blocks) < number[..., None]
    at_row, at_column = xp.where(is_block, place // columns, rows), xp.where(is_block, place % columns, 0)
    return at_row.astype(np.int32), at_column.astype(np.int32)


def tiled(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of blocks.

    Raises:
      BlockSparseError: blocks do not tile the shape.
    """
    if len(shape) != 2 or 0 in block or shape[0] % block[0] or shape[1] % block[1]:
        raise BlockSparseError(
            f"blocks of {' × '.join(map(str, block))} do not tile a matrix of shape {list(shape)}; use a size that "
            "divides it, or pad the matrix"
        )
    return shape[0] // block[0], shape[1] // block[1]


def is_known(array: Any) -> bool:
    """Whether its values are there while a program is traced."""
    from jax.core import Tracer

    return not isinstance(array, Tracer)


def sorted_by_numpy(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The order in which blocks are sorted, None where they are, and rows and columns in this order.

    Raises:
      BlockSparseError: a place is outside of the grid, or two are the same.
    """
    rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
    is_block = rows != grid[0]
    outside = is_block & ((rows < 0) | (rows > grid[0]) | (columns < 0) | (columns >= grid[1]))
    if outside.any():
        at = tuple(np.argwhere(outside)[0])
        raise BlockSparseError(
            f"block {', '.join(map(str, at))} is at row {rows[at]} and column {columns[at]} of a matrix of "
            f"{grid[0]} × {grid[1]} blocks"
        )
    columns = np.where(is_block, columns, 0)
    number = rows * grid[1] + columns
    order = None
    if np.any(np.diff(number) < 0):
        order = np.argsort(number, kind="stable")
        rows, columns, number = (np.take_along_axis(one, order, -1) for one in (rows, columns, number))
    twice = (np.diff(number) == 0) & (rows[..., 1:] < grid[0])
    if twice.any():
        at = tuple(np.argwhere(twice)[0])
        raise BlockSparseError(f"two blocks are at row {rows[at]} and column {columns[at]}; add them up first")
    return order, rows.astype(np.int32), columns.astype(np.int32)


def sorted_by_jax(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The same of arrays that are traced. Nothing can be checked: what is no place counts as padding."""
    import jax.numpy as jnp

    rows, columns = jnp.asarray(rows, jnp.int32), jnp.asarray(columns, jnp.int32)
    is_block = (rows >= 0) & (rows < grid[0]) & (columns >= 0) & (columns < grid[1])
    rows, columns = jnp.where(is_block, rows, grid[0]), jnp.where(is_block, columns, 0)
    order = jnp.lexsort((columns, rows))
    return order, jnp.take_along_axis(rows, order, -1), jnp.take_along_axis(columns, order, -1)


def each_matrix(fn: Callable[..., Any], batch: tuple[int, ...]) -> Callable[..., Any]:
    """A function of one matrix, for all of a batch."""
    import jax

    for _ in batch:
        fn = jax.vmap(fn)
    return fn
