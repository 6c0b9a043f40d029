"""Check the arguments of `grouped_matmul`, and bring them into canonical form."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import common_dtype, fused_array, given_dtype, operand, result_dtype, stored_dtype
from systolic.ops.engine.precision import precision_named
from systolic.ops.engine.shapes import WHOLE_BLOCK_COLUMNS
from systolic.ops.grouped.codes import quantized_rows, weights_of
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.quantized.arguments import is_quantized
from systolic.spec import SpecError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    product: GroupedProduct
    lhs: Array
    rhs: Array
    grouping: Grouping
    fused: Fused
    dtype: str  # that the caller expects

    @property
    def is_plain(self) -> bool:
        single = not self.product.side_by_side
        return single and not self.product.activation and all(array is None for array in self.fused)


def canonical(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *,
    group_offset: Any,
    up: Any,
    side_by_side: bool,
    bias: Any,
    activation: Any,
    row_scale: Any,
    residual: Any,
    existing_out: Any,
    transpose_rhs: bool,
    quantize_lhs: Any,
    precision: Any,
    preferred_element_type: Any,
    rows_per_group: int | None,
    backend: Backend,
) -> Call:
    """Check the arguments; raise SpecError for shapes, dtypes or known sizes of groups that do not match."""
    left, given_rhs = _matrix(lhs, "lhs", 2), rhs
    rhs, up, rhs_scale = weights_of(
        rhs, up, left, transpose_rhs=transpose_rhs, side_by_side=side_by_side, chip=backend.chip
    )
    right = _matrix(rhs, "rhs", 3) if rhs_scale is None else rhs
    (m, k), (groups, inner, n) = left.shape, right.shape
    inner, n = (n, inner) if transpose_rhs else (inner, n)
    shapes = f"lhs{list(left.shape)}, rhs{list(right.shape)}{' transposed' if transpose_rhs else ''}"
    if k != inner:
        raise SpecError(f"{shapes}: k={k} and {inner}; the inner sizes have to agree: check transpose_rhs")
    if side_by_side:
        n, rest = divmod(n, 2)
        if rest or up is not None:
            raise SpecError(f"{shapes} and side_by_side: it needs an even number of columns, and no up")
        rhs_scale = None if rhs_scale is None else jnp.concatenate(jnp.split(rhs_scale, 2, axis=2), axis=1)
        if n % WHOLE_BLOCK_COLUMNS:
            right, up = jnp.split(right, 2, axis=1 if transpose_rhs else 2)
            side_by_side = False
    second = None if up is None else up if rhs_scale is not None else _matrix(up, "up", 3)
    if second is not None and (second.shape, second.dtype) != (right.shape, right.dtype):
        shapes += f" {right.dtype.name}, up{list(second.shape)} {second.dtype.name}"
        raise SpecError(f"{shapes}; up needs the shape and dtype of rhs")
    # The kernel multiplies one dtype: the other operand is converted before it.
    dtype = common_dtype(left.dtype.name, right.dtype.name) if rhs_scale is None else left.dtype.name
    left = left.astype(dtype)
    if rhs_scale is None:
        right, second = right.astype(dtype), None if second is None else second.astype(dtype)
    row_format = None
    if quantize_lhs is not None:
        if not any(map(is_quantized, (given_rhs, up))):
            raise SpecError(f"quantize_lhs={quantize_lhs!r} without quantized matrices; leave it out")
        left, row_format = quantized_rows(left, quantize_lhs, right, rhs_scale, backend.chip)
    sizes = _sizes(group_sizes, m)
    group_count = sizes.shape[0]
    if group_count < groups or (group_offset is None and group_count != groups):
        raise SpecError(
            f"{group_count} group_sizes for {groups} matrices of rhs; there has to be one for each, "
            "or with group_offset at least as many"
        )
    offset = None if group_offset is None else _offset(group_offset, group_count, groups)
    if rows_per_group is not None and operator.index(rows_per_group) < 1:
        raise SpecError(f"rows_per_group={rows_per_group}; use a number from 1 up, or leave it out")
    name, function = activation_of(activation, in_kernel=backend.in_kernel)
    stored = given_dtype(lhs, "lhs")
    dtypes = (stored, given_dtype(rhs, "rhs") if rhs_scale is None else stored)
    dtype_out = result_dtype((dtype, dtype), dtypes, preferred_element_type)
    if preferred_element_type is None and dtype_out == "int32" and (side_by_side or second is not None):
        dtype_out = "float32"
    product = GroupedProduct(
        backend=backend,
        precision=precision_named(precision),
        dtype_out=stored_dtype(dtype_out),
        rows_per_group=rows_per_group or max(-(-m // max(group_count, 1)), 1),
        transpose_rhs=transpose_rhs,
        side_by_side=side_by_side,
        quantize_lhs=row_format,
        activation=name,
        function=function,
    )
    existing = _beside(existing_out, "existing_out", (m, n))
    fused = Fused(
        bias=_beside(bias, "bias", (groups, n)),
        row_scale=_beside(row_scale, "row_scale", (m,)),
        up=second,
        residual=_beside(residual, "residual", (m, n)),
        existing_out=None if existing is None else existing.astype(product.dtype_out),
        rhs_scale=rhs_scale,
    )
    grouping = Grouping(sizes, offset)
    return Call(product=product, lhs=left, rhs=right, grouping=grouping, fused=fused, dtype=dtype_out)


def _matrix(value: Any, name: str, dimensions: int) -> Array:
    array = operand(value, name)
    if array.ndim != dimensions:
        raise SpecError(f"{name} of shape {list(array.shape)} has to have {dimensions} dimensions")
    return array


def _sizes(value: Any, m: int) -> Array:
    dtype = given_dtype(value, "group_sizes")
    if not jnp.issubdtype(dtype, jnp.integer) or len(value.shape) != 1:
        raise SpecError(f"group_sizes is {dtype} of shape {list(value.shape)}; use a vector of int32")
    if not isinstance(value, Tracer):
        sizes = np.asarray(value).tolist()  # of Python, whose sums do not overflow
        if sizes and min(sizes) < 0:
            raise SpecError(f"group_sizes has {min(sizes)}; a group has 0 rows or more")
        if sum(sizes) > m:
            raise SpecError(
                f"group_sizes add up to {sum(sizes)} rows, more than the {m} of lhs; use the number of rows of each "
                "group, not where groups end, or pad lhs"
            )
    # An int32 offset needs no operation before the kernel, which clips it.
    return jnp.asarray(value) if dtype == "int32" else _clipped(value, dtype, 0, m)


def _offset(value: Any, all_groups: int, groups: int) -> Array:
    """Check a `group_offset`. A traced offset out of range becomes the nearest at which `rhs` has no group."""
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    if is_array:
        dtype = given_dtype(value, "group_offset")
        is_number = value.shape == () and jnp.issubdtype(dtype, jnp.integer)
        shown = f"{dtype} of shape {list(value.shape)}"
    else:
        dtype, is_number, shown = "int32", isinstance(value, int) and not isinstance(value, bool), repr(value)
    if not is_number:
        raise SpecError(f"group_offset is {shown}; use the number of a group, an integer without dimensions")
    if not isinstance(value, Tracer) and not 0 <= int(value) <= all_groups - groups:
        raise SpecError(
            f"group_offset={int(value)}: rhs has {groups} of {all_groups} groups; use a number from 0 to "
            f"{all_groups - groups}"
        )
    return _clipped(value, dtype, -groups, all_groups).reshape(1)


def _clipped(value: Any, dtype: str, low: int, high: int) -> Array:
    """Return integers of any dtype as int32, clipped to two numbers that it holds."""
    limits = jnp.iinfo(dtype)
    return jnp.clip(jnp.asarray(value, dtype), max(low, limits.min), min(high, limits.max)).astype(jnp.int32)


def _beside(value: Any, name: str, shape: tuple[int, ...]) -> Array | None:
    if value is None:
        return None
    array = fused_array(value, name)
    if array.shape != shape:
        raise SpecError(f"{name} of shape {list(array.shape)}; it has to be {list(shape)}")
    return array
