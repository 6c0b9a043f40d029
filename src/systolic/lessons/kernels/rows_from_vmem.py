"""Fused gather · Step 4: all of x in VMEM, where vector loads read the rows.

    step 0:   copy x to VMEM, in one piece
    step i:   load each row of block i from x, store it in the block; multiply the block

A load from VMEM takes an address that was computed when the program runs, as a copy does, but no engine, no semaphore
and no HBM. Rows that several ids name cross HBM once.

Grid: (i,) over blocks of 128 rows, in order. In VMEM: all of x, a block of its rows; w and a block of the result,
twice.

Use `systolic.moe` for bfloat16 rows, which it reads in pairs, and for more tokens than VMEM holds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 128  # rows of a step


def rows_from_vmem_kernel(
    ids_smem,  # [rows] int32, prefetched
    x_hbm,  # [tokens, k] float32
    w_vmem,  # [k, n] bfloat16
    out_vmem,  # [BLOCK, n] bfloat16
    x_vmem,  # [tokens, k] float32, scratch
    rows_vmem,  # [BLOCK, k] float32, scratch
):
    first = pl.program_id(0) * BLOCK
    pl.when(first == 0)(lambda: pltpu.sync_copy(x_hbm, x_vmem))

    @pl.loop(0, BLOCK)
    def _load(row):
        rows_vmem[pl.ds(row, 1), :] = x_vmem[pl.ds(ids_smem[first + row], 1), :]

    rows = rows_vmem[...].astype(w_vmem.dtype)
    out_vmem[...] = jnp.dot(rows, w_vmem[...], preferred_element_type=jnp.float32).astype(out_vmem.dtype)


def rows_from_vmem(x: Array, ids: Array, w: Array) -> Array:
    """Return rows of x times w. There are a multiple of BLOCK ids, each a row of x."""
    (_, k), n = x.shape, w.shape[1]
    return pl.pallas_call(
        rows_from_vmem_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ids.shape[0] // BLOCK,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec((k, n), lambda i, _: (0, 0))],
            out_specs=pl.BlockSpec((BLOCK, n), lambda i, _: (i, 0)),
            scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.VMEM((BLOCK, k), x.dtype)],
        ),
        out_shape=jax.ShapeDtypeStruct((ids.shape[0], n), w.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=48 * 2**20),
        name="rows_from_vmem",
    )(ids, x, w)
