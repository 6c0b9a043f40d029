"""v4 · The same kernel, with blocks that suit the chip.

Not a line of v3's kernel changes. What changes is how much a step does for what it costs:

    arithmetic of a step   2 · bm · bk · bn           grows with the cube of the block
    copies of a step       bm · bk + bk · bn          grows with its square
    bookkeeping of a step  constant

So larger blocks mean more arithmetic for each byte. (It is bm · bn / (bm + bn) multiply-adds for each element, whatever
bk is.) There are two limits. VMEM is full at some point. And with few steps left, the first copy weighs more, since no
arithmetic hides it. The best blocks lie between the two and depend on the size, the dtype and the chip: they have to be
searched for. 512³ was found on a v5e.

Adds: a choice of blocks. `--sweep` compiles and simulates candidates and says which is fastest; `--tiles` takes yours.

Costs: VMEM, 2 · (bm·bk + bk·bn + bm·bn) elements, or 6 MiB for 512³ in float32. A block has to divide the matrix and be
a multiple of 8 rows (32 for int8) and 128 columns, so large blocks fit fewer sizes.

Precision: as in v3, but a larger bk means that the running sum is rounded less often.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk fastest. VMEM: a block of lhs, of rhs and of out, twice each.
Climb on for bfloat16, whose sum should not be kept in the output.
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


def matmul(lhs: jax.Array, rhs: jax.Array, *, bm=512, bk=512, bn=512, dtype_out=None, interpret=False) -> jax.Array:
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
        name="matmul_v4_tiles",
    )(lhs, rhs)
