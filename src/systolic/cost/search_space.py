"""The configurations of a product to consider: legal ones whose code is not too long."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from systolic.chips import Chip
from systolic.cost.estimate import code_bundles
from systolic.schedule.buffers import kernel_buffers, total_bytes
from systolic.schedule.config import GridOrder, KernelConfig, Pipeline, can_run_manually
from systolic.schedule.legality import (
    LANES,
    IllegalTilesError,
    Violation,
    alignment,
    fits_vmem,
    side_by_side_violations,
    tiles_violations,
    usable_vmem_bytes,
)
from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec

# The longest code of a kernel, in bundles: it costs the user compile time and the chip its instruction fetch. Estimates
# are up to 15 % off.
LONGEST_CODE = 16_000
MAX_BUNDLES = 14_000
SKINNY_ROWS = 256  # up to which one row of tiles is all of lhs
_SIDES = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)
_LONGEST_K = 8192
_LONGEST_ROW = 32768


def search_space(spec: MatmulSpec, chip: Chip, tiles: Tiles | None = None) -> list[KernelConfig]:
    """Return every configuration to consider; only configurations of `tiles`, if given.

    Raises:
      IllegalTilesError: `tiles` break rules; or nothing is legal, with the rules that the smallest tiles break.
    """
    result: list[KernelConfig] = []
    last: Tiles | None = None
    for last in [tiles] if tiles is not None else _tiles(spec):
        result += _of_tiles(spec, last, chip)
    assert last is not None
    if tiles is None and result:
        return result
    whole_tile = KernelConfig(tiles=last, subtile_m=last.tile_m, subtile_n=last.tile_n)
    violations = tiles_violations(spec, whole_tile, chip)
    if not result and not violations:
        violations = [
            Violation(
                rule="subtiles",
                value=f"no subtile of tiles {last} leaves VMEM for operands that are made on the way",
                limit=f"or each has code of more than {MAX_BUNDLES} bundles",
                fix="use smaller tiles",
            )
        ]
    if violations:
        raise IllegalTilesError(f"tiles {last}", violations)
    return result


def _of_tiles(spec: MatmulSpec, tiles: Tiles, chip: Chip) -> Iterator[KernelConfig]:
    whole_tile = KernelConfig(tiles=tiles, subtile_m=tiles.tile_m, subtile_n=tiles.tile_n)
    if side_by_side_violations(spec, tiles):
        return
    # The other order changes nothing if there is one row or one column of blocks.
    orders: tuple[GridOrder, ...] = ("m", "n") if min(tiles.grid(spec)[:2]) > 1 else ("m",)
    stages: tuple[tuple[Pipeline, int], ...] = (("auto", 2), ("emit", 3))
    for pipeline_name, num_stages in stages if chip.cores_per_device == 1 and tiles.steps(spec) > 2 else stages[:1]:
        staged = replace(whole_tile, pipeline=pipeline_name, num_stages=num_stages)
        # Without the buffers that depend on subtiles: if these alone are too large, no subtile is tried.
        if total_bytes(kernel_buffers(spec, staged)) > usable_vmem_bytes(spec, chip):
            continue
        pipelines: list[tuple[Pipeline, int]] = [("manual", chunks) for chunks in _fill_chunks(spec, tiles, chip)]
        if not spec.joined_outputs:
            pipelines.insert(0, (pipeline_name, 1))
        for subtile_m, subtile_n in _subtiles(spec, tiles):
            cut = replace(staged, subtile_m=subtile_m, subtile_n=subtile_n)
            if code_bundles(spec, cut, chip) > MAX_BUNDLES:
                continue
            for (pipeline, fill_chunks), grid_order in itertools.product(pipelines, orders):
                config = replace(cut, pipeline=pipeline, grid_order=grid_order, fill_chunks=fill_chunks)
                if fits_vmem(spec, config, chip) and code_bundles(spec, config, chip) <= MAX_BUNDLES:
                    yield config


def _fill_chunks(spec: MatmulSpec, tiles: Tiles, chip: Chip) -> list[int]:
    """Return the numbers of chunks for manual DMA's first step; none for two cores, batches and edges."""
    if chip.cores_per_device > 1 or not can_run_manually(spec, tiles):
        return []
    return [1, *(fill_chunks for fill_chunks in (2, 4, 8) if tiles.tile_k % (fill_chunks * 2 * LANES) == 0)]


def _tiles(spec: MatmulSpec) -> Iterator[Tiles]:
    multiples = alignment(spec)
    skinny = spec.m <= SKINNY_ROWS
    sides = {letter: _sides(getattr(spec, letter), multiples[letter], letter, skinny=skinny) for letter in "mkn"}
    for tile_m, tile_k, tile_n in itertools.product(sides["m"], sides["k"], sides["n"]):
        yield Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)


def _sides(size: int, multiple: int, letter: str, *, skinny: bool) -> list[int]:
    """Return sizes that cut a size into nearly even parts of about the usual sides, and the whole if not too long.

    14336 is cut by seven times a power of two; 4097 by four times 1040, hardly more than a quarter.
    """
    longest = _LONGEST_K if letter == "k" else _SIDES[-1]
    step = max(multiple, LANES) if size % LANES == 0 else max(multiple, 16)
    result = set()
    for side in (*_SIDES, longest):
        even = -(-size // -(-size // side))
        result.add(-(-even // step) * step)
    sides = {side for side in result if 256 <= side <= longest and side < size}
    # A skinny product streams whole rows of rhs, which are contiguous.
    if size <= longest or (letter == "n" and skinny and size <= _LONGEST_ROW):
        sides.add(size)
    return sorted(sides or {side for side in result if side < size} or {size})


def _subtiles(spec: MatmulSpec, tiles: Tiles) -> Iterator[tuple[int, int]]:
    """Return the subtiles that cut a tile evenly into whole registers; the last is the whole tile."""
    multiples = alignment(spec)
    rows = _parts(tiles.tile_m, max(multiples["m"], 16), 128)
    return itertools.product(rows, _parts(tiles.tile_n, LANES, 256))


def _parts(side: int, multiple: int, least: int) -> list[int]:
    cut = [side // parts for parts in (2, 4, 8, 16, 3, 5, 7) if side % parts == 0]
    return [side, *[part for part in cut if part % multiple == 0 and part >= least][:4]]
