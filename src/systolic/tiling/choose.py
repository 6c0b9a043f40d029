"""Blockings of a product for a chip, best modelled time first, without a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.problem import MatmulProblem
from systolic.tiling.blocking import Blocking, blocked_buffers
from systolic.tiling.buffers import total_bytes
from systolic.tiling.legality import (
    LANES,
    IllegalTilesError,
    Violation,
    dtype_violations,
    sublane_multiple,
    vmem_violations,
)
from systolic.tiling.model import ModelledTime, blocked_time
from systolic.tiling.tiles import Tiles

# The longest code of a kernel: it costs the user compile time and the chip its instruction fetch.
MOST_BUNDLES = 14_000
# The compiler needs VMEM for itself. Seen: 16 → 18.5, 24 → 28.5, 28 → 35.1, 64 → 73 MiB.
_COMPILER_SHARE = 0.26
_SIDES = (128, 256, 512, 1024, 2048, 4096)
_LONGEST_K = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A blocking and its modelled time."""

    blocking: Blocking
    modelled: ModelledTime


def vmem_limit(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> int:
    """Bytes of VMEM to ask the compiler for: the buffers and its own need, at least what it gives by default."""
    needed = total_bytes(blocked_buffers(problem, blocking)) * (1 + _COMPILER_SHARE) + 2 * 2**20
    return min(max(int(needed), chip.scoped_vmem_bytes), chip.vmem_bytes_per_core)


def _usable_vmem(chip: Chip) -> int:
    return int(chip.vmem_bytes_per_core / (1 + _COMPILER_SHARE)) - 2 * 2**20


def alignments(problem: MatmulProblem) -> dict[str, int]:
    """Of what a tile along m, k and n is a multiple, unless it is the whole dimension: registers, as stored."""
    lhs_rows, rhs_rows = sublane_multiple(problem.dtype_lhs), sublane_multiple(problem.dtype_rhs)
    out_rows = max(sublane_multiple(dtype) for dtype in (problem.dtype_out, *problem.fusion.more_outputs))
    return {
        "m": max(LANES if problem.transpose_lhs else lhs_rows, out_rows),
        "k": max(lhs_rows if problem.transpose_lhs else LANES, LANES if problem.transpose_rhs else rhs_rows),
        "n": LANES,
    }


def blocked_violations(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> list[Violation]:
    """Every rule that a blocking breaks: dtypes of the chip, alignment, VMEM. Tiles need not divide the matrix."""
    found = dtype_violations(MatmulProblem.of(1, 1, 1, problem.dtype_multiplied), chip)
    for letter, multiple in alignments(problem).items():
        size, tile = getattr(problem, letter), getattr(blocking.tiles, f"tile_{letter}")
        if tile > size:
            found.append(
                Violation(
                    rule="tile-within-matrix",
                    value=f"tile_{letter}={tile} is above {letter}={size}",
                    limit="a block larger than its matrix",
                    fix=f"use tile_{letter}≤{size}",
                )
            )
        elif tile != size and tile % multiple:
            found.append(
                Violation(
                    rule="tile-alignment",
                    value=f"tile_{letter}={tile} is no multiple of {multiple}",
                    limit=f"blocks need multiples of {multiple} along {letter}, or all of it",
                    fix=f"use tile_{letter}={min(size, -(-tile // multiple) * multiple)}",
                )
            )
    return found + vmem_violations(blocked_buffers(problem, blocking), _usable_vmem(chip))


def blockings(problem: MatmulProblem, chip: Chip, tiles: Tiles | None = None) -> list[Choice]:
    """Legal blockings whose code is not too long, best modelled time first; of these tiles only, where given.

    Raises:
      IllegalTilesError: `tiles` break rules; or nothing is legal, with the rules that the smallest tiles break.
    """
    found = []
    smallest: Blocking | None = None
    for one in [tiles] if tiles is not None else _tiles(problem):
        pieces = list(_slices(one))
        for (slice_m, slice_n), buffers, outer in itertools.product(
            pieces, (2, 3) if chip.cores_per_device == 1 else (2,), ("m", "n")
        ):
            if outer == "n" and min(one.grid(problem)[:2]) == 1:
                continue  # the same order
            blocking = Blocking(tiles=one, slice_m=slice_m, slice_n=slice_n, buffers=buffers, outer=outer)
            smallest = blocking
            if total_bytes(blocked_buffers(problem, blocking)) > _usable_vmem(chip):
                continue
            time = blocked_time(problem, blocking, chip)
            if time.bundles <= MOST_BUNDLES:
                found.append(Choice(blocking=blocking, modelled=time))
    assert smallest is not None
    broken = blocked_violations(problem, smallest, chip) if tiles is not None or not found else []
    if broken:
        raise IllegalTilesError(f"tiles {smallest.tiles}", broken)
    return sorted(found, key=lambda choice: (choice.modelled.time_us, choice.modelled.bundles))


def _tiles(problem: MatmulProblem) -> Iterator[Tiles]:
    multiples = alignments(problem)
    sides = {letter: _sides(getattr(problem, letter), multiples[letter], letter) for letter in "mkn"}
    for tile_m, tile_k, tile_n in itertools.product(sides["m"], sides["k"], sides["n"]):
        yield Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)


def _sides(size: int, multiple: int, letter: str) -> list[int]:
    """Powers of two below the size, the whole of it where that is not too long, and what cuts it evenly."""
    longest = _LONGEST_K if letter == "k" else _SIDES[-1]
    found = {side for side in (*_SIDES, longest) if side < size and side % multiple == 0}
    if size <= longest:
        found.add(size)
    # Sizes such as 14336 or 28672 are cut evenly by seven times a power of two.
    found |= {side for parts in range(2, 33) if size % parts == 0 for side in [size // parts] if _even(side, multiple)}
    chosen = {side for side in found if side <= longest and (side >= 256 or side == size or size < 512)}
    return sorted(chosen or found or {size})


def _even(side: int, multiple: int) -> bool:
    return side % max(multiple, LANES) == 0 and side >= 256


def _slices(tiles: Tiles) -> Iterator[tuple[int, int]]:
    """Slices of whole registers; a tile that cannot be cut is one."""
    rows = [tiles.tile_m] + [
        side for side in (256, 512, 1024, 2048) if side < tiles.tile_m and tiles.tile_m % side == 0
    ]
    columns = [tiles.tile_n] + [side for side in (256, 512, 1024) if side < tiles.tile_n and tiles.tile_n % side == 0]
    return itertools.product(rows, columns)
