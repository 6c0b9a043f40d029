"""Cores · Two cores that look like one device.

    z = x + y        y = sin x        out = Σ_r x[r]        y = tril(L) @ x

A v4 or v5p chip shows its two TensorCores as one device ("megacore"). Each core has its own VMEM and units; both share
one HBM. A kernel runs on one core, unless `dimension_semantics` marks an axis of the grid as "parallel": its steps do
not depend on each other. Then the first half of the steps runs on one core and the second half on the other. The steps
of an "arbitrary" axis stay in order on one core. The other chips have one core a device, so the word changes nothing
there. (v7x has two cores, and shows each as a device.)

Two cores have twice the units, but share HBM. A kernel that computes for long becomes nearly twice as fast. A kernel
that waits for HBM gains nothing, because in the model one core can use all of HBM. A sum over one input waits for the
latency of single copies; it gains, because the other core computes meanwhile.

The slower core decides, so both halves should take equally long. That fails in two ways:

- **Number of steps.** Each core runs ceil(steps / 2) of them. If that is one too many, the first step runs once more
  (seen in compiled programs: the index is taken modulo the number of steps).
- **Work of a step.** Row i of the blocks of a lower triangular matrix takes i + 1 products, so the second half of the
  rows is three quarters of the work. An index map that deals the rows in the order first, last, second, last but one, …
  gives both cores the same.

Grid: (i, j) and (i,) over blocks; (i, j, r) for the sum; (i, kk) for the product, where steps above the diagonal do
nothing and name the block that is in VMEM already. In VMEM: a block of each array, twice.

This follows the pages Pallas TPU, "Pipelining", Megacore, whose exercise is the add and the sum; and "Writing TPU
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
    """Add two blocks."""
    z_vmem[...] = x_vmem[...] + y_vmem[...]


def sine_kernel(
    x_vmem,  # [bm, n] float32
    y_vmem,  # the same
):
    """Compute sin: some hundred instructions for each register, so the core is the limit, not HBM."""
    y_vmem[...] = jnp.sin(x_vmem[...])


def triangle_kernel(
    lhs_vmem,  # [bm, bm] bfloat16
    x_vmem,  # [bm, n] bfloat16
    out_vmem,  # [bm, n] float32
    *,
    row: Callable[[Array], Array],
):
    """Add one product of blocks; on the diagonal with the lower half of lhs, above the diagonal nothing."""
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
    """Return x + y by blocks; "parallel" uses every core of the device."""
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
