"""Block-sparse products by XLA: operands gathered for each block, a batch of products, and sums over lines."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.epilogue import apply_epilogue, as_dtype
from systolic.ops.sparse.places import matrix_of
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.spec import accumulator_dtype


def product_by_xla(product: SparseProduct, blocks: Array, dense: Array, bias: Any, places: Places) -> Array:
    """Compute the sparse matrix times a dense one, or a dense one times it, and the epilogue."""
    grid, block, lines, block_places = product.grid, product.block, places.rows, places.columns
    if product.transpose_sparse:
        is_padding = places.rows >= product.grid[0]
        lines, block_places = jnp.where(is_padding, product.grid[1], block_places), jnp.where(is_padding, 0, lines)
        grid, block, blocks = grid[::-1], block[::-1], blocks.mT
    (grid_rows, grid_columns), (rows, columns) = grid, block
    # A sum for a line past the end belongs to padding and is dropped.
    if product.kind == "dsd":
        if 0 in grid:
            return finished(product, _zeros(blocks, (grid_rows * rows, dense.shape[1])), bias)
        cut = dense.reshape(grid_columns, columns, dense.shape[1])
        total = jax.ops.segment_sum(_dots(product, blocks, cut[block_places]), lines, grid_rows)
        return finished(product, total.reshape(grid_rows * rows, dense.shape[1]), bias)
    if 0 in grid:
        return finished(product, _zeros(blocks, (dense.shape[0], grid_columns * columns)), bias)
    cut = dense.reshape(dense.shape[0], grid_rows, rows).swapaxes(0, 1)
    at_row, at_column = jnp.minimum(lines, grid_rows - 1), jnp.where(lines < grid_rows, block_places, grid_columns)
    total = jax.ops.segment_sum(_dots(product, cut[at_row], blocks), at_column, grid_columns)
    return finished(product, total.swapaxes(0, 1).reshape(dense.shape[0], grid_columns * columns), bias)


def finished(product: SparseProduct, total: Array, bias: Any) -> Array:
    return apply_epilogue(total, product.dtype_out, bias=bias, activation=product.function)


def sampled_by_xla(product: SparseProduct, lhs: Array, rhs: Array, places: Places) -> Array:
    """Return blocks of `lhs @ rhs`, zero for padding; or a whole matrix of them."""
    (grid_rows, grid_columns), (rows, columns) = product.grid, product.block
    if 0 in product.grid:
        shape = product.shape if product.dense_out else (len(places.rows), rows, columns)
        return jnp.zeros(shape, product.dtype_out)
    cut_lhs = lhs.reshape(grid_rows, rows, lhs.shape[1])
    if product.transpose_rhs:
        cut_rhs = rhs.reshape(grid_columns, columns, rhs.shape[1]).swapaxes(1, 2)
    else:
        cut_rhs = rhs.reshape(rhs.shape[0], grid_columns, columns).swapaxes(0, 1)
    at_row = jnp.minimum(places.rows, grid_rows - 1)
    products = as_dtype(_dots(product, cut_lhs[at_row], cut_rhs[places.columns]), product.dtype_out)
    if product.dense_out:
        return dense_of(product, products, places)
    return jnp.where((places.rows < grid_rows)[:, None, None], products, jnp.zeros_like(products))


def dense_of(product: SparseProduct, blocks: Array, places: Places) -> Array:
    """Return a matrix of blocks, zero elsewhere and outside the band."""
    dense = matrix_of(blocks, places.rows, places.columns, product.grid)
    return jnp.where(in_band(product), dense, jnp.zeros_like(dense))


def blocks_of(product: SparseProduct, dense: Array, places: Places) -> Array:
    (grid_rows, grid_columns), (rows, columns) = product.grid, product.block
    if 0 in product.grid:
        return jnp.zeros((len(places.rows), rows, columns), dense.dtype)
    dense = jnp.where(in_band(product), dense, jnp.zeros_like(dense))
    cut = dense.reshape(grid_rows, rows, grid_columns, columns).swapaxes(1, 2)
    return cut[jnp.minimum(places.rows, grid_rows - 1), places.columns]


def in_band(product: SparseProduct) -> Array:
    """Return which elements of the result are between the diagonals; all if there are none."""
    if product.lower is None and product.upper is None:
        return jnp.array(True)
    rows, columns = (lax.broadcasted_iota(jnp.int32, product.shape, axis) for axis in (0, 1))
    within = jnp.array(True)
    if product.lower is not None:
        within &= columns - rows >= product.lower
    return within if product.upper is None else within & (columns - rows <= product.upper)


def _zeros(blocks: Array, shape: tuple[int, int]) -> Array:
    return jnp.zeros(shape, accumulator_dtype(blocks.dtype.name))


def _dots(product: SparseProduct, lhs: Array, rhs: Array) -> Array:
    return lax.dot_general(
        lhs,
        rhs,
        (((2,), (1,)), ((0,), (0,))),
        precision=lax.Precision[product.precision.upper()],
        preferred_element_type=jnp.dtype(accumulator_dtype(lhs.dtype.name)),
    )
