"""v2 · Rows by columns.

    out[i-th rows, j-th columns] = lhs[i-th rows, :] @ rhs[:, j-th columns]        i, j = 0 … N − 1

lhs is cut into N bands of rows and rhs into N bands of columns. A *grid* of N × N steps multiplies every band of rows
by every band of columns, over all of k. A `BlockSpec` says how large the block of an array is that a step works on, and
its index map says which block that is: step (i, j) needs block (i, 0) of lhs.

Adds: the grid, and with it the pipeline. Pallas keeps two buffers for each operand. While one step computes, the blocks
of the next step are copied in, and the result of the step before is copied out. A block whose index stays the same is
not copied again: a band of lhs stays for N steps.

Costs: a band is as long as k, so VMEM still grows with the matrices: 2 · (m/N · k + k · n/N + m/N · n/N) elements, or
18 MiB for 2048³ in float32 with N = 4. A larger N makes the bands thinner, but rhs is then read from HBM N times. N has
to divide m and n, because `m // N` rows a band would leave the last rows out.

Precision: as in v1. The sum over k is float32 (int32 for int8) and is rounded once.

Grid: (i, j) = (N, N), j fastest. VMEM: a band of lhs [m/N, k], a band of rhs [k, n/N] and a block of out, twice each.
Climb on when a band no longer fits. With a long k that happens whatever N is.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def kernel(
    lhs_vmem,  # [m/N, k] float32, bfloat16 or int8
    rhs_vmem,  # [k, n/N] like lhs
    out_vmem,  # [m/N, n/N] dtype_out
):
    """Multiply one band of rows by one band of columns."""
    sum_dtype = jnp.int32 if jnp.issubdtype(lhs_vmem.dtype, jnp.integer) else jnp.float32
    product = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=sum_dtype)
    out_vmem[...] = product.astype(out_vmem.dtype)


def matmul(lhs: jax.Array, rhs: jax.Array, *, bands=4, dtype_out=None, interpret=False) -> jax.Array:
    """`lhs[m, k] @ rhs[k, n]` by N = `bands` bands of rows and of columns.

    The result is `dtype_out`: by default the dtype of lhs, or int32 for int8.
    """
    (m, k), n = lhs.shape, rhs.shape[1]
    if k != rhs.shape[0] or m % bands or n % bands or 0 in (m, k, n):
        raise ValueError(f"lhs{lhs.shape} @ rhs{rhs.shape}: {bands=} has to divide the rows of lhs and columns of rhs")
    rows, columns = m // bands, n // bands
    dtype_out = dtype_out or (jnp.int32 if lhs.dtype == jnp.int8 else lhs.dtype)
    return pl.pallas_call(
        kernel,
        grid=(bands, bands),
        in_specs=[
            pl.BlockSpec((rows, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, columns), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out),
        interpret=interpret,
        name="matmul_v2_rows_columns",
    )(lhs, rhs)
