"""Tiles that are worth trying for a rung, by a rough model of their times."""

from __future__ import annotations

import itertools

from systolic.chips import Chip
from systolic.lessons.ladder.rungs import Rung
from systolic.schedule import LANES, Tiles, total_bytes
from systolic.schedule.legality import alignment, legal_sides
from systolic.spec import MatmulSpec, dtype_bytes

# What one grid step costs beyond its arithmetic: the pipeline's scalar code and the drain of the matrix units. Read off
# simulated 128³ and 256³ steps on v5e; it only ranks candidates.
_STEP_OVERHEAD_S = 0.3e-6
_LARGEST_TILE = 2048


def candidates(rung: Rung, spec: MatmulSpec, chip: Chip) -> list[Tiles]:
    """Legal tiles whose buffers fit the VMEM that a kernel gets by default, best modelled time first.

    Each side divides the matrix and is aligned, from 128 to 2048; all of the matrix where nothing else is legal.
    """
    sides = {letter: _sides(getattr(spec, letter), multiple) for letter, multiple in alignment(spec).items()}
    every = (
        Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
        for tile_m, tile_k, tile_n in itertools.product(sides["m"], sides["k"], sides["n"])
    )
    found = [
        tiles
        for tiles in every
        if not rung.violations(spec, tiles, chip) and total_bytes(rung.buffers(spec, tiles)) <= chip.scoped_vmem_bytes
    ]
    return sorted(found, key=lambda tiles: (modelled_s(spec, tiles, chip), tiles))


def modelled_s(spec: MatmulSpec, tiles: Tiles, chip: Chip) -> float:
    """Seconds by arithmetic alone: the longer of computing and copying, the first blocks' copies, a cost a step."""
    machine = chip.machine
    compute_s = spec.flops / chip.peak_ops_per_s(spec.dtype_lhs)
    copy_s = hbm_bytes(spec, tiles) / machine.hbm_bytes_per_s
    first_s = _block_bytes(spec, tiles) / machine.hbm_bytes_per_s
    # A matrix unit is filled from tiles of its own size: a narrower tile leaves part of it idle.
    fill = min(1.0, tiles.tile_k / machine.mxu_rows) * min(1.0, tiles.tile_n / machine.mxu_columns)
    return max(compute_s / fill, copy_s) + first_s + tiles.steps(spec) * _STEP_OVERHEAD_S


def hbm_bytes(spec: MatmulSpec, tiles: Tiles) -> int:
    """Bytes that the pipeline copies from and to HBM, with a grid over (i, j, kk) in which kk is innermost.

    A block is fetched when its index differs from the step before: lhs (i, kk) once for each j, unless all of k is one
    block; rhs (kk, j) once for each i, unless all of rhs is one block; the output once.
    Source: Pallas' pipelining rules, jax.dev "TPU Pipelining".
    """
    grid_m, grid_n, grid_k = tiles.grid(spec)
    lhs_reads = grid_n if grid_k > 1 else 1
    rhs_reads = grid_m if grid_k > 1 or grid_n > 1 else 1
    return spec.lhs_bytes * lhs_reads + spec.rhs_bytes * rhs_reads + spec.out_bytes


def _block_bytes(spec: MatmulSpec, tiles: Tiles) -> int:
    """One block of each operand and of the output."""
    return (
        tiles.tile_m * tiles.tile_k * dtype_bytes(spec.dtype_lhs)
        + tiles.tile_k * tiles.tile_n * dtype_bytes(spec.dtype_rhs)
        + tiles.tile_m * tiles.tile_n * dtype_bytes(spec.dtype_out)
    )


def _sides(size: int, multiple: int) -> list[int]:
    legal = legal_sides(size, multiple)
    return [side for side in legal if min(size, LANES) <= side <= _LARGEST_TILE] or legal[-1:]
