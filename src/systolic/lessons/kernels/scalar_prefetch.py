"""SMEM and scalar prefetch · Blocks that are looked up, and steps that copy and compute nothing.

The scalar unit controls a kernel. It reads SMEM, 32 bits at a time, in any order. `PrefetchScalarGridSpec` copies its
first operands to SMEM before the first step, so index maps can read them too: the block of a step is looked up.

    out[i] = x[order[i]]           chosen blocks                                                  `chosen_blocks`
    out = lhs @ rhs                lhs block-sparse: a list of blocks, with their rows and columns `block_sparse`
    out = mask · (lhs @ rhs)       both dense; the mask says which blocks of out are needed        `output_mask`

The time of the second is proportional to the number of blocks, the time of the third to the number of needed blocks.
Both need two things: `pl.when` skips the work of a step, and an index map that repeats the previous index skips its
copies. With the first alone, a step that does nothing still waits for its operands. If two cores share a device, each
gets half of the rows of blocks; the second half of a triangle is three quarters of the work, so v5p gains less. Blocks
of 512 are from JAX's documentation. They suit v5e; v6e and v7x wait for copies.

JAX's documentation gives times of a v5e at 16384³, and the same programs are simulated here. Its list of blocks is
drawn at p = 0.1 with JAX's random numbers. That gives 86 blocks of 1024 with the generator of that time and 107 with
today's, and the documentation does not say which. Here 86 or 107 blocks are placed at random. The published times are
wall-clock times of a host, so a simulated time should be shorter. XLA copies the array of zeros in each call, because
it is not donated; this is in both times.

Grid of `chosen_blocks`: (i,) over the chosen blocks; in VMEM a block of x and out, twice each.

This follows the page Pallas TPU, "Scalar Prefetch and Block-Sparse Computation"; and notes on `pl.kernel` that end
after copying indices to SMEM inside the kernel. `chosen_blocks_by_hand` continues from there.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS = 256  # of a chosen block


def chosen_kernel(
    order_smem,  # [chosen] int32, read by the index map
    x_vmem,  # [rows, n] float32
    out_vmem,  # the same
):
    """Copy the block from VMEM to VMEM."""
    del order_smem
    out_vmem[...] = x_vmem[...]


def chosen_blocks(order: Array, x: Array) -> Array:
    """Return the blocks of 256 rows of x that `order` names, in its order."""
    n = x.shape[1]
    return pl.pallas_call(
        chosen_kernel,
        out_shape=jax.ShapeDtypeStruct((len(order) * ROWS, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(order),),
            in_specs=[pl.BlockSpec((ROWS, n), lambda i, order: (order[i], 0))],
            out_specs=pl.BlockSpec((ROWS, n), lambda i, order: (i, 0)),
        ),
        name="chosen_blocks",
    )(order, x)


def chosen_by_hand_kernel(
    order_hbm,  # [chosen] int32
    x_hbm,  # [m, n] float32
    out_hbm,  # [chosen·rows, n] float32
    order_smem,  # [chosen] int32, scratch
    sem,  # of the copies
):
    """Copy the indices to SMEM, then each block from HBM to HBM: x never enters VMEM."""
    pltpu.sync_copy(order_hbm, order_smem)

    def block(i):
        chosen = pl.ds(pl.multiple_of(order_smem[i] * ROWS, ROWS), ROWS)
        return pltpu.make_async_copy(x_hbm.at[chosen], out_hbm.at[pl.ds(i * ROWS, ROWS)], sem)

    for i in range(order_smem.shape[0]):
        block(i).start()
    for i in range(order_smem.shape[0]):
        block(i).wait()


def chosen_blocks_by_hand(order: Array, x: Array) -> Array:
    """Return the chosen blocks by a kernel that copies `order` to SMEM itself, so it could also compute the indices."""
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        chosen_by_hand_kernel,
        out_shape=jax.ShapeDtypeStruct((len(order) * ROWS, x.shape[1]), x.dtype),
        in_specs=[hbm, hbm],
        out_specs=hbm,
        scratch_shapes=[pltpu.SMEM(order.shape, jnp.int32), pltpu.SemaphoreType.DMA],
        name="chosen_blocks_by_hand",
    )(order, x)
