"""HBM traffic of a blocked matmul whose grid runs over (i, j, kk), kk innermost."""

from __future__ import annotations

from systolic.problem import MatmulProblem
from systolic.schedule.tiles import Tiles


def hbm_bytes(problem: MatmulProblem, tiles: Tiles) -> int:
    """Bytes that the pipeline copies from and to HBM.

    A block is fetched when its index differs from the step before: lhs (i, kk) once for each j, unless all of k is one
    block; rhs (kk, j) once for each i, unless all of rhs is one block; the output once.
    Source: Pallas' pipelining rules, jax.dev "TPU Pipelining".
    """
    grid_m, grid_n, grid_k = tiles.grid(problem)
    lhs_reads = grid_n if grid_k > 1 else 1
    rhs_reads = grid_m if grid_k > 1 or grid_n > 1 else 1
    return problem.lhs_bytes * lhs_reads + problem.rhs_bytes * rhs_reads + problem.out_bytes
