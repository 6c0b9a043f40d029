"""Fused gather · Step 2: a kernel fetches the rows of a block from HBM by their numbers, then multiplies them.

    out[block] = x[ids[block]] @ w

No array x[ids] is written. `ids` is prefetched into SMEM, where the scalar unit reads a number, computes an address and
starts a copy of one row, row after row. All copies of a block signal one semaphore, which is waited for once, for the
bytes of the whole block. Then the block is multiplied, while no copy is under way: the parts take turns.

x is float32, and rounded to bfloat16 in VMEM: in HBM, bfloat16 has two rows in each 32-bit word, so no copy can fetch
one of them.

Grid: (i,) over blocks of 128 rows. In VMEM: a block of rows of x; w and a block of the result, twice.

Use `fetch_while_multiplying` to fetch the rows of the next block meanwhile.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 128  # rows of a step


def fetch_then_multiply_kernel(
    ids_smem,  # [rows] int32, prefetched
    x_hbm,  # [tokens, k] float32
    w_vmem,  # [k, n] bfloat16
    out_vmem,  # [BLOCK, n] bfloat16
    rows_vmem,  # [BLOCK, k] float32, scratch
    sem,  # of all copies of a step
):
    first = pl.program_id(0) * BLOCK

    @pl.loop(0, BLOCK)
    def _start(row):
        source = x_hbm.at[pl.ds(ids_smem[first + row], 1)]
        pltpu.make_async_copy(source, rows_vmem.at[pl.ds(row, 1)], sem).start()

    pltpu.make_async_copy(x_hbm.at[pl.ds(0, BLOCK)], rows_vmem, sem).wait()
    rows = rows_vmem[...].astype(w_vmem.dtype)
    out_vmem[...] = jnp.dot(rows, w_vmem[...], preferred_element_type=jnp.float32).astype(out_vmem.dtype)


def fetch_then_multiply(x: Array, ids: Array, w: Array) -> Array:
    """Return rows of x times w. There are a multiple of BLOCK ids, each a row of x, and at least BLOCK rows of x."""
    (_, k), n = x.shape, w.shape[1]
    return pl.pallas_call(
        fetch_then_multiply_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ids.shape[0] // BLOCK,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec((k, n), lambda i, _: (0, 0))],
            out_specs=pl.BlockSpec((BLOCK, n), lambda i, _: (i, 0)),
            scratch_shapes=[pltpu.VMEM((BLOCK, k), x.dtype), pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct((ids.shape[0], n), w.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=48 * 2**20),
        name="fetch_then_multiply",
    )(ids, x, w)
