"""Places of blocks: lists of rows and columns that are checked, sorted, or made from a mask; each also with a batch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from systolic.ops.sparse.spec import BlockSparseError
from systolic.spec import LARGEST_SIZE


def places_by_columns(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Return the order of blocks by columns, and columns and rows in this order; padding follows them."""
    if is_known(rows) and is_known(columns):
        rows, columns, xp = np.asarray(rows), np.asarray(columns), np
    else:
        import jax.numpy as jnp

        xp = jnp
    columns = xp.where(rows < grid[0], columns, grid[1])
    order = xp.lexsort((rows, columns)).astype(np.int32)
    at_column, at_row = (xp.take_along_axis(numbers, order, -1) for numbers in (columns, rows))
    return order, at_column.astype(np.int32), xp.where(at_column < grid[1], at_row, 0).astype(np.int32)


def wanted_places(mask: Any, most_blocks: int | None) -> tuple[Any, Any]:
    """Return rows and columns of the true elements of each mask, in order, padded with the number of rows.

    Raises:
      BlockSparseError: the mask is not an array, the length no size; the mask is traced and no length is given,
        or it is known and has more.
    """
    import jax.numpy as jnp

    require_mask(mask)
    most_blocks = None if most_blocks is None else whole_number(most_blocks, "most_blocks", 0)
    is_static = is_known(mask)
    xp: Any = np if is_static else jnp
    rows, columns = mask.shape[-2:]
    flat = xp.asarray(mask, bool).reshape(*mask.shape[:-2], rows * columns)
    number = flat.sum(-1)
    if is_static:
        largest = int(number.max(initial=0))
        if most_blocks is not None and largest > most_blocks:
            raise BlockSparseError(f"the mask wants {largest} blocks, above most_blocks={most_blocks}")
        most_blocks = largest if most_blocks is None else most_blocks
    if most_blocks is None:
        raise BlockSparseError("the mask is traced: give most_blocks, the room in the list")
    order = np.argsort(~flat, kind="stable") if is_static else jnp.argsort(~flat)
    padding = max(most_blocks - rows * columns, 0)
    place = xp.pad(order[..., :most_blocks], [(0, 0)] * (flat.ndim - 1) + [(0, padding)])
    is_block = xp.arange(most_blocks) < number[..., None]
    at_row, at_column = xp.divmod(place, max(columns, 1))
    at_row, at_column = xp.where(is_block, at_row, rows), xp.where(is_block, at_column, 0)
    return at_row.astype(np.int32), at_column.astype(np.int32)


def whole_number(value: Any, name: str, least: int | None, largest: int | None = LARGEST_SIZE) -> int:
    """Return the value as an int; raise BlockSparseError unless it is a whole number within the limits."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise BlockSparseError(f"{name} is a {type(value).__name__}, not a whole number; use an int") from error
    if (least is not None and number < least) or (largest is not None and number > largest):
        shown = number if abs(number) < 2**64 else f"a number of {number.bit_length()} bits"
        raise BlockSparseError(f"{name}={shown}: it has to be from {least} to {largest}")
    return number


def two_sizes(value: Any, name: str, least: int) -> tuple[int, int]:
    """Return rows and columns as ints; raise BlockSparseError unless they are two whole numbers from `least` up."""
    try:
        sizes = tuple(value)
    except TypeError as error:
        raise BlockSparseError(f"{name} is a {type(value).__name__}; use a pair, as (512, 512)") from error
    if len(sizes) != 2:
        raise BlockSparseError(f"{name} has {len(sizes)} numbers; use two: rows and columns")
    rows, columns = (
        whole_number(size, f"{side} of {name}", least) for side, size in zip(("rows", "columns"), sizes, strict=True)
    )
    return rows, columns


def tiled(shape: Any, block: Any) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return shape and block as ints, and rows and columns of blocks; raise BlockSparseError if they do not fit."""
    shape, block = two_sizes(shape, "shape", 0), two_sizes(block, "block", 1)
    if shape[0] % block[0] or shape[1] % block[1]:
        raise BlockSparseError(
            f"blocks of {block[0]} × {block[1]} do not tile a matrix of shape {list(shape)}; use a size that "
            "divides it, or pad the matrix"
        )
    return shape, block, (shape[0] // block[0], shape[1] // block[1])


def require_array(array: Any, name: str, rank: int) -> None:
    """Raise BlockSparseError unless this is an array of NumPy or JAX with this many dimensions or more."""
    import jax

    if not isinstance(array, np.ndarray | jax.Array):
        raise BlockSparseError(f"{name} is a {type(array).__name__}, not an array; use np.asarray")
    if len(array.shape) < rank:
        raise BlockSparseError(f"{name} of shape {list(array.shape)}: it has to have {rank} dimensions or more")


def require_mask(mask: Any) -> None:
    """Raise BlockSparseError unless this is an array of booleans, or of numbers, true where not zero."""
    import jax.numpy as jnp

    require_array(mask, "mask", 2)
    if mask.dtype != bool and not jnp.issubdtype(mask.dtype, jnp.number):
        raise BlockSparseError(f"mask is {mask.dtype}; use booleans")


def sorted_places(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Return the order that sorts blocks, None where they are sorted, and rows and columns in this order.

    Places that are known are checked. A traced place outside of the grid is padding, and so is a traced block at the
    place of one before it.

    Raises:
      BlockSparseError: rows and columns are not arrays of integers of one shape; or they are known, and a place is
        outside of the grid, or two are the same.
    """
    import jax.numpy as jnp

    for name, array in (("rows", rows), ("columns", columns)):
        require_array(array, name, 1)
        if not jnp.issubdtype(array.dtype, jnp.integer) or array.dtype.itemsize > 8:
            raise BlockSparseError(f"{name} are {array.dtype}; use int32")
    if rows.shape != columns.shape:
        shapes = f"rows {list(rows.shape)}, columns {list(columns.shape)}"
        raise BlockSparseError(f"{shapes}: each block needs a row and a column")
    is_static = is_known(rows) and is_known(columns)
    return (_sorted_by_numpy if is_static else _sorted_by_jax)(rows, columns, grid)


def is_known(array: Any) -> bool:
    """True if an array's values are known while a program is traced."""
    from jax.core import Tracer

    return not isinstance(array, Tracer)


def _sorted_by_numpy(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
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
        rows, columns, number = (np.take_along_axis(numbers, order, -1) for numbers in (rows, columns, number))
    twice = (np.diff(number) == 0) & (rows[..., 1:] < grid[0])
    if twice.any():
        at = tuple(np.argwhere(twice)[0])
        raise BlockSparseError(f"two blocks are at row {rows[at]} and column {columns[at]}; add them up first")
    return order, rows.astype(np.int32), columns.astype(np.int32)


def _sorted_by_jax(rows: Any, columns: Any, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    import jax.numpy as jnp

    # Limits are compared before int64 loses bits, and after int8 has enough of them.
    rows, columns = (
        numbers if numbers.dtype.itemsize >= 4 else numbers.astype(np.int32)
        for numbers in map(jnp.asarray, (rows, columns))
    )
    is_block = (rows >= 0) & (rows < grid[0]) & (columns >= 0) & (columns < grid[1])
    rows = jnp.where(is_block, rows, grid[0]).astype(np.int32)
    columns = jnp.where(is_block, columns, 0).astype(np.int32)
    first = jnp.lexsort((columns, rows))
    rows, columns = (jnp.take_along_axis(numbers, first, -1) for numbers in (rows, columns))
    # A kernel has room for one block at each place of a line.
    again = (rows[..., 1:] == rows[..., :-1]) & (columns[..., 1:] == columns[..., :-1])
    again = jnp.pad(again, [(0, 0)] * (again.ndim - 1) + [(1, 0)]) if rows.shape[-1] else again
    rows, columns = jnp.where(again, grid[0], rows), jnp.where(again, 0, columns)
    order = jnp.argsort(rows, stable=True)
    rows, columns, order = (jnp.take_along_axis(numbers, order, -1) for numbers in (rows, columns, first))
    return order, rows, columns


def matrix_of(blocks: Any, rows: Any, columns: Any, grid: tuple[int, int]) -> Any:
    """Place blocks in a matrix of zeros; padding is dropped."""
    import jax.numpy as jnp

    block = blocks.shape[1:]
    shape = (grid[0] * block[0], grid[1] * block[1])
    if 0 in grid:  # JAX has no derivative of a scatter into nothing
        return jnp.zeros(shape, blocks.dtype)
    cut = jnp.zeros((*grid, *block), blocks.dtype).at[rows, columns].set(blocks, mode="drop")
    return cut.swapaxes(1, 2).reshape(shape)


def each_matrix(fn: Callable[..., Any], batch: tuple[int, ...]) -> Callable[..., Any]:
    """Return a function of one matrix, applied to all of a batch."""
    import jax

    for _ in batch:
        fn = jax.vmap(fn)
    return fn
