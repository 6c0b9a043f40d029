"""pl.kernel · The kernel gets the arrays in HBM, and runs its own pipeline.

    acc[i, j]  = Σ_kk x[i, kk] @ y[kk, j]                                 4096³, bfloat16, summed in float32
    out[i, j]  = acc rounded to bfloat16                                  once, at the last kk

`pl.pallas_call` has one grid, and makes the pipeline itself. `pl.kernel` has a mesh of cores: its body runs once on
each core, and gets references to the arrays in HBM. In the body, `pltpu.emit_pipeline` is the loop over blocks. It
takes the same grid and block specifications, but it is a call: a body may run two pipelines, or one over part of an
array. `core_axis_name` divides the parallel axes of its grid among the cores of the mesh.

This pipeline may be deeper. `pallas_call` has one buffer or two for a block. With a third, two copies are under way
while a step computes, and a long copy no longer holds up the next step. With `use_lookahead`, the next *different*
block is fetched as soon as a buffer is free, however many steps ahead it is: the next row of blocks of x arrives during
all steps of the current row, not only during the last. This helps only if a block stays for several steps. Here it does
if blocks have all of k: then a block of x stays for a whole row of the output.

The notes' own sketch leaves three questions open:

- Where is the sum? `acc_ref` is never used, and adding to a bfloat16 output rounds at every step. Here the sum is a
  scratch buffer, cleared at the first step along k and rounded at the last.
- How large are the blocks? Here a block of y is bk × bn, and a block of the output bm × bn.
- How many cores run it? Here the mesh has all cores of the device, and rows and columns of blocks are "parallel", so
  that two cores each compute half.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost, of the inner pipeline. In VMEM: two or three blocks of x and y, two
of out, acc once.

This follows "Pallas Tutorial Notes", pl.kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

# JAX 0.10 has a function for the mesh, later versions a class.
_tensorcore_mesh: Any = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh
_VMEM_LIMIT_BYTES = 40 * 2**20  # blocks of all of k take 31.4 MiB, and the default limit is 16 to 32 MiB


def multiply_blocks_kernel(
    x_vmem,  # [bm, bk] bfloat16
    y_vmem,  # [bk, bn] bfloat16
    out_vmem,  # [bm, bn] bfloat16
    acc_vmem,  # [bm, bn] float32, scratch of the kernel around it
    *,
    steps: int,
):
    """Add a product of blocks, in a step of the inner pipeline; round the sum into the output at the last step."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    acc_vmem[...] += lax.dot_general(
        x_vmem[...], y_vmem[...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )

    @pl.when(pl.program_id(2) == steps - 1)
    def _finish():
        out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)


def matmul_kernel(
    x: Array,
    y: Array,
    *,
    bm: int = 512,
    bk: int | None = 1024,
    bn: int = 1024,
    buffers: tuple[int, int] = (2, 2),
    lookahead: bool = False,
    cores: int | None = None,
) -> Array:
    """x @ y by blocks.

    Args:
      x, y: the blocks divide their sizes.
      bm, bk, bn: rows, depth and columns of the blocks; `bk=None`: all of k.
      buffers: number of buffers for blocks of x, and of y.
      lookahead: fetch x's next different block as soon as a buffer is free.
      cores: number of cores of the mesh; None: all cores of the device.
    """
    (m, k), n = x.shape, y.shape[1]
    depth = bk or k

    def body(
        x_hbm,  # [m, k] bfloat16
        y_hbm,  # [k, n] bfloat16
        out_hbm,  # [m, n] bfloat16
        acc_vmem,  # [bm, bn] float32, scratch
    ):
        pltpu.emit_pipeline(
            functools.partial(multiply_blocks_kernel, acc_vmem=acc_vmem, steps=k // depth),
            grid=(m // bm, n // bn, k // depth),
            in_specs=[
                pl.BlockSpec(
                    (bm, depth),
                    lambda i, j, kk: (i, kk),
                    pipeline_mode=pl.Buffered(buffers[0], use_lookahead=lookahead),
                ),
                pl.BlockSpec((depth, bn), lambda i, j, kk: (kk, j), pipeline_mode=pl.Buffered(buffers[1])),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j))],
            core_axis_name="core",
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY),
        )(x_hbm, y_hbm, out_hbm)

    multiply: Callable[..., Any] = pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        mesh=_tensorcore_mesh(axis_name="core", **({} if cores is None else {"num_cores": cores})),
        scratch_types=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=None if bk else _VMEM_LIMIT_BYTES),
        name="matmul_kernel",
    )
    return multiply(x, y)
