"""A product of dense matrices with a mask: steps of blocks that are not needed compute nothing and copy nothing.

    out = mask · (lhs @ rhs)

The grid is the same as for the whole product. `pl.when` skips the work of an unneeded block, but its operands would
still be copied. So during these steps the index maps name the first operands of the next needed block, whatever kk is.
An index that repeats the previous one copies nothing, and the operands are in VMEM when the needed block comes.

The mask inside a block is multiplied at the end. Only few kinds of blocks occur in a mask (a triangle has two, on the
diagonal and below it), so a list holds each kind once.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost. In VMEM: a block of lhs, rhs, out and the mask, twice each, and the
sum once. In SMEM: four numbers for each block of out.

Use `block_sparse` if an operand itself is block-sparse.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def masked_kernel(
    needed_smem,  # [m/bm, n/bn] int32
    next_i_smem,  # [m/bm, n/bn] int32, read by the index maps
    next_j_smem,  # the same
    kinds_smem,  # the same
    lhs_vmem,  # [bm, bk] bfloat16
    rhs_vmem,  # [bk, bn] bfloat16
    mask_vmem,  # [1, bm, bn] int32
    out_vmem,  # [bm, bn] bfloat16
    acc_vmem,  # [bm, bn] float32
):
    """Add one product of blocks if the block of out is needed; write zeros otherwise."""
    del next_i_smem, next_j_smem, kinds_smem
    kk = pl.program_id(2)

    @pl.when(kk == 0)
    def _clear():
        out_vmem[...] = jnp.zeros_like(out_vmem)
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    @pl.when(needed_smem[pl.program_id(0), pl.program_id(1)] != 0)
    def _work():
        acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)

        @pl.when(kk == pl.num_programs(2) - 1)
        def _write():
            out_vmem[...] = (mask_vmem[0] * acc_vmem[...]).astype(out_vmem.dtype)


def masked_matmul(
    needed: Array,
    next_i: Array,
    next_j: Array,
    kinds: Array,
    lhs: Array,
    rhs: Array,
    masks: Array,
    *,
    skips_copies: bool = True,
    bk: int = 1024,
) -> Array:
    """Return lhs @ rhs in the `needed` blocks, times their kind of mask; zeros elsewhere. See `next_needed`."""
    (m, k), n = lhs.shape, rhs.shape[1]
    _, bm, bn = masks.shape

    def lhs_map(i, j, kk, needed, next_i, next_j, kinds):
        return (next_i[i, j], jnp.where(needed[i, j] != 0, kk, 0)) if skips_copies else (i, kk)

    def rhs_map(i, j, kk, needed, next_i, next_j, kinds):
        return (jnp.where(needed[i, j] != 0, kk, 0), next_j[i, j]) if skips_copies else (kk, j)

    return pl.pallas_call(
        masked_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(m // bm, n // bn, k // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lhs_map),
                pl.BlockSpec((bk, bn), rhs_map),
                pl.BlockSpec((1, bm, bn), lambda i, j, kk, needed, next_i, next_j, kinds: (kinds[i, j], 0, 0)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, kk, *_: (i, j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="masked_matmul",
    )(needed, next_i, next_j, kinds, lhs, rhs, masks)


def masked_reference(
    needed: Array, next_i: Array, next_j: Array, kinds: Array, lhs: Array, rhs: Array, masks: Array
) -> Array:
    """Compute the whole product, and multiply it by the whole mask."""
    mask = masks[kinds] * needed[:, :, None, None]
    return mask.swapaxes(1, 2).reshape(lhs.shape[0], rhs.shape[1]) * (lhs @ rhs)


def next_needed(needed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column of the next needed block, for each block of out in the order of the grid.

    A needed block is its own next. After the last needed block, it is that block.
    """
    numbers = np.flatnonzero(needed)
    following = np.searchsorted(numbers, np.arange(needed.size)).clip(max=len(numbers) - 1)
    rows, columns = np.unravel_index(numbers[following].reshape(needed.shape), needed.shape)
    return rows.astype(np.int32), columns.astype(np.int32)
