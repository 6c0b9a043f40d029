"""Tiles that are worth trying for a rung."""

from __future__ import annotations

import itertools

from systolic.chips import Chip
from systolic.cost import estimated_cost, pipeline_time
from systolic.lessons.ladder.rungs import Rung
from systolic.schedule import LANES, KernelConfig, Tiles, hbm_traffic, total_bytes
from systolic.schedule.legality import alignment, legal_sides
from systolic.spec import MatmulSpec

_LARGEST_TILE = 2048


def candidates(rung: Rung, spec: MatmulSpec, chip: Chip) -> list[Tiles]:
    """Return legal tiles whose buffers fit the VMEM that a kernel gets by default, best modelled time first.

    Each side divides the matrix and is aligned, from 128 to 2048; all of the matrix if nothing else is legal.
    """
    sides = {letter: _sides(getattr(spec, letter), multiple) for letter, multiple in alignment(spec).items()}
    candidates = (
        Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
        for tile_m, tile_k, tile_n in itertools.product(sides["m"], sides["k"], sides["n"])
    )
    result = [
        tiles
        for tiles in candidates
        if not rung.violations(spec, tiles, chip) and total_bytes(rung.buffers(spec, tiles)) <= chip.scoped_vmem_bytes
    ]
    return sorted(result, key=lambda tiles: (modelled_us(spec, tiles, chip), tiles))


def modelled_us(spec: MatmulSpec, tiles: Tiles, chip: Chip) -> float:
    """Return the time by the planner's pipeline model, of a kernel that multiplies a whole output tile at a time."""
    config = _config(tiles)
    return pipeline_time(spec, config, chip, estimated_cost(spec, config, chip)).time_us


def hbm_bytes(spec: MatmulSpec, tiles: Tiles) -> int:
    """Return bytes that the pipeline copies from and to HBM, with a grid over (i, j, kk) in which kk is innermost."""
    return hbm_traffic(spec, _config(tiles)).hbm_bytes


def _config(tiles: Tiles) -> KernelConfig:
    return KernelConfig(tiles=tiles, subtile_m=tiles.tile_m, subtile_n=tiles.tile_n)


def _sides(size: int, multiple: int) -> list[int]:
    legal = legal_sides(size, multiple)
    return [side for side in legal if min(size, LANES) <= side <= _LARGEST_TILE] or legal[-1:]
