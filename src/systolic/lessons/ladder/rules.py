"""Rules of the rungs for a product and its tiles, each with a fix."""

from __future__ import annotations

import dataclasses
import itertools
import math

from systolic.chips import Chip
from systolic.schedule import LANES, MIB, Tiles, TilesError, Violation, alignment_violations, size_violations
from systolic.spec import MatmulSpec, accumulator_dtype


def operand_rules(spec: MatmulSpec) -> list[Violation]:
    """Refuse dtypes that no rung takes: operands of different dtypes, or integers with a result other than int32."""
    result = []
    if spec.dtype_lhs != spec.dtype_rhs:
        result.append(
            Violation(
                rule="dtypes-agree",
                value=f"lhs is {spec.dtype_lhs} and rhs is {spec.dtype_rhs}",
                limit="the ladder multiplies operands of one dtype",
                fix="convert one of them",
            )
        )
    integers = [accumulator_dtype(dtype) == "int32" for dtype in (spec.dtype_lhs, spec.dtype_out)]
    if integers[0] != integers[1] or (integers[0] and spec.dtype_out != "int32"):
        result.append(
            Violation(
                rule="dtype-out",
                value=f"{spec.dtype_lhs} operands and a {spec.dtype_out} result",
                limit="integers are summed in int32, floats in float32, and neither is converted to the other",
                fix=f"use dtype_out={spec.dtype_accumulator}"
                + ", or the lesson first_matmul, which rescales to int8" * integers[0],
            )
        )
    return result


def block_rules(spec: MatmulSpec, tiles: Tiles) -> list[Violation]:
    """Check that no tile is larger than the matrix, leaves a remainder, or is misaligned."""
    return [*operand_rules(spec), *size_violations(spec, tiles), *alignment_violations(spec, tiles)]


def whole_rules(spec: MatmulSpec, tiles: Tiles) -> list[Violation]:
    """Check that one tile covers everything."""
    full = Tiles.whole(spec)
    violations = size_violations(spec, tiles)
    if not violations and tiles != full:
        limit = "v1 has no grid and takes the matrices whole"
        violations = [Violation(rule="tile-is-whole", value=f"tiles {tiles} of {full}", limit=limit, fix="")]
    fix = f"v1 takes {full} only; go on to v3 for tiles"
    return [*operand_rules(spec), *(dataclasses.replace(violation, fix=fix) for violation in violations)]


def bands(spec: MatmulSpec, splits: int) -> Tiles:
    """Return N = `splits` bands of rows and N of columns, each over all of k.

    If N does not divide a size, the tile is the smallest above size / N that does not divide it either, so the rules
    refuse it. A divisor would silently make a grid with another N.

    Raises:
      TilesError: N is below one.
    """
    if splits < 1:
        raise TilesError(f"N={splits}: v2 cuts the matrices into at least one band; use N≥1")

    def band(size: int) -> int:
        if size % splits == 0:
            return size // splits
        return next(tile for tile in itertools.count(size // splits + 1) if size % tile)

    return Tiles(tile_m=band(spec.m), tile_k=spec.k, tile_n=band(spec.n))


def band_rules(spec: MatmulSpec, tiles: Tiles) -> list[Violation]:
    """Check that bands are equal, aligned, as many in rows as in columns, and cover all of k; the fix names an N."""
    result = [*size_violations(spec, tiles), *alignment_violations(spec, tiles)]
    grid_m, grid_n, grid_k = tiles.grid(spec)
    if not result and (grid_m != grid_n or grid_k != 1):
        result.append(
            Violation(
                rule="rows-by-columns",
                value=f"tiles {tiles} make {grid_m} bands of rows, {grid_n} of columns, and cut k in {grid_k}",
                limit="v2 cuts rows and columns alike and leaves k whole",
                fix="",
            )
        )

    def works(splits: int) -> bool:
        return not alignment_violations(spec, bands(spec, splits))

    both = math.gcd(spec.m, spec.n)
    usable = [str(splits) for splits in range(1, min(both, 64) + 1) if both % splits == 0 and works(splits)]
    fix = f"for {spec.m}×{spec.k}×{spec.n} use N={' or '.join(usable)}"
    return [*operand_rules(spec), *(dataclasses.replace(violation, fix=fix) for violation in result)]


def no_candidates(size: int, chip: Chip) -> Violation:
    return Violation(
        rule="sweep",
        value=f"no tiles cut {size} evenly, are aligned and fit",
        limit=f"a side is a multiple of 128 that divides {size}, and there are {chip.scoped_vmem_bytes / MIB:.0f} MiB",
        fix=f"pad to {-(-size // LANES) * LANES}",
    )
