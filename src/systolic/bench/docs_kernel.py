"""A block-sparse product as in JAX's documentation, which many users have: one block a step.

It is `lessons/kernels/block_sparse.py` with all its arguments spelled out, and the array of zeros that becomes the
result is copied to VMEM block by block, as there ("Scalar Prefetch and Block-Sparse Computation").
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def one_block_a_step(rows: Any, columns: Any, blocks: Array, rhs: Array, zeros: Array, *, count: int, bn: int) -> Array:
    """Return the first `count` blocks, sorted by rows, times rhs; `zeros` in rows without a block."""
    _, bm, bk = blocks.shape

    def kernel(
        rows_smem: Any, _columns_smem: Any, block_vmem: Any, rhs_vmem: Any, _zeros: Any, out_vmem: Any, acc_vmem: Any
    ) -> None:
        step = pl.program_id(1)
        before, after = jnp.maximum(step - 1, 0), jnp.minimum(step + 1, count - 1)

        @pl.when((step == 0) | (rows_smem[step] != rows_smem[before]))
        def _clear() -> None:
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += jnp.dot(block_vmem[0], rhs_vmem[...], preferred_element_type=jnp.float32)

        @pl.when((step == count - 1) | (rows_smem[step] != rows_smem[after]))
        def _write() -> None:
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    out = pl.BlockSpec((bm, bn), lambda j, step, rows, columns: (rows[step], j))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(zeros.shape, zeros.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(rhs.shape[1] // bn, count),
            in_specs=[
                pl.BlockSpec((1, bm, bk), lambda j, step, rows, columns: (step, 0, 0)),
                pl.BlockSpec((bk, bn), lambda j, step, rows, columns: (columns[step], j)),
                out,
            ],
            out_specs=out,
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        input_output_aliases={4: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="docs_block_sparse",
    )(rows, columns, blocks, rhs, zeros)
