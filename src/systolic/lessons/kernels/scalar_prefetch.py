"""SMEM and scalar prefetch · Blocks that are looked up, and steps that copy and compute nothing.

The scalar unit decides what happens, and it reads SMEM: 32 bits at a time, in any order. What `PrefetchScalarGridSpec`
prefetches lies there before the first step, so also the index maps can read it: which block a step copies is looked up.

    out[i] = x[order[i]]           chosen blocks                                                  `chosen_blocks`
    out = lhs @ rhs                lhs block-sparse: a list of blocks, with their rows and columns `block_sparse`
    out = mask · (lhs @ rhs)       both dense; the mask says which blocks of out are wanted        `output_mask`

The time of the second follows the number of blocks, that of the third the number of wanted blocks. It takes two things:
`pl.when` skips the work of a step, and an index map that repeats the previous index skips its copies. With the first
alone a step that does nothing still waits for its operands. Where two cores share a device, they halve the rows of
blocks, and of a triangle one half is three quarters: v5p gains less. Blocks of 512 are the docs'; they suit v5e, and
leave v6e and v7x waiting for copies.

Where the docs give times, of a v5e at 16384³, the same programs are simulated. Their list of blocks is drawn at p = 0.1
with JAX's random numbers: that makes 86 blocks of 1024 by the stream of then and 107 by today's, and they do not say
which. So many are placed here at random. Their times are a host's wall clock around each call, so a simulated time
should be shorter. Each call also copies the array of zeros, since it is not donated: that is XLA's, and in both.

Grid of `chosen_blocks`: (i,) over the chosen blocks; in VMEM a block of x and out, twice each.

The pages that this follows: Pallas TPU, "Scalar Prefetch and Block-Sparse Computation". And notes on `pl.kernel` that
copy indices to SMEM inside the kernel and leave it there: `chosen_blocks_by_hand`, at the end, goes on.
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
    """Passes the block on that has been copied."""
    del order_smem
    out_vmem[...] = x_vmem[...]


def chosen_blocks(order: Array, x: Array) -> Array:
    """The blocks of 256 rows of x that `order` names, in its order."""
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
    """Fetches the indices, then has every block copied within HBM: nothing of x enters VMEM."""
    pltpu.sync_copy(order_hbm, order_smem)

    def block(i):
        chosen = pl.ds(pl.multiple_of(order_smem[i] * ROWS, ROWS), ROWS)
        return pltpu.make_async_copy(x_hbm.at[chosen], out_hbm.at[pl.ds(i * ROWS, ROWS)], sem)

    for i in range(order_smem.shape[0]):
        block(i).start()
    for i in range(order_smem.shape[0]):
        block(i).wait()


def chosen_blocks_by_hand(order: Array, x: Array) -> Array:
    """The same, by a kernel that fetches `order` itself: the indices could be its own result."""
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        chosen_by_hand_kernel,
        out_shape=jax.ShapeDtypeStruct((len(order) * ROWS, x.shape[1]), x.dtype),
        in_specs=[hbm, hbm],
        out_specs=hbm,
        scratch_shapes=[pltpu.SMEM(order.shape, jnp.int32), pltpu.SemaphoreType.DMA],
        name="chosen_blocks_by_hand",
    )(order, x)
