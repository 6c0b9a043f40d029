"""Blockings of a product for a chip, best modelled time first, without a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from systolic.chips import Chip
from systolic.cost.model import ModelledTime, blocked_time, bundles
from systolic.problem import MatmulProblem
from systolic.schedule.blocking import Blocking, Outer, blocked_buffers, can_stream, made_bytes
from systolic.schedule.buffers import total_bytes
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
    """A blocking and its time by arithmetic, with steps' costs from the model or from a profile of its tile."""

    blocking: Blocking
    modelled: ModelledTime
    known: Literal["modelled", "profiled"] = "modelled"


def vmem_limit(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> int:
    """Bytes of VMEM to ask the compiler for: the buffers and its own need, at least what it gives by default."""
    needed = _vmem_bytes(problem, blocking) * (1 + _compiler_share(problem)) + 2 * 2**20
    return min(max(int(needed), chip.scoped_vmem_bytes), chip.vmem_bytes_per_core)


def _usable_vmem(problem: MatmulProblem, chip: Chip) -> int:
    return int(chip.vmem_bytes_per_core / (1 + _compiler_share(problem))) - 2 * 2**20


def _compiler_share(problem: MatmulProblem) -> float:
    return _COMPILER_SHARE_HIGHEST if problem.passes > 3 else _COMPILER_SHARE


def blocked_violations(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> list[Violation]:
    """Every rule that a blocking breaks: dtypes of the chip, alignment, VMEM. Tiles need not divide the matrix."""
    found = dtype_violations(MatmulProblem.of(1, 1, 1, problem.dtype_multiplied), chip)
    for letter, multiple in alignment(problem).items():
        size, tile = getattr(problem, letter), getattr(blocking.tiles, f"tile_{letter}")
        if tile > size:
            found.append(above_matrix(letter, tile, size, "a block larger than its matrix"))
        elif tile != size and tile % multiple:
            instead = min(size, -(-tile // multiple) * multiple)
            found.append(misaligned(letter, tile, multiple, "blocks", instead))
    return found + vmem_violations(blocked_buffers(problem, blocking), _usable_vmem(problem, chip))


def blockings(problem: MatmulProblem, chip: Chip, tiles: Tiles | None = None) -> list[Choice]:
    """Legal blockings whose code is not too long, best modelled time first; of these tiles only, where given.

    Raises:
      IllegalTilesError: `tiles` break rules; or nothing is legal, with the rules that the smallest tiles break.
    """
    found = []
    refused: Blocking | None = None
    for one in [tiles] if tiles is not None else _tiles(problem):
        whole = Blocking(tiles=one, slice_m=one.tile_m, slice_n=one.tile_n)
        refused = whole
        # In the other order nothing changes where there is one row or one column of blocks.
        outers: tuple[Outer, ...] = ("m", "n") if min(one.grid(problem)[:2]) > 1 else ("m",)
        for buffers in (2, 3) if chip.cores_per_device == 1 and one.steps(problem) > 2 else (2,):
            # Without what depends on slices: no need to go through them where this alone is too much.
            if total_bytes(blocked_buffers(problem, replace(whole, buffers=buffers))) > _usable_vmem(problem, chip):
                continue
            for slice_m, slice_n in _slices(problem, one):
                cut = Blocking(tiles=one, slice_m=slice_m, slice_n=slice_n, buffers=buffers)
                if bundles(problem, cut, chip) > MOST_BUNDLES:
                    continue
                for pieces, outer in itertools.product(_pieces(problem, one, chip), outers):
                    blocking = replace(cut, outer=outer, pieces=pieces)
                    if not _fits(problem, blocking, chip):
                        continue
                    time = blocked_time(problem, blocking, chip)
                    if time.bundles <= MOST_BUNDLES:
                        found.append(Choice(blocking=blocking, modelled=time))
    assert refused is not None
    broken = blocked_violations(problem, refused, chip) if tiles is not None or not found else []
    if not found and not broken:
        broken = [
            Violation(
                rule="slices",
                value=f"no slice of tiles {refused.tiles} leaves VMEM for operands that are made on the way",
                limit=f"or each has code of more than {MOST_BUNDLES} bundles",
                fix="use smaller tiles",
            )
        ]
    if broken:
        raise IllegalTilesError(f"tiles {refused.tiles}", broken)
    return sorted(found, key=lambda choice: (choice.modelled.time_us, choice.modelled.bundles))


def can_use(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> bool:
    """Whether tiles that divide the sizes obey the other rules."""
    return _fits(problem, blocking, chip) and not blocked_violations(problem, blocking, chip)


def chosen(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> Choice:
    """A blocking that somebody else chose, with its modelled time.

    Raises:
      IllegalTilesError: it breaks rules; the message has each of them.
    """
    broken = blocked_violations(problem, blocking, chip)
    if not broken and not _fits(problem, blocking, chip):
        value = f"{_vmem_bytes(problem, blocking):,} bytes with what a slice makes of operands"
        limit = f"of {_usable_vmem(problem, chip):,}"
        broken.append(Violation(rule="VMEM", value=value, limit=limit, fix="use smaller slices"))
    if chip.cores_per_device > 1 and (blocking.buffers > 2 or blocking.pieces):
        fix = "use 2 buffers and pieces=0"
        broken.append(Violation(rule="pipeline", value=str(blocking), limit="it would leave a core idle", fix=fix))
    if blocking.pieces and not can_stream(problem, blocking.tiles):
        limit = "the streamed pipeline takes one product that its tiles divide"
        broken.append(Violation(rule="pipeline", value=str(blocking), limit=limit, fix="use pieces=0"))
    if broken:
        raise IllegalTilesError(f"blocking {blocking}", broken)
    return Choice(blocking=blocking, modelled=blocked_time(problem, blocking, chip))


def _fits(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> bool:
    return _vmem_bytes(problem, blocking) <= _usable_vmem(problem, chip)


def _vmem_bytes(problem: MatmulProblem, blocking: Blocking) -> int:
    return total_bytes(blocked_buffers(problem, blocking)) + made_bytes(problem, blocking)


def _pieces(problem: MatmulProblem, tiles: Tiles, chip: Chip) -> list[int]:
    """Pieces of the first step; 0 is the pipeline of Pallas, the only one for two cores, batches and edges."""
    if chip.cores_per_device > 1 or not can_stream(problem, tiles):
        return [0]
    return [0, 1, *(pieces for pieces in (2, 4, 8) if tiles.tile_k % (pieces * 2 * LANES) == 0)]


def _tiles(problem: MatmulProblem) -> Iterator[Tiles]:
    multiples = alignment(problem)
    thin = problem.m <= THIN_ROWS
    sides = {letter: _sides(getattr(problem, letter), multiples[letter], letter, thin=thin) for letter in "mkn"}
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


def _slices(problem: MatmulProblem, tiles: Tiles) -> Iterator[tuple[int, int]]:
    """Slices that cut a tile evenly into whole registers; all of it is one."""
    multiples = alignment(problem)
    rows = _parts(tiles.tile_m, max(multiples["m"], 16), 128)
    return itertools.product(rows, _parts(tiles.tile_n, LANES, 256))


def _parts(side: int, multiple: int, least: int) -> list[int]:
    cut = [side // parts for parts in (2, 4, 8, 16, 3, 5, 7) if side % parts == 0]
    return [side, *[part for part in cut if part % multiple == 0 and part >= least][:4]]
