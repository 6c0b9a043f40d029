"""Across chips · Step 1: gather, then multiply.

XLA sends, and then a Pallas kernel computes:

    out[count · m, n] = all_gather(x[m, k]) @ w[k, n]        on each of `count` devices, whose w differ

It is tensor parallelism's first product: tokens are cut by rows, the weight by columns, and every device needs all
tokens for its columns. `lax.all_gather` returns once all have arrived, so the matrix units wait for the links, and then
the links wait for the matrix units.

Grid: one step per chunk. In VMEM: w, and one chunk of x and of the result, twice. The grid copies the next chunk from
HBM while this one is multiplied; what it cannot do is copy a chunk that is still on another device.

Use `ring_matmul` to multiply what has arrived while the rest is on its way.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

RING = "ring"  # the mesh axis


def matmul_kernel(
    x_vmem,  # [m, k] bfloat16
    w_vmem,  # [k, n] bfloat16
    out_vmem,  # [m, n] bfloat16
):
    out_vmem[...] = jnp.dot(x_vmem[...], w_vmem[...], preferred_element_type=jnp.float32).astype(out_vmem.dtype)


def gather_then_multiply(x: Array, w: Array) -> Array:
    """Return all devices' x times this device's w. For `shard_map` over the axis `RING`."""
    (m, k), n = x.shape, w.shape[1]
    gathered = lax.all_gather(x, RING, tiled=True)
    return pl.pallas_call(
        matmul_kernel,
        grid=(gathered.shape[0] // m,),
        in_specs=[pl.BlockSpec((m, k), lambda i: (i, 0)), pl.BlockSpec((k, n), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((m, n), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((gathered.shape[0], n), x.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=48 * 2**20),
        name="multiply_gathered",
    )(gathered, w)
