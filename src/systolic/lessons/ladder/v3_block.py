"""v3 · Blocks, and a sum over the grid.

    out[i, j] = Σ_kk lhs[i, kk] @ rhs[kk, j]        over blocks of bm × bk, bk × bn and bm × bn

Now k is cut as well. The grid gets a third axis, and the steps along it add to the same block of the result: the first
step clears the block, and every step adds one product. Along this axis the index of the output block stays the same, so
Pallas leaves the block in VMEM, and copies it to HBM when the index moves on. This is why k has to be the *last* axis
of the grid: all steps of one output block must follow each other.

Adds: VMEM no longer grows with the matrices. Three blocks of 128 × 128 are enough for any product.

Costs: traffic and steps. lhs is read n/bn times and rhs m/bm times. In float32 that is 4 GiB for 4096³, where 192 MiB
would do. There are 32,768 steps, each with some bookkeeping of the pipeline, and each product is so small that the
matrix unit spends much of the step filling and draining.

Precision: the running sum *is* the output block, so every step rounds it to the dtype of the output. float32 loses
nothing by that. bfloat16 has 8 significant bits: the error grows with √(k/bk), and a small product that is added late
may vanish. v5 cures this. int8 is summed in an int32 result, which is exact.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk fastest. VMEM: a block of lhs, of rhs and of out, twice each.
Climb on always: v4 is the same kernel with better blocks.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def kernel(
    lhs_vmem,  # [bm, bk] float32, bfloat16 or int8
    rhs_vmem,  # [bk, bn] like lhs
    out_vmem,  # [bm, bn] dtype_out, also the running sum
):
    """Add one product of blocks to the output block."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        out_vmem[...] = jnp.zeros_like(out_vmem)

    sum_dtype = jnp.int32 if jnp.issubdtype(lhs_vmem.dtype, jnp.integer) else jnp.float32
    product = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=sum_dtype)
    # Added before it is rounded: rounding the product first as well would double the roundings.
    out_vmem[...] = (out_vmem[...].astype(sum_dtype) + product).astype(out_vmem.dtype)


def matmul(lhs: jax.Array, rhs: jax.Array, *, bm=128, bk=128, bn=128, dtype_out=None, interpret=False) -> jax.Array:
    """`lhs[m, k] @ rhs[k, n]` by blocks, as `dtype_out` (by default the dtype of lhs, or int32 for int8)."""
    (m, k), n = lhs.shape, rhs.shape[1]
    if k != rhs.shape[0] or m % bm or k % bk or n % bn or 0 in (m, k, n):
        raise ValueError(f"lhs{lhs.shape} @ rhs{rhs.shape}: blocks of {bm=}, {bk=}, {bn=} have to divide the matrices")
    dtype_out = dtype_out or (jnp.int32 if lhs.dtype == jnp.int8 else lhs.dtype)
    return pl.pallas_call(
        kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((bk, bn), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out),
        interpret=interpret,
        name="matmul_v3_block",
    )(lhs, rhs)
