"""v1 · The whole product in one step.

    out[m, n] = Σ_kk lhs[m, kk] · rhs[kk, n]

A TPU core computes on VMEM, a fast memory of some megabytes inside the chip. Arrays live in HBM, the large and slower
memory next to it. A Pallas kernel is a function of *refs*: names for pieces of memory. `ref[...]` reads the array that
a ref holds, and `ref[...] = x` writes it. Called without a grid, `pallas_call` copies both operands from HBM to VMEM,
runs the kernel once, and copies the result back.

Adds: this is the smallest kernel that multiplies two matrices. The matrix unit multiplies blocks of 128 × 128 (from v6e
on 256 × 256); the compiler cuts the product into such blocks by itself.

Costs: all three matrices are in VMEM at the same time. In float32 they take 12 MiB for 1024³ and 48 MiB for 2048³, and
a v5e gives a kernel 16 MiB. Nothing overlaps either: the matrix unit waits until both operands have arrived, and the
result is copied back after the last product.

Precision: the matrix unit rounds float32 operands to bfloat16 unless it is told otherwise. Sums are kept in float32.

Grid: none. VMEM: lhs, rhs and out, whole, one copy of each.
Climb on when the three matrices do not fit, or when their copies take long enough to be worth hiding.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def kernel(
    lhs_vmem,  # [m, k] float32, bfloat16 or int8
    rhs_vmem,  # [k, n] like lhs
    out_vmem,  # [m, n] dtype_out
):
    """Multiply everything at once."""
    # Floats are summed in float32 and integers in int32, whatever the dtype of the result.
    sum_dtype = jnp.int32 if jnp.issubdtype(lhs_vmem.dtype, jnp.integer) else jnp.float32
    product = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=sum_dtype)
    out_vmem[...] = product.astype(out_vmem.dtype)


def matmul(lhs: jax.Array, rhs: jax.Array, *, dtype_out=None, interpret=False) -> jax.Array:
    """`lhs[m, k] @ rhs[k, n]` in one step, as `dtype_out` (by default the dtype of lhs, or int32 for int8).

    `interpret=True`, or `pltpu.InterpretParams()`, runs the kernel on a CPU.
    """
    if lhs.shape[1] != rhs.shape[0] or 0 in (*lhs.shape, *rhs.shape):
        raise ValueError(f"lhs{lhs.shape} @ rhs{rhs.shape} is not a product")
    dtype_out = dtype_out or (jnp.int32 if lhs.dtype == jnp.int8 else lhs.dtype)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), dtype_out),
        interpret=interpret,
        name="matmul_v1_whole",
    )(lhs, rhs)
