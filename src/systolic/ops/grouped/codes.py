"""Quantized right-hand sides: codes with scales for each group and column, which the kernel multiplies as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.grouped.product import Fused, GroupedProduct
from systolic.ops.grouped.spec import GroupedSpec, multiplies_codes, reads_codes, shared_columns
from systolic.ops.quantized.arguments import is_quantized, row_format_named
from systolic.ops.quantized.array import Quantized, from_qwix, require_quantized
from systolic.ops.quantized.quantize import fake_quantize
from systolic.spec import SpecError


class Weights(NamedTuple):
    """Right-hand sides in the dtype of the rows, or codes that the kernel reads."""

    rhs: Any
    up: Any
    scale: Array | None  # float32 [groups, sides · blocks of k, columns or columns / 128], of codes


def weights_of(rhs: Any, up: Any, lhs: Array, *, transpose_rhs: bool, side_by_side: bool, chip: Chip | None) -> Weights:
    """Return codes and scales if the kernel takes them, else quantized sides in floats. Codes are constants.

    Args:
      chip: that runs the kernel; None: XLA computes the product.

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
    k_axis, sides = 2 if transpose_rhs else 1, 2 if side_by_side else 1
    all_scales = [_column_scales(value, k_axis, sides, chip) for value in quantized]
    scales = [scale for scale in all_scales if scale is not None]
    forms = {(value.shape, value.dtype, scale.shape) for value, scale in zip(quantized, scales, strict=False)}
    if len(scales) < len(all_scales) or len(forms) > 1:
        floats = [value.dequantize(lhs.dtype) if isinstance(value, Quantized) else value for value in quantized]
        return Weights(floats[0], None if up is None else floats[1], None)
    codes = [value.values for value in quantized]
    return Weights(codes[0], None if up is None else codes[1], jnp.concatenate(scales, axis=1))


def quantized_rows(
    lhs: Array, name: Any, rhs: Array, scale: Array | None, chip: Chip | None
) -> tuple[Array, str | None]:
    """Return rows and the format to which they are to be quantized; None: they are rounded to it here, in floats.

    Args:
      scale: of rhs, if it holds codes.

    Raises:
      QuantizationError: rows are not quantized to this format.
    """
    row_format = row_format_named(name)
    codes = None if scale is None or explicit_mesh([lhs, rhs]) is not None else rhs.dtype.name
    if codes is not None and multiplies_codes(row_format, codes, lhs.shape[1], chip):
        return lhs, row_format
    return fake_quantize(lhs, row_format, axis=-1), None


def constant_codes(value: Any) -> Quantized:
    """Return a `Quantized` or a QArray whose codes have no derivative; raise QuantizationError as `weights_of`."""
    array = value if isinstance(value, Quantized) else from_qwix(value)
    require_quantized(array)
    return Quantized(lax.stop_gradient(jnp.asarray(array.values)), jnp.asarray(array.scales))


def _column_scales(value: Any, k_axis: int, sides: int, chip: Chip | None) -> Array | None:
    """Return the scales of blocks of k, [groups, blocks, n or n / 128]; None if the kernel does not take the array.

    With several blocks of k, arrays of a mesh with explicit axes are not taken: what cuts k would have to cut scales.
    """
    if not isinstance(value, Quantized) or value.ndim != 3 or 0 in value.shape:
        return None
    blocks = value.scales.shape[k_axis]
    if not reads_codes(value.dtype.name, value.shape[k_axis], value.blocks[k_axis], chip):
        return None
    if blocks > 1 and explicit_mesh([value.values, value.scales]) is not None:
        return None
    scales = jnp.moveaxis(value.scales, k_axis, 1).astype(jnp.float32)
    n = value.shape[3 - k_axis]
    columns = shared_columns(n // sides, value.blocks[3 - k_axis]) if blocks > 1 else 1
    for axis, size in ((0, value.shape[0]), (2, n // columns)):
        if scales.shape[axis] != size:
            scales = jnp.repeat(scales, size // scales.shape[axis], axis=axis)
    return scales


def in_floats(product: GroupedProduct | GroupedSpec, lhs: Array, rhs: Array, fused: Fused) -> tuple[Array, Fused]:
    """Return the right-hand sides in the dtype of lhs, and the fused arrays without scales."""
    k_axis = 2 if product.transpose_rhs else 1

    def floats(codes: Array, scale: Array) -> Array:
        if scale.shape[1] > 1:
            scale = jnp.repeat(scale, codes.shape[k_axis] // scale.shape[1], axis=1)
            scale = jnp.repeat(scale, codes.shape[3 - k_axis] // scale.shape[2], axis=2)
        return (codes.astype(jnp.float32) * jnp.moveaxis(scale, 1, k_axis)).astype(lhs.dtype)

    gate, up_scale = sides_of(fused.rhs_scale, 2 if product.side_by_side or fused.up is not None else 1)
    first = jnp.concatenate([gate, up_scale], axis=2) if product.side_by_side else gate
    up = None if fused.up is None else floats(fused.up, up_scale)
    return floats(rhs, first), fused._replace(up=up, rhs_scale=None)


def sides_of(scale: Array, sides: int) -> tuple[Array, Array]:
    """Return the scales of the first and the last side, [groups, blocks, n] each."""
    blocks = scale.shape[1] // sides
    return scale[:, :blocks], scale[:, -blocks:]
