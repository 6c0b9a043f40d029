"""The first matmul as a template: one kernel, whose transpose and activation are filled in.

    out = activation(lhs @ rhs)        with rhs[k, n]
    out = activation(lhs @ rhsᵀ)       with rhs[n, k]

The body is the same as in rung v5 of the ladder, with two holes.

**The transpose** costs nothing. The matrix unit takes its right-hand side either way round, so only two descriptions
change: the index map fetches block (j, kk) instead of (kk, j), and the dot contracts axis 1 of rhs instead of axis 0.
`swapaxes` before the kernel would give the same result, but XLA might first write a transposed copy of the whole matrix
to HBM.

**The activation** is applied to the complete sum, in the accumulator's dtype, before the sum is rounded and leaves
VMEM. A separate kernel would read and write the m·n elements again for very little arithmetic, so it would be bound by
memory even if the product is not. Any function that treats each element alone will do. The kernel calls it on blocks,
so a function along rows, such as a softmax, would be wrong. `requantized` is an activation that scales int32 sums to
int8, so the result leaves with a quarter of the bytes.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost. In VMEM: a block of lhs, rhs and out, twice each, and acc once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def identity(acc: Array) -> Array:
    """Return the sum as it is: no activation."""
    return acc


def first_matmul_kernel(
    lhs_vmem,  # [bm, bk] float32, bfloat16 or int8
    rhs_vmem,  # [bk, bn], or [bn, bk] transposed; the same dtype
    out_vmem,  # [bm, bn] dtype_out
    acc_vmem,  # [bm, bn] float32 or int32, scratch
    *,
    transpose_rhs: bool,
    activation: Callable[[Array], Array],
):
    """Add one product of blocks to the accumulator; activate and round it at the last k step."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    contracted = ((1,), (1,)) if transpose_rhs else ((1,), (0,))
    acc_vmem[...] += lax.dot_general(
        lhs_vmem[...],
        rhs_vmem[...],
        dimension_numbers=(contracted, ((), ())),
        preferred_element_type=acc_vmem.dtype,
    )

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _finish():
        out_vmem[...] = activation(acc_vmem[...]).astype(out_vmem.dtype)


def requantized(scale: float) -> Callable[[Array], Array]:
    """Return an activation for int8: `scale` times the sum, rounded to the nearest int8 (ties to even), saturated.

    Raises:
      ValueError: a scale that is not a positive number.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale={scale} is not a positive number; use one near 127 / the largest sum")
    return lambda acc: jnp.clip(jnp.round(acc.astype(jnp.float32) * scale), -128, 127).astype(jnp.int32)


def first_matmul(
    lhs: Array,
    rhs: Array,
    *,
    bm: int = 256,
    bk: int = 256,
    bn: int = 256,
    dtype_out: Any = None,
    transpose_rhs: bool = False,
    activation: Callable[[Array], Array] = identity,
    interpret: Any = False,
) -> Array:
    """`activation(lhs[m, k] @ rhs[k, n])`, with `transpose_rhs` `activation(lhs[m, k] @ rhs[n, k].T)`.

    Args:
      bm, bk, bn: sides of the blocks; a smaller matrix is one block.
      dtype_out: by default the dtype of the operands, or int32 for int8.
      activation: a function of each element of the float32 (int32) sum.

    Raises:
      ValueError: the operands are not matrices, do not match, or are not divided by the blocks.
    """
    contracted = 1 if transpose_rhs else 0
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[contracted] or 0 in (*lhs.shape, *rhs.shape):
        rhs_shape = "rhs[n, k]" if transpose_rhs else "rhs[k, n]"
        raise ValueError(
            f"lhs{list(lhs.shape)}, rhs{list(rhs.shape)}, {transpose_rhs=} needs lhs[m, k] and {rhs_shape}"
        )
    if lhs.dtype != rhs.dtype:
        raise ValueError(f"lhs is {lhs.dtype} and rhs is {rhs.dtype}: convert one of them")
    (m, k), n = lhs.shape, rhs.shape[1 - contracted]
    bm, bk, bn = min(bm, m), min(bk, k), min(bn, n)
    if m % bm or k % bk or n % bn:
        raise ValueError(f"{m=}, {k=}, {n=}: blocks of {bm=}, {bk=}, {bn=} have to divide the matrices")
    sum_dtype = jnp.int32 if jnp.issubdtype(lhs.dtype, jnp.integer) else jnp.float32
    if transpose_rhs:
        rhs_spec = pl.BlockSpec((bn, bk), lambda i, j, kk: (j, kk))
    else:
        rhs_spec = pl.BlockSpec((bk, bn), lambda i, j, kk: (kk, j))
    return pl.pallas_call(
        functools.partial(first_matmul_kernel, transpose_rhs=transpose_rhs, activation=activation),
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, kk: (i, kk)), rhs_spec],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out or (jnp.int32 if lhs.dtype == jnp.int8 else lhs.dtype)),
        scratch_shapes=[pltpu.VMEM((bm, bn), sum_dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name="first_matmul",
    )(lhs, rhs)
