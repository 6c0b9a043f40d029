"""Reductions · A block of the output that several steps add to.

    out = Σ_r x[r]                  8 × 512 × 512 float32 in the text; and 8 × 4096 × 4096, which no VMEM holds whole

A block of the output stays in VMEM as long as consecutive steps name the same one, so a step can add to the result of
the previous steps. Two rules follow:

- The block holds garbage before the first step, so the first step must clear it.
- When a step names another block, this one is written to HBM and never read back. So all steps of an output block must
  follow each other, and the axis of the sum is the last one of the grid.

On the page the garbage happens to be 1, and the sum is 9 instead of 8. Here unwritten memory is NaN, and so is the sum.

The page has two exercises: a sum that also cuts the other two axes, for any size of output; and the same on both cores
of a device with two. Rows and columns of blocks are independent, so their axes may be "parallel". The axis of the sum
may not: each core would add to a block of its own.

Grid: (r,), the output one block; (i, j, r) over blocks of the output, r innermost. In VMEM: a block of x twice, and the
output block, twice if there are several.

This follows the page Pallas TPU, "Pipelining", reductions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ONE_CORE = ("arbitrary", "arbitrary", "arbitrary")
BOTH_CORES = ("parallel", "parallel", "arbitrary")


def naive_sum_kernel(
    x_vmem,  # [m, n] float32
    out_vmem,  # the same
):
    """Wrong: adds to whatever was there before the first step."""
    out_vmem[...] += x_vmem[...]


def sum_kernel(
    x_vmem,  # [bm, bn] float32
    out_vmem,  # the same
    *,
    axis: int = 0,
):
    """Clear the block at the first step of `axis`, and add at every one."""

    @pl.when(pl.program_id(axis) == 0)
    def _clear():
        out_vmem[...] = jnp.zeros_like(out_vmem)

    out_vmem[...] += x_vmem[...]


def sum_whole(x: Array, *, kernel: Callable[..., None] = sum_kernel) -> Array:
    """Return the sum over the first axis, with one output block: the text's `sum`, or `naive_sum` with its kernel."""
    count, m, n = x.shape
    return pl.pallas_call(
        kernel,
        grid=(count,),
        in_specs=[pl.BlockSpec((None, m, n), lambda r: (r, 0, 0))],  # None: a block of 1, and no axis in the kernel
        out_specs=pl.BlockSpec((m, n), lambda r: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        name="sum_whole",
    )(x)


def sum_blocks(x: Array, *, bm: int = 512, bn: int = 512, semantics: Sequence[str] = BOTH_CORES) -> Array:
    """Return the sum over the first axis by blocks of bm × bn: the answer to both exercises."""
    count, m, n = x.shape
    return pl.pallas_call(
        functools.partial(sum_kernel, axis=2),
        grid=(m // bm, n // bn, count),
        in_specs=[pl.BlockSpec((None, bm, bn), lambda i, j, r: (r, i, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, r: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=tuple(semantics)),  # pyright: ignore[reportArgumentType]
        name="sum_blocks",
    )(x)


def sum_axis_first(x: Array, *, bm: int = 512, bn: int = 512) -> Array:
    """Wrong: with the axis that sums outermost, every block is left after each step and comes back as garbage."""
    count, m, n = x.shape
    return pl.pallas_call(
        sum_kernel,
        grid=(count, m // bm, n // bn),
        in_specs=[pl.BlockSpec((None, bm, bn), lambda r, i, j: (r, i, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda r, i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        name="sum_axis_first",
    )(x)
