"""Unpacking · Weights of few bits arrive sooner, but must be converted for the matrix unit.

    out = x @ (w · scale)            x [m, k] bfloat16, w [k, n] in any format, scales of its columns or of blocks of k

With few rows a product takes as long as its weights take to cross HBM. Weights of eight bits halve that time, weights
of four bits quarter it. In that time the vector unit does up to three things with every block of weights:

    unpack    a register of int8 holds 32 × 128 numbers, of int4 64 × 128; one of bfloat16 takes 16 × 128
    convert   an integer to bfloat16; v5e has no such instruction, and goes through float32
    scale     by a number for each column, or for each column of each 128 rows of w

**Nothing to unpack.** The matrix unit multiplies float8 weights by bfloat16 rows as they are.              `as_it_is`

**Unpacked in VMEM.** w crosses HBM as it is stored, and a block becomes bfloat16 just before its product. Nothing is
written back. If the weights were unpacked before the call, every number would be sent to HBM and back.     `unpacked`

**Scales of columns** do not touch the weights: they are the same for all of k, so they multiply the finished sum, once.

**Scales of blocks** must be applied earlier. Either each block of weights is scaled, k·n multiplications for any m; or
the product of each block is scaled, m·n·(k/128) multiplications, which is less for few rows.
                                                                                        `scaled_weights`, `scaled_sums`

Grid: (j) = (n/bn): few rows, so there is one block of them, and k is whole. In VMEM: the rows, and columns of weights,
scales and results, twice each. A step has 4 MiB of weights in any format: they take equally long to arrive, but
narrower formats have up to four times as many numbers to unpack.
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
    """Multiply weights that the matrix unit takes together with bfloat16 rows."""
    return dot(x, w) * scale[0]


def unpacked(x: Array, w: Array, scale: Array) -> Array:
    """Convert the weights to bfloat16, which holds every number of int8, int4 and float8."""
    return dot(x, w.astype(jnp.bfloat16)) * scale[0]


def scaled_weights(x: Array, w: Array, scale: Array) -> Array:
    """Multiply every weight by its block's scale; this rounds to bfloat16 a second time."""
    blocks = w.astype(jnp.bfloat16).reshape(-1, BLOCK, w.shape[1])
    return dot(x, (blocks * scale.astype(jnp.bfloat16)).reshape(w.shape))


def scaled_sums(x: Array, w: Array, scale: Array) -> Array:
    """Multiply every block alone, and scale its product; nothing is rounded."""
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
    """Multiply the rows by one block of columns of weights."""
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
