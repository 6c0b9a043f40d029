"""What `grouped_matmul` was given: checked, and brought into the one form that the rest works on."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from systolic.ops.dtypes import fused_array, given_dtype, operand, result_dtype
from systolic.ops.epilogue import activation_of
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.matmul.arguments import precision_named
from systolic.ops.matmul.product import Backend
from systolic.spec import SpecError

_DTYPES = ("float32", "bfloat16", "int8")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in canonical form."""

    product: GroupedProduct
    lhs: Array
    rhs: Array
    grouping: Grouping
    fused: Fused
    dtype: str  # that the caller expects

    @property
    def is_plain(self) -> bool:
        """Whether the sum is only cast."""
        return not self.product.activation and self.fused.bias is None and self.fused.row_scale is None


def canonical(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *,
    group_offset: Any,
    bias: Any,
    activation: Any,
    row_scale: Any,
    transpose_rhs: bool,
    precision: Any,
    preferred_element_type: Any,
    rows_per_group: int | None,
    backend: Backend,
) -> Call:
    """Checks everything.

    Raises:
      SpecError: shapes or dtypes that do not go together, known sizes of groups that are above m together.
    """
    left, right = _matrix(lhs, "lhs", 2), _matrix(rhs, "rhs", 3)
    (m, k), (groups, inner, n) = left.shape, right.shape
    inner, n = (n, inner) if transpose_rhs else (inner, n)
    said = f"lhs{list(left.shape)}, rhs{list(right.shape)}{' transposed' if transpose_rhs else ''}"
    if k != inner:
        raise SpecError(f"{said}: k={k} and {inner}; the inner sizes have to agree: check transpose_rhs")
    if left.dtype != right.dtype:
        raise SpecError(f"lhs is {left.dtype.name}, rhs {right.dtype.name}; grouped_matmul takes one dtype: cast one")
    sizes = _sizes(group_sizes, m)
    offset = None if group_offset is None else jnp.asarray(group_offset, jnp.int32).reshape(1)
    every = sizes.shape[0]
    if every < groups or (offset is None and every != groups):
        raise SpecError(
            f"{every} group_sizes for {groups} matrices of rhs; there has to be one for each, or with group_offset at "
            "least as many"
        )
    if rows_per_group is not None and operator.index(rows_per_group) < 1:
        raise SpecError(f"rows_per_group={rows_per_group}; use a number from 1 up, or leave it out")
    name, function = activation_of(activation, in_kernel=backend.implementation != "xla" and bool(backend.chip))
    dtype = left.dtype.name
    named = precision_named(precision)
    if named == "high":
        raise SpecError("precision='high' is not there for groups; use default or highest")
    dtype_out = result_dtype((dtype, dtype), (given_dtype(lhs, "lhs"), given_dtype(rhs, "rhs")), preferred_element_type)
    product = GroupedProduct(
        backend=backend,
        precision=named,
        dtype_out="float32" if dtype_out == "float16" else dtype_out,  # which a kernel cannot store
        rows_per_group=rows_per_group or max(-(-m // max(every, 1)), 1),
        transpose_rhs=transpose_rhs,
        activation=name,
        function=function,
    )
    fused = Fused(bias=_beside(bias, "bias", (groups, n)), row_scale=_beside(row_scale, "row_scale", (m,)))
    grouping = Grouping(sizes, offset)
    return Call(product=product, lhs=left, rhs=right, grouping=grouping, fused=fused, dtype=dtype_out)


def _matrix(value: Any, name: str, dimensions: int) -> Array:
    array = operand(value, name)
    if array.ndim != dimensions:
        raise SpecError(f"{name} of shape {list(array.shape)} has to have {dimensions} dimensions")
    if array.dtype.name not in _DTYPES:
        raise SpecError(f"{name} is {array.dtype.name}; grouped_matmul takes {', '.join(_DTYPES)}")
    return array


def _sizes(value: Any, m: int) -> Array:
    dtype = given_dtype(value, "group_sizes")
    if not jnp.issubdtype(dtype, jnp.integer) or len(value.shape) != 1:
        raise SpecError(f"group_sizes is {dtype} of shape {list(value.shape)}; use a vector of int32")
    if not isinstance(value, Tracer):
        total = int(np.asarray(value, np.int64).clip(0).sum())
        if total > m:
            raise SpecError(f"group_sizes are {total} rows together, lhs has m={m}")
    return jnp.asarray(value).astype(jnp.int32)


def _beside(value: Any, name: str, shape: tuple[int, ...]) -> Array | None:
    if value is None:
        return None
    array = fused_array(value, name)
    if array.shape != shape:
        raise SpecError(f"{name} of shape {list(array.shape)}; it has to be {list(shape)}")
    return array
