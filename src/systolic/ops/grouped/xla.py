"""Grouped products by XLA, with the same result for rows that no group has: zeros, whatever these rows hold."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.epilogue import apply_epilogue, as_dtype
from systolic.ops.grouped.codes import in_floats
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.spec import accumulator_dtype

ROWS_SUMMED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)


def product_by_xla(product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused) -> Array:
    rows = _Rows(lhs.shape[0], rhs.shape[0], grouping)
    blocks = 0 if fused.rhs_scale is None else fused.rhs_scale.shape[1]
    has_blocks = blocks > (2 if product.side_by_side or fused.up is not None else 1)
    if fused.lhs_scale is not None and (has_blocks or lhs.dtype != jnp.int8):
        lhs, fused = lhs.astype(jnp.float32) * fused.lhs_scale[:, None], fused._replace(lhs_scale=None)
    if has_blocks:
        rhs, fused = in_floats(product, lhs, rhs, fused)
    factors = (None if factor is None else factor.astype(lhs.dtype) for factor in (rhs, fused.up))
    total, up = (None if factor is None else _sum(product, lhs, factor, rows) for factor in factors)
    assert total is not None
    return finished(product, total, up, rows, fused)


def _sum(product: GroupedProduct, lhs: Array, rhs: Array, rows: _Rows) -> Array:
    rhs = rhs.swapaxes(1, 2) if product.transpose_rhs else rhs
    if 0 in (*lhs.shape, *rhs.shape):
        return jnp.zeros((lhs.shape[0], rhs.shape[2]), accumulator_dtype(lhs.dtype.name))
    total = lax.ragged_dot(
        rows.first_to_front(rows.owned(lhs)),
        rhs,
        rows.sizes,
        precision=lax.Precision[product.precision.upper()],
        preferred_element_type=jnp.dtype(accumulator_dtype(lhs.dtype.name)),
    )
    return rows.back_in_place(total)


def finished(product: GroupedProduct, total: Array, up: Array | None, rows: _Rows, fused: Fused) -> Array:
    """Return `activation(total + bias) · up · row_scale + residual` of the sums, times the scales of columns.

    Rows that no group has are zero, or unchanged. If both right-hand sides are one array, `total` has both sums side by
    side.
    """
    if product.side_by_side:
        total, up = jnp.split(total, 2, axis=1)
    if fused.rhs_scale is not None and rows.groups:
        scales = fused.rhs_scale[rows.group]
        total, up = total * scales[:, 0], None if up is None else up * scales[:, 1]
    if fused.lhs_scale is not None:
        scale = fused.lhs_scale[:, None]
        total, up = total * scale, None if up is None else up * scale
    out = apply_epilogue(
        total,
        product.dtype_out,
        bias=fused.bias[rows.group] if fused.bias is not None and rows.groups else None,
        activation=product.function,
        up=up,
        row_scale=None if fused.row_scale is None else fused.row_scale[:, None],
        residual=fused.residual,
    )
    return rows.owned(out, fused.existing_out)


def gradient_by_xla(product: GroupedProduct, groups: int, lhs: Array, cotangent: Array, grouping: Grouping) -> Array:
    rows = _Rows(lhs.shape[0], groups, grouping)
    if 0 in (*lhs.shape, *cotangent.shape, groups):
        return jnp.zeros((groups, lhs.shape[1], cotangent.shape[1]), product.dtype_out)
    total = lax.ragged_dot_general(
        rows.first_to_front(rows.owned(lhs)),
        rows.first_to_front(rows.owned(cotangent)),
        rows.sizes,
        ROWS_SUMMED,
        precision=lax.Precision[product.precision.upper()],
        preferred_element_type=jnp.dtype(accumulator_dtype(lhs.dtype.name)),
    )
    return as_dtype(total, product.dtype_out)


def rows_of(m: int, groups: int, grouping: Grouping) -> _Rows:
    return _Rows(m, groups, grouping)


def group_bounds(sizes: Array, m: int) -> Array:
    """Return the first row of each group and the end of the last: running sums that saturate at m.

    A plain sum of sizes near 2³¹ would overflow. Sizes below zero count as zero.
    """

    def saturated(left: Array, right: Array) -> Array:
        return left + jnp.minimum(right, m - left)

    return jnp.pad(lax.associative_scan(saturated, jnp.clip(sizes, 0, m)), (1, 0))


class _Rows:
    """The rows of the groups whose matrices are given; sizes below zero count as zero, later rows are left out."""

    def __init__(self, m: int, groups: int, grouping: Grouping) -> None:
        bounds = group_bounds(grouping.sizes, m)
        self.groups, self._shifted = groups, grouping.offset is not None
        if grouping.offset is not None:
            # Matrices without a group meet no rows: both their bounds are the first or the last row.
            bounds = bounds[jnp.clip(grouping.offset[0] + jnp.arange(groups + 1), 0, grouping.sizes.shape[0])]
        starts, ends = bounds[:-1], bounds[1:]
        self.sizes = ends - starts
        number = jnp.arange(m, dtype=ends.dtype)
        if groups:
            self._begin = starts[0]
            self._mine = (number >= starts[0]) & (number < ends[-1])
            self.group = jnp.clip(jnp.searchsorted(ends, number, side="right"), 0, groups - 1)
        else:
            self._begin, self._mine, self.group = 0, jnp.zeros(m, bool), number

    def owned(self, array: Array, others: Array | None = None) -> Array:
        """Return an array with zeros, or rows of another one, in rows that none of the groups has."""
        return jnp.where(self._mine[:, None], array, jnp.zeros_like(array) if others is None else others)

    def first_to_front(self, array: Any) -> Any:
        """Return rows with the first group's at the beginning, where `lax.ragged_dot` expects them."""
        return jnp.roll(array, -self._begin, axis=0) if self._shifted else array

    def back_in_place(self, array: Any) -> Any:
        return jnp.roll(array, self._begin, axis=0) if self._shifted else array
