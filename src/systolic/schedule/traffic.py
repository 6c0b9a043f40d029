"""HBM traffic of a blocked matmul whose grid runs over (i, j, kk), kk innermost."""

from __future__ import annotations

from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec


def hbm_bytes(spec: MatmulSpec, tiles: Tiles) -> int:
    """Bytes that the pipeline copies from and to HBM.

    A block is fetched when its index differs from the step before: lhs (i, kk) once for each j, unless all of k is one
    block; rhs (kk, j) once for each i, unless all of rhs is one block; the output once.
    Source: Pallas' pipelining rules, jax.dev "TPU Pipelining".
    """
    grid_m, grid_n, grid_k = tiles.grid(spec)
    lhs_reads = grid_n if grid_k > 1 else 1
    rhs_reads = grid_m if grid_k > 1 or grid_n > 1 else 1
    return spec.lhs_bytes * lhs_reads + spec.rhs_bytes * rhs_reads + spec.out_bytes
