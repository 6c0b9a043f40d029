"""A block-sparse matrix times a dense one, with one step for each block that exists.

    out = lhs @ rhs        lhs as a list of its blocks, with the row and the column of each (COO)

The list is sorted by rows, so the steps of one row of blocks follow each other: the first of them clears the sum, the
last one writes it. Rows without a block are never visited. Their part of the result keeps the contents of `zeros`, an
argument whose memory becomes the result (`input_output_aliases`).

Grid: (j, b) over columns of out and blocks of lhs, b innermost. In VMEM: a block of lhs, rhs and out, twice each, and
the sum once. In SMEM: a row and a column for each block.

Use `output_mask` if both matrices are dense, and only some blocks of their product are needed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def sparse_kernel(
    rows_smem,  # [blocks] int32
    columns_smem,  # [blocks] int32, read by the index maps
    block_vmem,  # [1, bm, bk] bfloat16
    rhs_vmem,  # [bk, bn] bfloat16
    zeros,  # in HBM or VMEM, the memory of the result
    out_vmem,  # [bm, bn] bfloat16
    acc_vmem,  # [bm, bn] float32
):
    """Add one block's product; clear the sum where a row of blocks begins, and write it where the row ends."""
    del columns_smem, zeros
    b, last = pl.program_id(1), pl.num_programs(1) - 1

    @pl.when((b == 0) | (rows_smem[b] != rows_smem[jnp.maximum(b - 1, 0)]))
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    acc_vmem[...] += jnp.dot(block_vmem[0], rhs_vmem[...], preferred_element_type=jnp.float32)

    @pl.when((b == last) | (rows_smem[b] != rows_smem[jnp.minimum(b + 1, last)]))
    def _write():
        out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)


def sparse_matmul(
    rows: Array,
    columns: Array,
    blocks: Array,
    rhs: Array,
    zeros: Array,
    *,
    bn: int = 512,
    copies_zeros: bool = False,
) -> Array:
    """Multiply the matrix with `blocks` at (rows, columns), sorted by rows, by `rhs`; rows without one keep `zeros`.

    With `copies_zeros` a block of zeros is copied to VMEM for each block of out, unused, as in JAX's documentation.
    """
    count, bm, bk = blocks.shape
    of_out = pl.BlockSpec((bm, bn), lambda j, b, rows, columns: (rows[b], j))
    return pl.pallas_call(
        sparse_kernel,
        out_shape=jax.ShapeDtypeStruct(zeros.shape, zeros.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(rhs.shape[1] // bn, count),
            in_specs=[
                pl.BlockSpec((1, bm, bk), lambda j, b, rows, columns: (b, 0, 0)),
                pl.BlockSpec((bk, bn), lambda j, b, rows, columns: (columns[b], j)),
                of_out if copies_zeros else pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=of_out,
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        input_output_aliases={4: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="sparse_matmul",
    )(rows, columns, blocks, rhs, zeros)


def sparse_reference(rows: Array, columns: Array, blocks: Array, rhs: Array, zeros: Array) -> Array:
    """Multiply a dense matrix with the same blocks."""
    _, bm, bk = blocks.shape
    grid_m, grid_k = zeros.shape[0] // bm, rhs.shape[0] // bk
    lhs = jnp.zeros((grid_m, grid_k, bm, bk), blocks.dtype).at[rows, columns].set(blocks)
    product = lhs.swapaxes(1, 2).reshape(zeros.shape[0], -1) @ rhs
    visited = jnp.zeros(grid_m, bool).at[rows].set(True).repeat(bm)
    return jnp.where(visited[:, None], product, zeros)


def block_list(count: int, grid_m: int, grid_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of `count` blocks at random places of a grid, sorted by rows."""
    places = np.random.default_rng(0).choice(grid_m * grid_k, count, replace=False)
    rows, columns = np.divmod(np.sort(places), grid_k)
    return rows.astype(np.int32), columns.astype(np.int32)
