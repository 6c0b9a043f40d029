"""Unpacking · Weights of few bits are read sooner, and then have to become something that a matrix unit takes.

    out = x @ (w · scale)            x [m, k] bfloat16, w [k, n] in any format, scales of its columns or of blocks of k

With few rows a product lasts as long as its weights take to come from HBM: eight bits halve that time, four quarter it.
What is left to do in that time are three things for every block of weights, one after the other in the registers:

    unpack    a register of int8 holds 32 × 128 numbers, of int4 64 × 128; one of bfloat16 takes 16 × 128
    convert   an integer to bfloat16; v5e has no such instruction, and goes through float32
    scale     by a number for each column, or for each column of each 128 rows of w

**Nothing to unpack.** The matrix unit takes float8 weights beside bfloat16 rows as they are.              `as_it_is`

**Unpacked in VMEM.** w comes from HBM as it is stored, and a block becomes bfloat16 just before its product. Nothing
is written back; that is the difference to unpacking ahead of the call, which sends every number to HBM and back.
                                                                                                        `unpacked`

**Scales of columns** need no weight: they are the same for all of k, so they multiply the finished sum, once.

**Scales of blocks** are not. Either each block's weights are scaled, k·n multiplications for any m; or each block's own
product is, m·n·(k/128) of them, for few rows fewer.                                `scaled_weights`, `scaled_sums`

Grid: (j) = (n/bn): few rows, so there is one block of them, and k is whole. In VMEM: the rows, and columns of weights,
scales and results, twice each. A step has 4 MiB of weights whatever their format: it takes as long to come, and holds
up to four times the numbers to unpack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 128  # rows of w that share scales
BLOCK_BYTES = 4 * 2**20  # of weights, whatever their format
Product = Callable[[Array, Array, Array], Array]
dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)


def as_it_is(x: Array, w: Array, scale: Array) -> Array:
    """For weights that the matrix unit takes beside bfloat16."""
    return dot(x, w) * scale[0]


def unpacked(x: Array, w: Array, scale: Array) -> Array:
    """Weights become bfloat16, which holds every number of int8, int4 and float8."""
    return dot(x, w.astype(jnp.bfloat16)) * scale[0]


def scaled_weights(x: Array, w: Array, scale: Array) -> Array:
    """Every weight is multiplied by its block's scale; rounded to bfloat16 a second time."""
    blocks = w.astype(jnp.bfloat16).reshape(-1, BLOCK, w.shape[1])
    return dot(x, (blocks * scale.astype(jnp.bfloat16)).reshape(w.shape))


def scaled_sums(x: Array, w: Array, scale: Array) -> Array:
    """Every block is a product of its own, and its result is scaled; nothing is rounded."""
    parts = [slice(start, start + BLOCK) for start in range(0, w.shape[0], BLOCK)]
    products = [dot(x[:, part], w[part].astype(jnp.bfloat16)) * scale[b] for b, part in enumerate(parts)]
    return functools.reduce(jnp.add, products)


def weights_kernel(
    x_vmem,  # [m, bk] bfloat16
    w_vmem,  # [bk, bn], as it is stored
    scale_vmem,  # [1, 1, bn] float32, of columns; or [bk / 128, 1, bn], of blocks
    out_vmem,  # [m, bn] bfloat16
    *,
    product: Product,
):
    """Some columns of weights, times the rows."""
    out_vmem[...] = product(x_vmem[...], w_vmem[...], scale_vmem[...]).astype(out_vmem.dtype)


def multiply(x: Array, w: Array, scale: Array, *, product: Product) -> Array:
    """x @ (w · scale) in bfloat16; scale is [1, 1, n] of columns, or [k / 128, 1, n] of blocks."""
    (m, k), n = x.shape, w.shape[1]
    bn = min(n, BLOCK_BYTES * 8 // (k * jax.dtypes.itemsize_bits(w.dtype)))
    return pl.pallas_call(
        functools.partial(weights_kernel, product=product),
        grid=(n // bn,),
        in_specs=[
            pl.BlockSpec((m, k), lambda j: (0, 0)),
            pl.BlockSpec((k, bn), lambda j: (0, j)),
            pl.BlockSpec((len(scale), 1, bn), lambda j: (0, 0, j)),
        ],
        out_specs=pl.BlockSpec((m, bn), lambda j: (0, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        name=product.__name__,
    )(x, w, scale)
