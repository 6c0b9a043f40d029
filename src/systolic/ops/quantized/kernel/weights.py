"""Weights in the form that the matrix units take, made from the stored values; see `quantized.route`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from systolic.ops.quantized.kernel.bits import numbers_of_bits
from systolic.ops.quantized.route import EVEN_FIRST_ROWS, Route
from systolic.ops.quantized.spec import QuantizedSpec

# Masks of the four bytes of a lane: the bits that are kept, and the bits that are flipped.
_LOW_BITS = 0x0F0F0F0F
_INT4_SIGNS = 0x08080808
_ALL_INT4_SIGNS = -0x77777778  # 0x88888888 as an int32
_FP4_SIGNS = -0x7F7F7F80  # 0x80808080 as an int32
_FP4_MAGNITUDES = 0x07070707


def pushed_weights(stored: Array, scales: Array | None, route: Route, spec: QuantizedSpec) -> Array:
    """Return a tile [rows, columns] of pushed weights.

    Args:
      stored: the result of `stored_bits`.
      scales: [rows / spec.block, columns] if they multiply the weights; None if they multiply sums.
    """
    weights, block = _made(stored, route, spec.dtype_rhs), spec.block
    if scales is None:
        return weights
    parts = [weights[row * block : (row + 1) * block] * scales[row : row + 1] for row in range(scales.shape[0])]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)


def stored_bits(values_vmem: Any, rows: Any, columns: Any, route: Route) -> Array:
    """Return a part of a tile as it is stored; as integers of the same bits if the chip may not load its dtype."""
    if values_vmem.dtype == jnp.float4_e2m1fn:
        values_vmem = values_vmem.bitcast(jnp.int4)
    elif route.made == "bits" and jnp.issubdtype(values_vmem.dtype, jnp.floating):
        values_vmem = values_vmem.bitcast(jnp.int8)
    return values_vmem[rows, columns]


def _made(stored: Array, route: Route, name: str) -> Array:
    if route.made == "stored":
        return stored
    if route.made == "cast":
        return stored.astype(jnp.dtype(route.pushed))
    if route.made == "bits":
        return numbers_of_bits(stored, name).astype(jnp.dtype(route.pushed))
    if route.even_first:
        return _codes_even_first(stored, route)
    codes: Any = pltpu.bitcast(stored.astype(jnp.int8), jnp.int32)
    if route.codes is not None and route.codes.offset:
        codes = (codes & _LOW_BITS) ^ _INT4_SIGNS  # the number of four bits plus 8
    else:
        codes = (codes & _FP4_SIGNS) | ((codes & _FP4_MAGNITUDES) << 1)  # sign and, one place up, the rest
    assert route.codes is not None
    values = pltpu.bitcast(codes, jnp.dtype(route.codes.dtype))
    return values.astype(jnp.bfloat16) if route.made == "cast codes" else values


def _codes_even_first(stored: Array, route: Route) -> Array:
    """Make codes of int4, the even ones of every 64 rows first: the lower and upper halves of bytes, not unpacked.

    Eight rows lie in a word, the first lowest; every other one of them, four rows, become a word of codes.
    """
    assert route.codes is not None
    words: Any = pltpu.bitcast(stored, jnp.int32) ^ _ALL_INT4_SIGNS  # numbers of four bits plus 8
    halves = [pltpu.bitcast(word & _LOW_BITS, jnp.dtype(route.codes.dtype)) for word in (words, words >> 4)]
    half = EVEN_FIRST_ROWS // 2
    firsts = range(0, stored.shape[0] // 2, half)
    return jnp.concatenate([halve[first : first + half] for first in firsts for halve in halves], axis=0)
