"""Fused gather · Step 3: two buffers, so that the rows of the next block arrive while this one is multiplied.

    step i:   start the copies of block i + 1, wait for the copies of block i, multiply block i

That hides the time for which copies are under way. It does not hide the time in which they are started: a core has one
stream of instructions, and the loop that starts 128 copies is in it before the product, not next to it.

One fault can be switched on. It moves the wait by one line, and no time shows it:

    late   wait for a block's copies after its product: rows are multiplied that may not have arrived, a race

Grid: (i,) over blocks of 128 rows, in order. In VMEM: two blocks of rows of x; w and a block of the result, twice.

Use `rows_from_vmem` where all of x fits in VMEM.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 128  # rows of a step


def fetch_while_multiplying_kernel(
    ids_smem,  # [rows] int32, prefetched
    x_hbm,  # [tokens, k] float32
    w_vmem,  # [k, n] bfloat16
    out_vmem,  # [BLOCK, n] bfloat16
    rows_vmem,  # [2, BLOCK, k] float32, scratch
    sem,  # [2], each of all copies of a step
    *,
    late: bool,
):
    step, steps = pl.program_id(0), pl.num_programs(0)

    def start(number: Any) -> None:
        slot = number % 2

        @pl.loop(0, BLOCK)
        def _start(row):
            source = x_hbm.at[pl.ds(ids_smem[number * BLOCK + row], 1)]
            pltpu.make_async_copy(source, rows_vmem.at[slot, pl.ds(row, 1)], sem.at[slot]).start()

    def wait() -> None:
        pltpu.make_async_copy(x_hbm.at[pl.ds(0, BLOCK)], rows_vmem.at[step % 2], sem.at[step % 2]).wait()

    pl.when(step == 0)(lambda: start(step))
    pl.when(step + 1 < steps)(lambda: start(step + 1))
    if not late:
        wait()
    rows = rows_vmem[step % 2].astype(w_vmem.dtype)
    out_vmem[...] = jnp.dot(rows, w_vmem[...], preferred_element_type=jnp.float32).astype(out_vmem.dtype)
    if late:
        wait()


def fetch_while_multiplying(x: Array, ids: Array, w: Array, *, late: bool = False) -> Array:
    """Return rows of x times w. There are a multiple of BLOCK ids, each a row of x, and at least BLOCK rows of x."""
    (_, k), n = x.shape, w.shape[1]
    return pl.pallas_call(
        functools.partial(fetch_while_multiplying_kernel, late=late),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ids.shape[0] // BLOCK,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec((k, n), lambda i, _: (0, 0))],
            out_specs=pl.BlockSpec((BLOCK, n), lambda i, _: (i, 0)),
            scratch_shapes=[pltpu.VMEM((2, BLOCK, k), x.dtype), pltpu.SemaphoreType.DMA((2,))],
        ),
        out_shape=jax.ShapeDtypeStruct((ids.shape[0], n), w.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=48 * 2**20),
        name="fetch_while_multiplying",
    )(ids, x, w)
