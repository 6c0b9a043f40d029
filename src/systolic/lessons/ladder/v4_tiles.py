"""v4 · The same kernel, with tiles that suit the chip.

Not a line of v3's body changes. What changes is how much one step does for what it costs:

    arithmetic of a step   2 · bm · bk · bn           grows with the cube of the tile
    copies of a step       bm · bk + bk · bn          grows with the square
    bookkeeping of a step  constant

so longer tiles mean more arithmetic for each byte (bm · bn / (bm + bn) multiply-adds an element, whatever bk is),
until VMEM is full, or so few steps are left that the first copy, behind which nothing can hide, weighs. Between the
two lies an optimum, which depends on size, dtype and chip: it is searched for, not known. 512³ is what the seeds
found on a v5e.

Adds: a choice. `--sweep` compiles and simulates every candidate and says which won; `--tiles` takes yours.

Costs: VMEM, 2 · (bm·bk + bk·bn + bm·bn) elements, 6 MiB for 512³ in float32. A tile has to divide its size and be a
multiple of 8 rows (32 for int8) and 128 columns, so long tiles fit fewer sizes.

Precision: as v3, but a longer bk means fewer roundings of the running sum.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost. In VMEM: one block of lhs, rhs and out, twice each.
When to climb on: for bfloat16, whose sum should not be kept in the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array, Shaped

from systolic.lessons.ladder.rung import Rung, block_rules, checked, clipped
from systolic.lessons.ladder.v3_block import matmul_v3_kernel
from systolic.problem import MatmulProblem
from systolic.tiling import Tiles, hbm_bytes

if TYPE_CHECKING:
    from jax.experimental.pallas import tpu as pltpu

DEFAULT_TILES = Tiles.cube(512)


def matmul_v4(
    lhs: Shaped[Array, "m k"],
    rhs: Shaped[Array, "k n"],
    *,
    tiles: Tiles,
    dtype_out: str,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "m n"]:
    """`lhs @ rhs` by v3's kernel with these tiles, as `dtype_out`.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty.
      IllegalTilesError: a tile above the matrix, one that does not divide it, a misaligned one, or dtypes that
        the ladder does not multiply.
    """
    problem = checked("v4", lhs, rhs, tiles, dtype_out, block_rules)
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
        name="matmul_v4_tiles",
    )(lhs, rhs)


def default_tiles(problem: MatmulProblem, _splits: int) -> Tiles:
    """512 each way, or the matrix where that is smaller."""
    return clipped(DEFAULT_TILES, problem)


RUNG = Rung(
    name="v4",
    title="tiles that suit the chip",
    adds="longer tiles: more arithmetic for each byte and each step, found by a sweep",
    costs="VMEM, and sizes that the tiles have to divide",
    multiply=matmul_v4,
    default_tiles=default_tiles,
    takes_tiles=True,
    sweeps=True,
    pipelined=True,
    accumulator=False,
    rounds_each_step=True,
)

if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["ladder", "v4", *sys.argv[1:]]))
