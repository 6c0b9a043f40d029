"""v3 · Blocks, and a sum over the grid.

    out[i, j] = Σ_kk lhs[i, kk] @ rhs[kk, j]        over blocks of bm × bk, bk × bn and bm × bn

Now k is cut as well. The grid has a third axis, and the steps along it add into the same block of the result: the first
clears it, each adds one product. Along that axis the index of the output block stays the same, so Pallas leaves the
block in VMEM and writes it to HBM once, when the index moves on. That is why k has to be the *last* axis: all steps of
one output block must follow each other.

Adds: VMEM no longer depends on the size of the matrices. Three blocks of 128 × 128 do for any product.

Costs: traffic and steps. lhs is read n/bn times and rhs m/bm times: m·k·n/bn + m·k·n/bm + m·n elements, for 4096³ in
float32 4 GiB where 192 MiB would do. And 32,768 steps, each with the pipeline's own bookkeeping and with a product so
small that the matrix unit spends much of the step filling and draining.

Precision: the running sum *is* the output block, so it is rounded to the output's dtype at every step. In float32
that is no loss. In bfloat16, with 8 bits of mantissa, k/bk roundings follow each other, each of a sum that has grown:
the error grows with √(k/bk), and what a late step adds may vanish altogether. v5 is the cure. int8 comes out as int32
and is exact.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost. In VMEM: one block of lhs, rhs and out, twice each.
When to climb on: always; v4 is the same kernel with better blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Shaped

from systolic.lessons.ladder.rung import Rung, block_rules, checked, clipped
from systolic.problem import MatmulProblem
from systolic.tiling import Tiles, hbm_bytes

if TYPE_CHECKING:
    from jax.experimental.pallas import tpu as pltpu

DEFAULT_TILES = Tiles.cube(128)


def matmul_v3_kernel(
    lhs_vmem,  # [bm, bk] float32, bfloat16 or int8
    rhs_vmem,  # [bk, bn] the same
    out_vmem,  # [bm, bn] dtype_out, also the running sum
):
    """Adds one product of blocks to the output block."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        out_vmem[...] = jnp.zeros_like(out_vmem)

    accumulator = jnp.int32 if jnp.issubdtype(lhs_vmem.dtype, jnp.integer) else jnp.float32
    product = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=accumulator)
    # Added before it is rounded: rounding the product first as well would double the roundings.
    out_vmem[...] = (out_vmem[...].astype(accumulator) + product).astype(out_vmem.dtype)


def matmul_v3(
    lhs: Shaped[Array, "m k"],
    rhs: Shaped[Array, "k n"],
    *,
    tiles: Tiles,
    dtype_out: str,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "m n"]:
    """`lhs @ rhs` by blocks, summed in the output block, as `dtype_out`.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty.
      IllegalTilesError: a tile above the matrix, one that does not divide it, a misaligned one, or dtypes that
        the ladder does not multiply.
    """
    problem = checked("v3", lhs, rhs, tiles, dtype_out, block_rules)
    m, k, n = problem.m, problem.k, problem.n
    bm, bk, bn = tiles.tile_m, tiles.tile_k, tiles.tile_n
    return pl.pallas_call(
        matmul_v3_kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((bk, bn), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out),
        cost_estimate=pl.CostEstimate(flops=problem.flops, transcendentals=0, bytes_accessed=hbm_bytes(problem, tiles)),
        interpret=interpret,
        name="matmul_v3_block",
    )(lhs, rhs)


def default_tiles(problem: MatmulProblem, _splits: int) -> Tiles:
    """128 each way, or the matrix where that is smaller."""
    return clipped(DEFAULT_TILES, problem)


RUNG = Rung(
    name="v3",
    title="blocks of 128³",
    adds="k cut as well, summed in the output block: VMEM no longer grows with the matrix",
    costs="operands read many times, many small steps, a running sum in the output's dtype",
    multiply=matmul_v3,
    default_tiles=default_tiles,
    takes_tiles=True,
    sweeps=False,
    pipelined=True,
    accumulator=False,
    rounds_each_step=True,
)

if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["ladder", "v3", *sys.argv[1:]]))
