"""Rows as they travel: one byte a value, and a scale for each row, in the lanes after its values.

A byte is an int8 or a float8. A scale is the row's largest magnitude over the largest value of that dtype, rounded up
to bfloat16; its two bytes are the first two of these lanes. So no value overflows: one of int8 is off by at most half a
scale, one of float8 by half a unit in the last place of its mantissa. The scale of a row with an infinite value or NaN
is NaN, and so are all of its values.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.schedule.legality import LANES

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}  # by the dtype of the wire

_LOW_BITS = 0xFFFF  # of float32: those that bfloat16 does not have
_WHOLE_NUMBERS = 1.5 * 2.0**23
_MIN_SCALE = 2.0**-126  # of a row of zeros: its inverse is finite


def packed(x: Array, wire_dtype: str) -> Array:
    """Return rows [rows, k] as bytes, int8 [rows, k + 128]."""
    values = x.astype(jnp.float32)
    scales = row_scales(values, wire_dtype)
    # One array of columns from the beginning, so that XLA fuses all of this.
    rows, k = x.shape
    wide = coded(jnp.pad(values, [(0, 0), (0, LANES)]), scales, wire_dtype)
    column = lax.broadcasted_iota(jnp.int32, (rows, k + LANES), 1)
    return jnp.where(column < k, wide, _scale_bytes(scales, column - k))


def unpacked(rows: Array, wire_dtype: str) -> Array:
    """Return the rows that `packed` made these of, in float32."""
    codes, lanes = rows[:, :-LANES], rows[:, -LANES:]
    return decoded(codes, wire_dtype).astype(jnp.float32) * scales_of(lanes)


def row_scales(values: Array, wire_dtype: str) -> Array:
    """Return the scales [rows, 1] of rows in float32."""
    magnitudes = jnp.abs(values)
    # A maximum may leave out NaN.
    largest = jnp.where(magnitudes < jnp.inf, magnitudes, jnp.inf).max(axis=1, keepdims=True)
    bits = lax.bitcast_convert_type(largest * (1 / LARGEST[wire_dtype]), jnp.int32)
    scales = lax.bitcast_convert_type((bits + _LOW_BITS) & ~_LOW_BITS, jnp.float32)
    return jnp.where(largest < jnp.inf, jnp.maximum(scales, _MIN_SCALE), jnp.nan)


def coded(values: Array, scales: Array, wire_dtype: str) -> Array:
    """Return the bytes of values in float32, as int8."""
    scaled = values * (1 / scales)
    if wire_dtype == "int8":
        # At this magnitude the units of float32 are whole numbers: the sum is rounded to nearest, and ends in the byte.
        return lax.bitcast_convert_type(scaled + _WHOLE_NUMBERS, jnp.int32).astype(jnp.int8)
    return lax.bitcast_convert_type(scaled.astype(wire_dtype), jnp.int8)


def decoded(codes: Array, wire_dtype: str) -> Array:
    """Return the values of bytes, before they are multiplied by scales, in the dtype of the wire."""
    return codes if wire_dtype == "int8" else lax.bitcast_convert_type(codes, jnp.dtype(wire_dtype))


def scale_lanes(scales: Array) -> Array:
    """Return the lanes [rows, 128] for scales [rows, 1], as int8."""
    return _scale_bytes(scales, lax.broadcasted_iota(jnp.int32, (scales.shape[0], LANES), 1))


def scales_of(lanes: Array) -> Array:
    """Return the scales [rows, 1] of the lanes after the values."""
    byte = lanes.astype(jnp.int32) & 0xFF
    return lax.bitcast_convert_type((byte[:, :1] << 24) | (byte[:, 1:2] << 16), jnp.float32)


def _scale_bytes(scales: Array, lane: Any) -> Array:
    bits = lax.bitcast_convert_type(scales, jnp.int32)
    return jnp.where(lane == 0, bits >> 24, bits >> 16).astype(jnp.int8)
