"""Pipelining · Copy the next block while this one is computed.

    z = x + y                       512 × 512 float32 in the text; here 8192 × 4096, which does not fit VMEM whole

A kernel computes on VMEM, but its arrays are in HBM, and copying them takes longer than adding them. If the arrays are
cut into blocks, one block can be copied while another one is added. `grid` is the number of blocks, and a `BlockSpec`
says which block a step gets. From these Pallas makes a pipeline with two buffers for each array: during a step it
copies the next step's blocks in, and the previous step's result out.

Adding two arrays takes one operation and twelve bytes for each element, so HBM is the limit, and the question is how
much of the time HBM is busy. Without a second buffer each step copies, then adds, then copies back, one after the
other: the same bytes take much longer.

Grid: none; (i,) over blocks of rows; (i, j) over blocks of rows and columns. In VMEM: x, y and z whole; or a block of
each, twice.

This follows the page Pallas TPU, "Pipelining".
"""

from __future__ import annotations

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def add_matrices_kernel(
    x_vmem,  # [bm, bn] float32
    y_vmem,  # the same
    z_vmem,  # the same
):
    """Load x and y into registers, add them, store z; Pallas has copied the blocks."""
    z_vmem[...] = x_vmem[...] + y_vmem[...]


def add_matrices(x: Array, y: Array) -> Array:
    """x + y, both whole in VMEM: nothing is added before everything has been copied."""
    return pl.pallas_call(add_matrices_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="whole")(x, y)


def add_matrices_pipelined(x: Array, y: Array, *, bm: int = 256) -> Array:
    """x + y by blocks of `bm` whole rows."""
    block = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        add_matrices_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm,),
        in_specs=[block, block],
        out_specs=block,
        name="pipelined",
    )(x, y)


def add_matrices_pipelined_2d(x: Array, y: Array, *, bm: int = 256, bn: int = 256, buffers: int = 2) -> Array:
    """x + y by blocks of bm × bn; with one buffer of each there is no pipeline, only blocks."""
    mode = None if buffers == 2 else pl.Buffered(buffers)
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j), pipeline_mode=mode)
    return pl.pallas_call(
        add_matrices_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm, x.shape[1] // bn),
        in_specs=[block, block],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        name=f"pipelined_{bm}_{bn}_{buffers}",
    )(x, y)
