"""Places of blocks: lists of rows and columns that are checked, sorted, or made of a mask."""

from __future__ import annotations

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
    at_column, at_row = columns[order], rows[order]
    return order, at_column.astype(np.int32), xp.where(at_column < grid[1], at_row, 0).astype(np.int32)


def wanted_places(mask: Any, most_blocks: int | None) -> tuple[Any, Any]:
    """Rows and columns of the true elements of a mask, in order, padded to a length with the number of rows.

    Raises:
      BlockSparseError: the mask is traced and no length is given, or it is known and has more.
    """
    if is_known(mask):
        rows, columns = (each.astype(np.int32) for each in np.nonzero(np.asarray(mask)))
        more = 0 if most_blocks is None else most_blocks - len(rows)
        if more < 0:
            raise BlockSparseError(f"the mask wants {len(rows)} blocks, above most_blocks={most_blocks}")
        return np.pad(rows, (0, more), constant_values=mask.shape[0]), np.pad(columns, (0, more))
    if most_blocks is None:
        raise BlockSparseError("the mask is traced: give most_blocks, the room in the list")
    import jax.numpy as jnp

    rows, columns = jnp.nonzero(mask, size=most_blocks, fill_value=(mask.shape[0], 0))
    return rows.astype(jnp.int32), columns.astype(jnp.int32)


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
        at = int(np.argmax(outside))
        raise BlockSparseError(
            f"block {at} is at row {rows[at]} and column {columns[at]} of a matrix of {grid[0]} × {grid[1]} blocks"
        )
    columns = np.where(is_block, columns, 0)
    number = rows * grid[1] + columns
    order = None
    if np.any(np.diff(number) < 0):
        order = np.argsort(number, kind="stable")
        rows, columns, number = rows[order], columns[order], number[order]
    twice = (np.diff(number) == 0) & (rows[1:] < grid[0])
    if twice.any():
        at = int(np.argmax(twice))
        raise BlockSparseError(f"two blocks are at row {rows[at]} and column {columns[at]}; add them up first")
    return order, rows.astype(np.int32), columns.astype(np.int32)


def sorted_by_jax(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The same of arrays that are traced. Nothing can be checked: what is no place counts as padding."""
    import jax.numpy as jnp

    rows, columns = jnp.asarray(rows, jnp.int32), jnp.asarray(columns, jnp.int32)
    is_block = (rows >= 0) & (rows < grid[0]) & (columns >= 0) & (columns < grid[1])
    rows, columns = jnp.where(is_block, rows, grid[0]), jnp.where(is_block, columns, 0)
    order = jnp.lexsort((columns, rows))
    return order, rows[order], columns[order]
