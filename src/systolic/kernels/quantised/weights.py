"""Weights as the matrix units take them, made of what is stored; see `schedule.quantised_route`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from systolic.schedule.quantised_route import Route

# Of the four bytes of a lane: what is kept of each, and what is flipped.
_LOW_BITS = 0x0F0F0F0F
_INT4_SIGNS = 0x08080808
_FP4_SIGNS = -0x7F7F7F80  # 0x80808080 as an int32
_FP4_MAGNITUDES = 0x07070707


def pushed_weights(stored: Array, scales: Array | None, route: Route, block: int) -> Array:
    """A tile [rows, columns] of what is pushed.

    Args:
      stored: as it lies in HBM; four bits of fp4 come as int4.
      scales: [rows / block, columns] where they multiply the weights; None where they multiply sums.
      block: rows that share a scale.
    """
    made = _made(stored, route)
    if scales is None:
        return made
    parts = [made[row * block : (row + 1) * block] * scales[row : row + 1] for row in range(scales.shape[0])]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)


def stored_bits(values_vmem: Any, rows: Any, columns: Any) -> Array:
    """A part of a tile as it is stored; fp4, which chips before v7x do not load, as int4 of the same bits."""
    if values_vmem.dtype == jnp.float4_e2m1fn:
        values_vmem = values_vmem.bitcast(jnp.int4)
    return values_vmem[rows, columns]


def _made(stored: Array, route: Route) -> Array:
    if route.made == "stored":
        return stored
    if route.made == "cast":
        return stored.astype(jnp.dtype(route.pushed))
    codes: Any = pltpu.bitcast(stored.astype(jnp.int8), jnp.int32)
    if route.codes is not None and route.codes.offset:
        codes = (codes & _LOW_BITS) ^ _INT4_SIGNS  # the number of four bits plus 8
    else:
        codes = (codes & _FP4_SIGNS) | ((codes & _FP4_MAGNITUDES) << 1)  # sign and, one place up, the rest
    assert route.codes is not None
    found = pltpu.bitcast(codes, jnp.dtype(route.codes.dtype))
    return found.astype(jnp.bfloat16) if route.made == "cast codes" else found
