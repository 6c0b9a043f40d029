"""`systolic.quantize` and `systolic.dequantize`. JAX is imported by their first call."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from systolic.ops.quantized.array import Quantized, split_shape
from systolic.spec.formats import LARGEST, QuantizationError, format_named

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jax.typing import ArrayLike, DTypeLike
    from jaxtyping import Float, Shaped

# Ranges that the search tries in addition to 1, as shares of the largest magnitude.
_SEARCHED = tuple(share / 32 for share in range(31, 15, -1))


def quantize(
    x: Float[Array | np.ndarray, "*batch rows columns"],
    dtype: DTypeLike = "int8",
    *,
    axis: int | Sequence[int] | None = -2,
    block: int | Sequence[int] | None = None,
    largest: ArrayLike | None = None,
    search: bool = False,
    scale_dtype: DTypeLike = "float32",
) -> Quantized:
    """Return `x` as values of a few bits and a scale for each block: `values = round(x / scale)`, ties to even.

    A scale is the largest magnitude of its block over the largest number of the format: 127 of int8, 7 of int4, 448 of
    float8_e4m3fn, 57344 of float8_e5m2, 30 of float8_e4m3b11fnuz, 6 of float4_e2m1fn. So `values · scale` is
    at most scale / 2 away from x for integers.

    Numbers out of range saturate, which happens only with `largest` or `search`. A block of zeros, or of numbers so
    small that their scale would not be a normal float32 number, has the scale 1. A block with a NaN or an infinity has
    the scale NaN and is NaN when it is dequantized; but with `largest` infinity saturates.

    Args:
      x: floats, in any number of dimensions.
      dtype: int8, int4, or a float of 8 or 4 bits, by its name or a short one: e4m3, e5m2, e4m3b11, fp4.
      axis: axis or axes along which values share a scale; None: all axes. Default: along k of a right-hand side, so
        that each column has a scale.
      block: number of values along `axis` that share a scale; None: all. One number for each axis.
      largest: the magnitude that becomes the format's largest number, in place of the block's largest: one number, or
        one for each block, in the shape of the scales.
      search: try smaller ranges, down to half, and keep for each block the range with the least squared error.
      scale_dtype: float32 or bfloat16. The values are rounded with the scale as it is stored.

    Raises:
      QuantizationError: no such format or axis, a block that does not divide its axis, or `x` holds no floats.
    """
    import jax.numpy as jnp

    name = format_named(dtype)
    scale_name = jnp.dtype(scale_dtype).name
    if isinstance(x, Quantized) or not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
        held = "a Quantized" if isinstance(x, Quantized) else getattr(x, "dtype", type(x).__name__)
        raise QuantizationError(f"x is {held}; quantize takes arrays of floats")
    if scale_name not in ("float32", "bfloat16"):
        raise QuantizationError(f"scale_dtype={scale_name}; use float32 or bfloat16")
    blocks = _blocks(tuple(x.shape), axis, block)
    # Values and scales of one block lie along the odd dimensions of this.
    parted = jnp.asarray(x).astype(jnp.float32).reshape(split_shape(x.shape, blocks))
    within = tuple(range(1, parted.ndim, 2))
    grid = tuple(size // max(block, 1) for size, block in zip(x.shape, blocks, strict=True))
    if largest is None:
        reach = jnp.max(jnp.abs(parted), axis=within, keepdims=True, initial=0.0)
        not_finite = ~jnp.isfinite(parted)
    else:
        largest_array = jnp.asarray(largest, jnp.float32)
        if largest_array.ndim and largest_array.shape != grid:
            shapes = f"{list(largest_array.shape)}; use one number, or the scales' {list(grid)}"
            raise QuantizationError(f"largest of shape {shapes}")
        reach = jnp.broadcast_to(largest_array, grid).reshape(split_shape(grid, (1,) * len(grid)))
        not_finite = jnp.isnan(parted)
    # Checked separately: a maximum need not be NaN if one of many numbers is.
    reach = jnp.where(jnp.any(not_finite, axis=within, keepdims=True), jnp.nan, reach)
    as_format = functools.partial(_rounded, name=name, scale_name=scale_name)
    values, scales = as_format(parted, reach)
    if search:
        least_error = _error(parted, values, scales, within)
        for share in _SEARCHED:
            tried, tried_scales = as_format(parted, reach * share)
            error = _error(parted, tried, tried_scales, within)
            better = error < least_error
            values, scales = jnp.where(better, tried, values), jnp.where(better, tried_scales, scales)
            least_error = jnp.where(better, error, least_error)
    return Quantized(values.astype(name).reshape(x.shape), scales.astype(scale_name).reshape(grid))


def dequantize(x: Quantized, dtype: DTypeLike = "float32") -> Shaped[Array, ...]:
    """Return `values · scales`, in float32, rounded once to `dtype`.

    Raises:
      QuantizationError: the arrays were cast or cut so that they are not codes and scales.
    """
    return x.dequantize(dtype)


def fake_quantize(x: Float[Array, ...], dtype: DTypeLike = "int8", **keywords: Any) -> Float[Array, ...]:
    """Quantize and dequantize `x`, with the derivative of `x`, for training.

    The derivative ignores the rounding and saturation (straight-through estimator). The arguments are as in `quantize`.

    Raises:
      QuantizationError: as `quantize`.
    """
    import jax

    rounded = quantize(jax.lax.stop_gradient(x), dtype, **keywords).dequantize(x.dtype)
    return rounded + (x - jax.lax.stop_gradient(x))  # the sum is exact: the second term is zero


def _rounded(parted: Any, reach: Any, *, name: str, scale_name: str) -> tuple[Any, Any]:
    import jax.numpy as jnp

    largest_value = LARGEST[name]
    scales = reach / largest_value
    tiny = jnp.finfo(jnp.float32).tiny
    scales = jnp.where(scales >= tiny, scales, jnp.where(jnp.isnan(scales), jnp.nan, 1.0))
    scales = scales.astype(scale_name).astype(jnp.float32)
    ratio = jnp.clip(parted / scales, -largest_value, largest_value)
    ratio = jnp.where(jnp.isnan(ratio), 0.0, ratio)
    return _nearest(ratio, name), scales


def _nearest(ratio: Any, name: str) -> Any:
    """Return the nearest numbers of a format, in float32, ties to even."""
    import jax.numpy as jnp

    if name.startswith("int"):
        return jnp.round(ratio)
    if name == "float4_e2m1fn":
        # No cast, because some of XLA's emitters for the CPU round to bfloat16 first, so that 2.5003 becomes 2.
        step = jnp.select([jnp.abs(ratio) < 2, jnp.abs(ratio) < 4], [0.5, 1.0], 2.0)
        return jnp.round(ratio / step) * step
    return ratio.astype(name).astype(jnp.float32)


def _error(parted: Any, values: Any, scales: Any, within: tuple[int, ...]) -> Any:
    import jax.numpy as jnp

    return jnp.sum(jnp.square(parted - values * scales), axis=within, keepdims=True)


def _blocks(shape: tuple[int, ...], axis: Any, block: Any) -> tuple[int, ...]:
    if axis is None:
        if block is not None:
            raise QuantizationError(f"block={block} without an axis; pass the axis along which values share a scale")
        return shape
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    sizes = block if isinstance(block, (tuple, list)) else (block,) * len(axes)
    if len(sizes) != len(axes):
        raise QuantizationError(f"block={block} for axis={axis}; give one number for each axis")
    sizes_of_blocks = [1] * len(shape)
    for axis_number, size in zip(axes, sizes, strict=True):
        if not -len(shape) <= axis_number < len(shape):
            raise QuantizationError(f"axis={axis_number} of an array with shape {list(shape)}: there is no such axis")
        axis_size = shape[axis_number]
        size = (axis_size or 1) if size is None else size
        if size < 1 or axis_size % size:
            near = math.gcd(axis_size, size) if size > 0 and axis_size else 1
            raise QuantizationError(
                f"block={size} does not divide the {axis_size} values along axis {axis_number} of {list(shape)}; "
                f"use a divisor, such as {near}"
            )
        sizes_of_blocks[axis_number] = size
    return tuple(sizes_of_blocks)
