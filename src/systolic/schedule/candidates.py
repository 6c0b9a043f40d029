"""Tiles worth trying, best guess first."""

from __future__ import annotations

import itertools

from systolic.chips import Chip
from systolic.schedule.buffers import matmul_buffers, total_bytes
from systolic.schedule.legality import LANES, alignment, legal_sides, violations
from systolic.schedule.tiles import Tiles
from systolic.schedule.traffic import hbm_bytes
from systolic.spec import MatmulSpec

# What one grid step costs beyond its arithmetic: the pipeline's scalar code and the drain of the matrix units. Read off
# simulated 128³ and 256³ steps on v5e; it only ranks candidates.
_STEP_OVERHEAD_S = 0.3e-6
_LARGEST_TILE = 2048


def modelled_s(spec: MatmulSpec, tiles: Tiles, chip: Chip) -> float:
    """Seconds by arithmetic alone: the longer of computing and copying, the first block's copy, a cost a step."""
    machine = chip.machine
    compute_s = spec.flops / chip.peak_ops_per_s(spec.dtype_lhs)
    copy_s = hbm_bytes(spec, tiles) / machine.hbm_bytes_per_s
    first_s = total_bytes(matmul_buffers(spec, tiles, pipelined=False)) / machine.hbm_bytes_per_s
    # A matrix unit is filled from tiles of its own size: a narrower tile leaves part of it idle.
    fill = min(1.0, tiles.tile_k / machine.mxu_rows) * min(1.0, tiles.tile_n / machine.mxu_columns)
    return max(compute_s / fill, copy_s) + first_s + tiles.steps(spec) * _STEP_OVERHEAD_S


def candidates(spec: MatmulSpec, chip: Chip, *, accumulator: bool = False) -> list[Tiles]:
    """Legal tiles whose buffers fit the VMEM that a kernel gets by default, best modelled time first.

    Each side divides the matrix and is aligned, from 128 to 2048; all of the matrix where nothing else is legal.
    """

    sides = {letter: _sides(getattr(spec, letter), multiple) for letter, multiple in alignment(spec).items()}
    found = []
    for tile_m, tile_k, tile_n in itertools.product(sides["m"], sides["k"], sides["n"]):
        tiles = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
        buffers = matmul_buffers(spec, tiles, accumulator=accumulator)
        if not violations(spec, tiles, chip) and total_bytes(buffers) <= chip.scoped_vmem_bytes:
            found.append(tiles)
    return sorted(found, key=lambda tiles: (modelled_s(spec, tiles, chip), tiles))


def _sides(size: int, multiple: int) -> list[int]:
    legal = legal_sides(size, multiple)
    return [side for side in legal if min(size, LANES) <= side <= _LARGEST_TILE] or legal[-1:]
