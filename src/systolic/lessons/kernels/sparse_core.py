"""SparseCore · Rows of a table by their numbers: a task that TensorCores are bad at.

    out[r] = table[index[r]]                                  32,768 rows of 128 float32 out of 1,048,576

A gather does no arithmetic; it moves 512 bytes from here and 512 from there. A TensorCore copies blocks well and rows
badly: its one scalar unit reads an index, computes an address and starts a copy, row after row, and starting a copy of
one row costs as much as starting a copy of a thousand. `jnp.take` works this way. So does `copy_rows` below: it starts
all copies of a block, then waits once for all their bytes.

v5p, v6e and v7x have SparseCores in addition to their TensorCores: two to four on a device, each with 16 subcores,
which have their own memory and copies. `pl.kernel` runs a body on every subcore of a `VectorSubcoreMesh`, and
`emit_pipeline` divides its grid among them, by the names of both axes of the mesh. In the body one copy takes its rows
from a list of numbers, `table_hbm.at[index_vmem]`, and the hardware goes through the list. XLA uses SparseCores unasked
where it expects a gain, on v7x for `jnp.take`.

The simulator executes both: the TensorCore's program, which launches the SparseCores and waits for them, and the
programs of their sequencers and subcores. How far to trust the times: a gather by the TensorCore depends on the cost of
starting a copy, which was fitted to other kernels and is by far the largest on v6e. A gather by SparseCores depends on
the rate of a subcore's stream, which was fitted to one published gather on v7x and is assumed for other chips.
Therefore these times are called modelled. Neither kind of core can be faster than HBM.

Grid: (i,) over blocks of 128 rows. In VMEM: a block of the result, twice; on the SparseCore a block of numbers also.

This follows "Pallas Tutorial Notes", SparseCore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

BLOCK = 128  # rows of a step; also the longest list of numbers that one copy takes


def take(table: Array, index: Array) -> Array:
    """Gather the rows by XLA."""
    return jnp.take(table, index, axis=0, mode="clip")


def copy_rows_kernel(
    index_smem,  # [rows] int32, prefetched
    table_hbm,  # [m, n] float32
    out_vmem,  # [BLOCK, n] float32
    sem,  # of all copies of a step
):
    """Start a copy for each row of the block, then wait for the bytes of the whole block."""
    first = pl.program_id(0) * BLOCK

    @pl.loop(0, BLOCK)
    def _start(row):
        source = table_hbm.at[pl.ds(index_smem[first + row], 1)]
        pltpu.make_async_copy(source, out_vmem.at[pl.ds(row, 1)], sem).start()

    pltpu.make_async_copy(table_hbm.at[pl.ds(0, BLOCK)], out_vmem, sem).wait()


def copy_rows(table: Array, index: Array) -> Array:
    """Gather the rows on the TensorCore, one copy for each. `rows` is a multiple of BLOCK, and m at least BLOCK."""
    return pl.pallas_call(
        copy_rows_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(index.shape[0] // BLOCK,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec((BLOCK, table.shape[1]), lambda i, _: (i, 0)),
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct((index.shape[0], table.shape[1]), table.dtype),
        name="copy_rows",
    )(index, table)


def gather_kernel(
    table_hbm,  # [m, n] float32
    index_hbm,  # [1, rows] int32
    out_hbm,  # [rows, n] float32
):
    """Run a pipeline over the subcore's share of the blocks: fetch a list of numbers, then copy its rows."""

    def copy_listed(
        index_vmem,  # [1, BLOCK] int32
        out_vmem,  # [BLOCK, n] float32
    ):
        pltpu.sync_copy(table_hbm.at[index_vmem.at[0]], out_vmem)

    pltpu.emit_pipeline(
        copy_listed,
        grid=(index_hbm.shape[1] // BLOCK,),
        in_specs=[pl.BlockSpec((1, BLOCK), lambda i: (0, i))],
        out_specs=[pl.BlockSpec((BLOCK, table_hbm.shape[1]), lambda i: (i, 0))],
        core_axis_name=("core", "subcore"),
        dimension_semantics=(pltpu.PARALLEL,),
    )(index_hbm, out_hbm)


def gather(table: Array, index: Array) -> Array:
    """Gather the rows on all SparseCores of the device. `rows` is a multiple of BLOCK times their subcores.

    Raises:
      RuntimeError: the device has no SparseCores.
    """
    gathered: Callable[..., Any] = pl.kernel(
        gather_kernel,
        out_type=jax.ShapeDtypeStruct((index.shape[0], table.shape[1]), table.dtype),
        mesh=plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="subcore"),
        name="gather",
    )
    return gathered(table, index.reshape(1, -1))
