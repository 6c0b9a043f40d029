"""SparseCore · Rows of a table by their numbers: what a TensorCore is bad at.

    out[r] = table[index[r]]                                  32,768 rows of 128 float32 out of 1,048,576

No arithmetic, 512 bytes here and 512 there. A TensorCore copies blocks well and rows badly: its one scalar unit reads
an index, works out an address and starts a copy, row after row, and to start one of a row costs as much as one of a
thousand rows. `jnp.take` does that, and so does `copy_rows` below, by hand: all copies of a block are started, then one
wait counts their bytes.

v5p, v6e and v7x have SparseCores beside their TensorCores: two to four on a device, each of 16 subcores with a memory
and copies of their own. `pl.kernel` runs a body on every subcore of a `VectorSubcoreMesh`, and `emit_pipeline` shares
its grid among them, by the names of both axes of the mesh. Within it a single copy takes its rows from a list of
numbers, `table_hbm.at[index_vmem]`: the hardware goes through the list. XLA does the same unasked where it finds it
worth while, on v7x with `jnp.take`.

The simulator executes both: the TensorCore's program with its launch and its wait, and the programs of the SparseCores'
sequencers and subcores. What it says of the TensorCore's own gather rests on the cost of starting a copy, fitted on
other kernels and largest by far on v6e; what it says of the SparseCores, on the rate of a subcore's stream, fitted to
one published gather on v7x and assumed elsewhere. Their times are therefore called modelled. Neither kind of core can
be faster than HBM.

Grid: (i,) over blocks of 128 rows. In VMEM: a block of the result, twice; on the SparseCore a block of numbers also.

The notes that this follows: "Pallas Tutorial Notes", SparseCore.
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
    """The rows, by XLA."""
    return jnp.take(table, index, axis=0, mode="clip")


def copy_rows_kernel(
    index_smem,  # [rows] int32, prefetched
    table_hbm,  # [m, n] float32
    out_vmem,  # [BLOCK, n] float32
    sem,  # of all copies of a step
):
    """Starts a copy for each row of the block, then waits for as many bytes as the block has."""
    first = pl.program_id(0) * BLOCK

    @pl.loop(0, BLOCK)
    def _start(row):
        source = table_hbm.at[pl.ds(index_smem[first + row], 1)]
        pltpu.make_async_copy(source, out_vmem.at[pl.ds(row, 1)], sem).start()

    pltpu.make_async_copy(table_hbm.at[pl.ds(0, BLOCK)], out_vmem, sem).wait()


def copy_rows(table: Array, index: Array) -> Array:
    """The rows on the TensorCore, a copy each. `rows` is a multiple of BLOCK, and m not below it."""
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
    """On each subcore: a pipeline over its share of the blocks. A list of numbers comes, a copy takes the rows."""

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
    """The rows on all SparseCores of the device. `rows` is a multiple of BLOCK times their subcores.

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
