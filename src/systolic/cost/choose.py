"""Kernel configurations of a product for a chip, best modelled time first, without a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from systolic.chips import Chip
from systolic.cost.model import ModelledTime, blocked_time, bundles
from systolic.schedule.buffers import total_bytes
from systolic.schedule.config import GridOrder, KernelConfig, Pipeline, blocked_buffers, can_run_manually, made_bytes
from systolic.schedule.legality import (
    LANES,
    IllegalTilesError,
    Violation,
    above_matrix,
    alignment,
    dtype_violations,
    misaligned,
    vmem_violations,
)
from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec

# The longest code of a kernel, in bundles: it costs the user compile time and the chip its instruction fetch. Estimates
# are up to 15 % off.
LONGEST_CODE = 16_000
MOST_BUNDLES = 14_000
# The compiler needs VMEM for itself. Seen: 16 → 18.5, 24 → 28.5, 28 → 35.1, 64 → 73 MiB; for the six passes of
# float32 at highest precision, whose parts it keeps, 15.5 → 24.6.
_COMPILER_SHARE = 0.26
_COMPILER_SHARE_HIGHEST = 0.65
_SIDES = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)
_LONGEST_K = 8192
_LONGEST_ROW = 32768
THIN_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration and its time by arithmetic, with steps' costs from the model or from a profile of its tile."""

    config: KernelConfig
    modelled: ModelledTime
    provenance: Literal["modelled", "profiled"] = "modelled"


def vmem_limit(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> int:
    """Bytes of VMEM to ask the compiler for: the buffers and its own need, at least what it gives by default."""
    needed = _vmem_bytes(spec, config) * (1 + _compiler_share(spec)) + 2 * 2**20
    return min(max(int(needed), chip.scoped_vmem_bytes), chip.vmem_bytes_per_core)


def _usable_vmem(spec: MatmulSpec, chip: Chip) -> int:
    return int(chip.vmem_bytes_per_core / (1 + _compiler_share(spec))) - 2 * 2**20


def _compiler_share(spec: MatmulSpec) -> float:
    return _COMPILER_SHARE_HIGHEST if spec.passes > 3 else _COMPILER_SHARE


def blocked_violations(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> list[Violation]:
    """Every rule that a configuration breaks: dtypes of the chip, alignment, VMEM. Tiles need not divide the matrix."""
    found = dtype_violations(MatmulSpec.of(1, 1, 1, spec.dtype_multiplied), chip)
    for letter, multiple in alignment(spec).items():
        size, tile = getattr(spec, letter), getattr(config.tiles, f"tile_{letter}")
        if tile > size:
            found.append(above_matrix(letter, tile, size, "a block larger than its matrix"))
        elif tile != size and tile % multiple:
            instead = min(size, -(-tile // multiple) * multiple)
            found.append(misaligned(letter, tile, multiple, "blocks", instead))
    return found + vmem_violations(blocked_buffers(spec, config), _usable_vmem(spec, chip))


def configs(spec: MatmulSpec, chip: Chip, tiles: Tiles | None = None) -> list[Choice]:
    """Legal configurations whose code is not too long, best modelled time first; of these tiles only, where given.

    Raises:
      IllegalTilesError: `tiles` break rules; or nothing is legal, with the rules that the smallest tiles break.
    """
    found = []
    refused: KernelConfig | None = None
    for one in [tiles] if tiles is not None else _tiles(spec):
        whole = KernelConfig(tiles=one, subtile_m=one.tile_m, subtile_n=one.tile_n)
        refused = whole
        # In the other order nothing changes where there is one row or one column of blocks.
        orders: tuple[GridOrder, ...] = ("m", "n") if min(one.grid(spec)[:2]) > 1 else ("m",)
        stages: tuple[tuple[Pipeline, int], ...] = (("auto", 2), ("emit", 3))
        for own, num_stages in stages if chip.cores_per_device == 1 and one.steps(spec) > 2 else stages[:1]:
            staged = replace(whole, pipeline=own, num_stages=num_stages)
            # Without what depends on subtiles: no need to go through them where this alone is too much.
            if total_bytes(blocked_buffers(spec, staged)) > _usable_vmem(spec, chip):
                continue
            pipelines = [(own, 1), *(("manual", fill_chunks) for fill_chunks in _fill_chunks(spec, one, chip))]
            for subtile_m, subtile_n in _subtiles(spec, one):
                cut = replace(staged, subtile_m=subtile_m, subtile_n=subtile_n)
                if bundles(spec, cut, chip) > MOST_BUNDLES:
                    continue
                for (pipeline, fill_chunks), grid_order in itertools.product(pipelines, orders):
                    config = replace(cut, pipeline=pipeline, grid_order=grid_order, fill_chunks=fill_chunks)
                    if not _fits(spec, config, chip):
                        continue
                    time = blocked_time(spec, config, chip)
                    if time.bundles <= MOST_BUNDLES:
                        found.append(Choice(config=config, modelled=time))
    assert refused is not None
    broken = blocked_violations(spec, refused, chip) if tiles is not None or not found else []
    if not found and not broken:
        broken = [
            Violation(
                rule="subtiles",
                value=f"no subtile of tiles {refused.tiles} leaves VMEM for operands that are made on the way",
                limit=f"or each has code of more than {MOST_BUNDLES} bundles",
                fix="use smaller tiles",
            )
        ]
    if broken:
        raise IllegalTilesError(f"tiles {refused.tiles}", broken)
    return sorted(found, key=lambda choice: (choice.modelled.time_us, choice.modelled.bundles))


def can_use(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> bool:
    """Whether tiles that divide the sizes obey the other rules."""
    return _fits(spec, config, chip) and not blocked_violations(spec, config, chip)


def chosen(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> Choice:
    """A configuration that somebody else chose, with its modelled time.

    Raises:
      IllegalTilesError: it breaks rules; the message has each of them.
    """
    broken = blocked_violations(spec, config, chip)
    if not broken and not _fits(spec, config, chip):
        value = f"{_vmem_bytes(spec, config):,} bytes with what a subtile makes of operands"
        limit = f"of {_usable_vmem(spec, chip):,}"
        broken.append(Violation(rule="VMEM", value=value, limit=limit, fix="use smaller subtiles"))
    if chip.cores_per_device > 1 and config.pipeline != "auto":
        fix = 'use pipeline="auto"'
        broken.append(Violation(rule="pipeline", value=str(config), limit="it would leave a core idle", fix=fix))
    if config.pipeline == "manual" and not can_run_manually(spec, config.tiles):
        limit = "manual DMA takes one product that its tiles divide"
        broken.append(Violation(rule="pipeline", value=str(config), limit=limit, fix='use pipeline="auto"'))
    if broken:
        raise IllegalTilesError(str(config), broken)
    return Choice(config=config, modelled=blocked_time(spec, config, chip))


def _fits(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> bool:
    return _vmem_bytes(spec, config) <= _usable_vmem(spec, chip)


def _vmem_bytes(spec: MatmulSpec, config: KernelConfig) -> int:
    return total_bytes(blocked_buffers(spec, config)) + made_bytes(spec, config)


def _fill_chunks(spec: MatmulSpec, tiles: Tiles, chip: Chip) -> list[int]:
    """Numbers of chunks for manual DMA's first step; none for two cores, batches and edges, where it does not run."""
    if chip.cores_per_device > 1 or not can_run_manually(spec, tiles):
        return []
    return [1, *(fill_chunks for fill_chunks in (2, 4, 8) if tiles.tile_k % (fill_chunks * 2 * LANES) == 0)]


def _tiles(spec: MatmulSpec) -> Iterator[Tiles]:
    multiples = alignment(spec)
    thin = spec.m <= THIN_ROWS
    sides = {letter: _sides(getattr(spec, letter), multiples[letter], letter, thin=thin) for letter in "mkn"}
    for tile_m, tile_k, tile_n in itertools.product(sides["m"], sides["k"], sides["n"]):
        yield Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)


def _sides(size: int, multiple: int, letter: str, *, thin: bool) -> list[int]:
    """What cuts a size into nearly even parts of about the usual sides, and all of it where that is not too long.

    14336 is cut by seven times a power of two; 4097 by four times 1040, hardly more than a quarter.
    """
    longest = _LONGEST_K if letter == "k" else _SIDES[-1]
    step = max(multiple, LANES) if size % LANES == 0 else max(multiple, 16)
    found = set()
    for side in (*_SIDES, longest):
        even = -(-size // -(-size // side))
        found.add(-(-even // step) * step)
    chosen = {side for side in found if 256 <= side <= longest and side < size}
    # A thin product streams whole rows of rhs: they lie in one piece.
    if size <= longest or (letter == "n" and thin and size <= _LONGEST_ROW):
        chosen.add(size)
    return sorted(chosen or {side for side in found if side < size} or {size})


def _subtiles(spec: MatmulSpec, tiles: Tiles) -> Iterator[tuple[int, int]]:
    """Subtiles that cut a tile evenly into whole registers; all of it is one."""
    multiples = alignment(spec)
    rows = _parts(tiles.tile_m, max(multiples["m"], 16), 128)
    return itertools.product(rows, _parts(tiles.tile_n, LANES, 256))


def _parts(side: int, multiple: int, least: int) -> list[int]:
    cut = [side // parts for parts in (2, 4, 8, 16, 3, 5, 7) if side % parts == 0]
    return [side, *[part for part in cut if part % multiple == 0 and part >= least][:4]]
