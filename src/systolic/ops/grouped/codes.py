"""Quantized right-hand sides: codes with a scale for each group and column, which the kernel multiplies as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from systolic.ops.grouped.product import Fused, GroupedProduct
from systolic.ops.grouped.spec import GroupedSpec
from systolic.ops.quantized.arguments import is_quantized
from systolic.ops.quantized.array import Quantized, from_qwix, require_quantized
from systolic.spec import SpecError

# Codes that the kernel widens: exact in bfloat16, by few operations.
KERNEL_DTYPES = ("int8",)


class Weights(NamedTuple):
    """Right-hand sides in the dtype of the rows, or codes of one of `KERNEL_DTYPES`."""

    rhs: Any
    up: Any
    scale: Array | None  # float32 [groups, sides, columns], of codes


def weights_of(rhs: Any, up: Any, lhs: Array, *, transpose_rhs: bool) -> Weights:
    """Return codes and scales if the kernel takes them, else quantized sides in floats. Codes are constants.

    Raises:
      SpecError: rows next to codes are no floats of 16 or 32 bits.
      QuantizationError: the arrays were cast or cut so that they are not codes and scales.
    """
    sides = [(name, value) for name, value in (("rhs", rhs), ("up", up)) if value is not None]
    quantized = [constant_codes(value) if is_quantized(value) else value for _, value in sides]
    for (name, _), value in zip(sides, quantized, strict=True):
        if isinstance(value, Quantized) and lhs.dtype not in (jnp.bfloat16, jnp.float32):
            raise SpecError(
                f"lhs is {lhs.dtype.name}; next to {name}, which is quantized, it has to be bfloat16 or float32"
            )
    all_scales = [_column_scales(value, 2 if transpose_rhs else 1) for value in quantized]
    scales = [scale for scale in all_scales if scale is not None]
    if len(scales) < len(all_scales) or len({(value.shape, value.dtype) for value in quantized}) > 1:
        floats = [value.dequantize(lhs.dtype) if isinstance(value, Quantized) else value for value in quantized]
        return Weights(floats[0], None if up is None else floats[1], None)
    codes = [value.values for value in quantized]
    return Weights(codes[0], None if up is None else codes[1], jnp.stack(scales, axis=1))


def constant_codes(value: Any) -> Quantized:
    """Return a `Quantized` or a QArray whose codes have no derivative; raise QuantizationError as `weights_of`."""
    array = value if isinstance(value, Quantized) else from_qwix(value)
    require_quantized(array)
    return Quantized(lax.stop_gradient(jnp.asarray(array.values)), jnp.asarray(array.scales))


def _column_scales(value: Any, k_axis: int) -> Array | None:
    """Return the scale of each group and column, [groups, n]; None where the kernel does not take the array."""
    if not isinstance(value, Quantized) or value.dtype.name not in KERNEL_DTYPES:
        return None
    if value.ndim != 3 or 0 in value.shape or value.scales.shape[k_axis] != 1:
        return None
    columns_shape = [size for axis, size in enumerate(value.shape) if axis != k_axis]
    scales = jnp.squeeze(value.scales, k_axis).astype(jnp.float32)
    for axis, size in enumerate(columns_shape):
        if scales.shape[axis] != size:
            scales = jnp.repeat(scales, size // scales.shape[axis], axis=axis)
    return scales


def in_floats(product: GroupedProduct | GroupedSpec, lhs: Array, rhs: Array, fused: Fused) -> tuple[Array, Fused]:
    """Return the right-hand sides in the dtype of lhs, and the fused arrays without scales."""

    def floats(codes: Array, scale: Array) -> Array:
        scale = jnp.expand_dims(scale, 2 if product.transpose_rhs else 1)
        return (codes.astype(jnp.float32) * scale).astype(lhs.dtype)

    scale = fused.rhs_scale
    first = jnp.concatenate([scale[:, 0], scale[:, 1]], axis=1) if product.side_by_side else scale[:, 0]
    up = None if fused.up is None else floats(fused.up, scale[:, 1])
    return floats(rhs, first), fused._replace(up=up, rhs_scale=None)
