"""Cores · Two cores that look like one device.

    z = x + y        y = sin x        out = Σ_r x[r]        y = tril(L) @ x

A v4 or v5p chip has two TensorCores in one device ("megacore"), each with its own VMEM and units, and one HBM for both.
A kernel runs on one of them, unless `dimension_semantics` says of a grid axis that its steps are independent:
"parallel". Its steps are then dealt out, the first half to one core and the second to the other; an "arbitrary" axis
stays in order on one core. The other chips have one core a device (v7x has two, and shows each as a device of its own):
there the word changes nothing.

Twice the cores are twice the units, not twice HBM. What computes for long gains nearly 2; what waits for HBM gains
nothing, as one core alone can use all of it in the model; what waits for the latency of a single copy, as a sum with
its one input does, gains what the other core does meanwhile.

The later core counts, so the halves have to be alike, in two ways. Their number: each core does ceil(steps / 2), and if
that is one too many, the first step is done once more (seen in listings: the index is taken modulo the steps). And
their work: block row i of a lower triangular matrix takes i + 1 products of blocks, so the second half of the rows is
most of it. Dealt out as first, last, second, last but one, each core gets as much as the other; the index map does it.

Grid: (i, j) and (i,) over blocks; (i, j, r) for the sum; (i, kk) for the product, where steps above the diagonal do
nothing and ask for the block that is there already. In VMEM: a block of each array, twice.

The pages that this follows: Pallas TPU, "Pipelining", Megacore, whose exercise is the add and the sum; and "Writing TPU
kernels", multicore configurations, on uneven work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def add_matrices_kernel(
    x_vmem,  # [bm, bn] float32
    y_vmem,  # the same
    z_vmem,  # the same
):
    """Adds two blocks."""
    z_vmem[...] = x_vmem[...] + y_vmem[...]


def sine_kernel(
    x_vmem,  # [bm, n] float32
    y_vmem,  # the same
):
    """Some hundred instructions an element: bound by the core, not by HBM."""
    y_vmem[...] = jnp.sin(x_vmem[...])


def triangle_kernel(
    lhs_vmem,  # [bm, bm] bfloat16
    x_vmem,  # [bm, n] bfloat16
    out_vmem,  # [bm, n] float32
    *,
    row: Callable[[Array], Array],
):
    """Adds one product of blocks, on the diagonal of its lower half, above the diagonal none."""
    i, kk = row(pl.program_id(0)), pl.program_id(1)

    @pl.when(kk == 0)
    def _clear():
        out_vmem[...] = jnp.zeros_like(out_vmem)

    @pl.when(kk < i)
    def _below():
        out_vmem[...] += jnp.dot(lhs_vmem[...], x_vmem[...], preferred_element_type=jnp.float32)

    @pl.when(kk == i)
    def _diagonal():
        rows, columns = (lax.broadcasted_iota(jnp.int32, lhs_vmem.shape, axis) for axis in (0, 1))
        lower = jnp.where(columns <= rows, lhs_vmem[...], jnp.zeros_like(lhs_vmem))
        out_vmem[...] += jnp.dot(lower, x_vmem[...], preferred_element_type=jnp.float32)


def add_matrices(x: Array, y: Array, *, semantics: str = "parallel", bm: int = 512, bn: int = 1024) -> Array:
    """x + y by blocks; with "parallel" on every core of the device."""
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    return pl.pallas_call(
        add_matrices_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm, x.shape[1] // bn),
        in_specs=[block, block],
        out_specs=block,
        compiler_params=_params(semantics, semantics),
        name="add_matrices",
    )(x, y)


def sine(x: Array, *, semantics: str = "parallel", bm: int = 256) -> Array:
    """sin x by blocks of `bm` whole rows."""
    block = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        sine_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm,),
        in_specs=[block],
        out_specs=block,
        compiler_params=_params(semantics),
        name="sine",
    )(x)


def triangle(
    lhs: Array,
    x: Array,
    *,
    semantics: str = "parallel",
    dealt: bool = False,
    bm: int = 512,
) -> Array:
    """tril(lhs) @ x; `dealt`: the rows of blocks in the order first, last, second, last but one, …"""
    (m, n), count = x.shape, lhs.shape[0] // bm

    def row(i: Array) -> Array:
        return jnp.where(i % 2 == 0, i // 2, count - 1 - i // 2) if dealt else i

    return pl.pallas_call(
        functools.partial(triangle_kernel, row=row),
        grid=(count, count),
        in_specs=[
            # Above the diagonal the block of the diagonal again, which is there: no copy.
            pl.BlockSpec((bm, bm), lambda i, kk: (row(i), jnp.minimum(kk, row(i)))),
            pl.BlockSpec((bm, n), lambda i, kk: (jnp.minimum(kk, row(i)), 0)),
        ],
        out_specs=pl.BlockSpec((bm, n), lambda i, kk: (row(i), 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        compiler_params=_params(semantics, "arbitrary"),
        name="triangle",
    )(lhs, x)


def _params(*semantics: str) -> pltpu.CompilerParams:
    return pltpu.CompilerParams(dimension_semantics=semantics)  # pyright: ignore[reportArgumentType]
