"""v5 · A sum with memory of its own.

    acc[i, j] = Σ_kk lhs[i, kk] @ rhs[kk, j]        in float32, or int32 for int8
    out[i, j] = acc rounded to dtype_out            once, after the last kk

A sum needs more bits than its terms. So it gets *scratch memory*: a buffer in VMEM that exists once, is never copied,
and keeps its contents from step to step. The output block is written when the sum is complete.

Adds: the accumulator. bfloat16 is rounded once instead of k/bk times. And because the output block can have a small
dtype now, larger blocks fit.

Costs: 4 · bm · bn bytes of VMEM for the sum, and one more pass over it after the last step. float32 gains little over
v4: its sums were float32 already, and its blocks take twice the space, so 512/512/1024 fits where 512/1024/1024 needs
18 MiB.

Precision: products of two bfloat16 numbers are exact in float32, so only the sum rounds. int32 holds every sum of int8
products up to k = 131,071.

One line has nothing to do with the accumulator. `dimension_semantics` says that blocks of out do not depend on each
other ("parallel"), and that steps along k do ("arbitrary"). A chip whose two cores are one device, v4 or v5p, then
gives each core half of the blocks. The lesson `cores` is about this.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk fastest. VMEM: a block of lhs, of rhs and of out, twice each, and acc once.
Climb on when larger blocks would need code or VMEM that the compiler does not give you.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def kernel(
    lhs_vmem,  # [bm, bk] float32, bfloat16 or int8
    rhs_vmem,  # [bk, bn] like lhs
    out_vmem,  # [bm, bn] dtype_out
    acc_vmem,  # [bm, bn] float32 or int32, scratch
):
    """Add one product of blocks to the accumulator, and round the sum into the output at the last step along k."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=acc_vmem.dtype)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _finish():
        out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)


def matmul(lhs: jax.Array, rhs: jax.Array, *, bm=512, bk=1024, bn=1024, dtype_out=None, interpret=False) -> jax.Array:
    """`lhs[m, k] @ rhs[k, n]` by blocks, as `dtype_out` (by default the dtype of lhs, or int32 for int8)."""
    (m, k), n = lhs.shape, rhs.shape[1]
    if k != rhs.shape[0] or m % bm or k % bk or n % bn or 0 in (m, k, n):
        raise ValueError(f"lhs{lhs.shape} @ rhs{rhs.shape}: blocks of {bm=}, {bk=}, {bn=} have to divide the matrices")
    sum_dtype = jnp.int32 if jnp.issubdtype(lhs.dtype, jnp.integer) else jnp.float32
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
        scratch_shapes=[pltpu.VMEM((bm, bn), sum_dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name="matmul_v5_accumulator",
    )(lhs, rhs)
