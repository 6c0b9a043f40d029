"""Rows as they travel: int8, each with a scale of its own in the lanes after its values.

A scale is the row's largest magnitude over 127, rounded up to bfloat16: its two bytes are the first two of these lanes.
So a value is off by at most half a scale. The scale of a row with an infinite value or NaN is infinite, and all of its
products are NaN.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from systolic.schedule.legality import LANES

_LARGEST = 127
_LOW_BITS = 0xFFFF  # of float32: those that bfloat16 does not have


def packed(x: Array) -> Array:
    """Return rows [rows, k] as int8 [rows, k + 128]."""
    values = x.astype(jnp.float32)
    # A maximum of XLA's may leave out NaN.
    magnitudes = jnp.where(jnp.isfinite(values), jnp.abs(values), jnp.inf)
    largest = magnitudes.max(axis=1, keepdims=True)
    bits = lax.bitcast_convert_type(largest / _LARGEST, jnp.int32)
    scale = lax.bitcast_convert_type((bits + _LOW_BITS) & ~_LOW_BITS, jnp.float32)
    is_finite = jnp.isfinite(largest)
    scale = jnp.where(is_finite, jnp.where(largest == 0, 1.0, scale), jnp.inf)
    bits = lax.bitcast_convert_type(scale, jnp.int32)
    # One array of columns from the beginning, so that XLA fuses all of this.
    rows, k = x.shape
    wide = jnp.pad(values, [(0, 0), (0, LANES)])
    column = lax.broadcasted_iota(jnp.int32, (rows, k + LANES), 1)
    rounded = jnp.where(is_finite, jnp.round(wide / scale), 0.0).astype(jnp.int32)
    return jnp.where(column == k, bits >> 24, jnp.where(column == k + 1, bits >> 16, rounded)).astype(jnp.int8)


def scales_of(lanes: Array) -> Array:
    """Return the scales [rows, 1] of the lanes after the values."""
    byte = lanes.astype(jnp.int32) & 0xFF
    return lax.bitcast_convert_type((byte[:, :1] << 24) | (byte[:, 1:2] << 16), jnp.float32)
