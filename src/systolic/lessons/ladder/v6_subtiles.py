"""v6 · A large tile, multiplied in subtiles.

    acc[:, s] = Σ_kk lhs[i, kk] @ rhs[kk, j][:, s]        for each subtile s of the step's bn columns, sn of them

Operands are read m·k·n/bn + m·k·n/bm elements in all, so larger blocks of the output mean less traffic. But the
compiler unrolls the product of a step into straight code. A step of 2048 × 512 × 2048 would be tens of thousands of
instructions and take minutes to compile. So a step loops over *subtiles*: `pl.loop` runs the same code for sn columns
at a time. The code has the length of one subtile, whatever the size of the block.

Adds: the loop over subtiles, and with it blocks four times as large. Blocks of this size take more VMEM than a kernel
gets unasked (16 MiB on a v5e), so the launcher asks for more with `vmem_limit_bytes`. v5e has 128 MiB, v5p and v7x 64.

Costs: VMEM, about 48 MiB. v4 has 16 MiB and cannot run it. The matrix unit drains at the end of each subtile, so they
should be long: 1024 columns rather than 256. And few large steps are left: a product of 2048³ takes 8, and waits for
its first blocks and for the store of its last one while nothing else is going on. This is why small products gain
little. Against v5 in bfloat16, simulated: 4096³ takes 192 µs instead of 312 on v6e, and 731 instead of 758 on v5e; but
1024³ takes 7.6 instead of 7.4 on v6e. There is one block of out then, so v5p has work for one of its cores only.

Precision: as in v5.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk fastest. VMEM: a block of lhs, of rhs and of out, twice each, and acc once.
Climb on when the core still waits for copies: where a new output block begins, much has to arrive at once.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SUBTILE = 1024  # columns that are multiplied at a time
VMEM_LIMIT_BYTES = 56 * 2**20


def kernel(
    lhs_vmem,  # [bm, bk] float32, bfloat16 or int8
    rhs_vmem,  # [bk, bn] like lhs
    out_vmem,  # [bm, bn] dtype_out
    acc_vmem,  # [bm, bn] float32 or int32, scratch
):
    """Add one product of blocks to the accumulator, one subtile after the other."""
    kk, last, bn = pl.program_id(2), pl.num_programs(2) - 1, acc_vmem.shape[1]
    sn = SUBTILE if bn % SUBTILE == 0 else bn

    @pl.loop(0, bn // sn)
    def _multiply_subtile(s):
        columns = pl.ds(pl.multiple_of(s * sn, sn), sn)
        product = jnp.dot(lhs_vmem[...], rhs_vmem[:, columns], preferred_element_type=acc_vmem.dtype)
        # The first step along k ignores what the memory holds: no loop of its own has to clear it.
        total = product + jnp.where(kk == 0, jnp.zeros_like(product), acc_vmem[:, columns])
        acc_vmem[:, columns] = total

        @pl.when(kk == last)
        def _finish():
            out_vmem[:, columns] = total.astype(out_vmem.dtype)


def matmul(lhs: jax.Array, rhs: jax.Array, *, bm=2048, bk=512, bn=2048, dtype_out=None, interpret=False) -> jax.Array:
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
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
        interpret=interpret,
        name="matmul_v6_subtiles",
    )(lhs, rhs)
