"""A feed-forward block with int8 weights in blocks of 128, cut over the devices of a slice by columns, then by rows.

    systolic simulate examples/sharded_quantized.py:feed_forward --against examples/sharded_quantized.py:by_xla \\
        --chip v6e --topology 2x4 --mesh model=8 --explicit --arg "bf16[64,4096]" \\
        --arg "s8[4096,14336]@-,model" --arg "f32[32,14336]@-,model" \\
        --arg "s8[14336,4096]@model" --arg "f32[112,4096]@model"
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import systolic


def feed_forward(
    x: jax.Array, up: jax.Array, up_scales: jax.Array, down: jax.Array, down_scales: jax.Array
) -> jax.Array:
    """silu(x @ up) @ down: each device multiplies its columns, then its rows; one all-reduce adds up the results."""
    h = systolic.matmul(x, systolic.Quantized(up, up_scales), activation="silu")
    return systolic.matmul(h, systolic.Quantized(down, down_scales))


def by_xla(x: jax.Array, up: jax.Array, up_scales: jax.Array, down: jax.Array, down_scales: jax.Array) -> jax.Array:
    """Compute `feed_forward` with weights that are dequantized first."""
    h = jax.nn.silu(x @ _dequantized(up, up_scales, x.dtype))
    return jnp.einsum("mk,kn->mn", h, _dequantized(down, down_scales, x.dtype), out_sharding=jax.P())


def _dequantized(values: jax.Array, scales: jax.Array, dtype: jnp.dtype) -> jax.Array:
    blocks, columns = scales.shape
    scaled = values.astype(jnp.float32).reshape(blocks, -1, columns) * scales[:, None]
    return scaled.reshape(values.shape).astype(dtype)
