"""What the rungs ask of a product and its tiles: every rule that is broken, with a fix."""

from __future__ import annotations

import dataclasses
import itertools
import math

from systolic.problem import MatmulProblem, accumulator_dtype
from systolic.schedule import Tiles, TilesError, Violation, alignment_violations, size_violations


def operand_rules(problem: MatmulProblem) -> list[Violation]:
    """Dtypes that no rung takes: two different operands, or integers summed into something other than int32."""
    found = []
    if problem.dtype_lhs != problem.dtype_rhs:
        found.append(
            Violation(
                rule="dtypes-agree",
                value=f"lhs is {problem.dtype_lhs} and rhs is {problem.dtype_rhs}",
                limit="the ladder multiplies operands of one dtype",
                fix="convert one of them",
            )
        )
    integers = [accumulator_dtype(dtype) == "int32" for dtype in (problem.dtype_lhs, problem.dtype_out)]
    if integers[0] != integers[1] or (integers[0] and problem.dtype_out != "int32"):
        found.append(
            Violation(
                rule="dtype-out",
                value=f"{problem.dtype_lhs} operands and a {problem.dtype_out} result",
                limit="integers are summed in int32, floats in float32, and neither turns into the other",
                fix=f"use dtype_out={problem.dtype_accumulator}"
                + ", or the lesson first_matmul, which rescales to int8" * integers[0],
            )
        )
    return found


def block_rules(problem: MatmulProblem, tiles: Tiles) -> list[Violation]:
    """No tile is above the matrix, leaves a rest, or is misaligned."""
    return [*operand_rules(problem), *size_violations(problem, tiles), *alignment_violations(problem, tiles)]


def whole_rules(problem: MatmulProblem, tiles: Tiles) -> list[Violation]:
    """There is one tile: everything."""
    whole = Tiles.whole(problem)
    found = size_violations(problem, tiles)
    if not found and tiles != whole:
        limit = "v1 has no grid and takes the matrices whole"
        found = [Violation(rule="tile-is-whole", value=f"tiles {tiles} of {whole}", limit=limit, fix="")]
    fix = f"v1 takes {whole} only; climb to v3 for tiles"
    return [*operand_rules(problem), *(dataclasses.replace(violation, fix=fix) for violation in found)]


def bands(problem: MatmulProblem, splits: int) -> Tiles:
    """N = `splits` bands of rows and as many of columns, each over all of k.

    Where N does not divide a size, the tile is the least one above size / N that does not divide either: the rules then
    refuse it, where a divisor nearby would quietly be a grid of another N.

    Raises:
      TilesError: N is below one.
    """
    if splits < 1:
        raise TilesError(f"N={splits}: v2 cuts the matrices into at least one band; use N≥1")

    def band(size: int) -> int:
        if size % splits == 0:
            return size // splits
        return next(tile for tile in itertools.count(size // splits + 1) if size % tile)

    return Tiles(tile_m=band(problem.m), tile_k=problem.k, tile_n=band(problem.n))


def band_rules(problem: MatmulProblem, tiles: Tiles) -> list[Violation]:
    """Bands are equal and aligned, as many of rows as of columns, over all of k; the fix is the N that would do."""
    found = [*size_violations(problem, tiles), *alignment_violations(problem, tiles)]
    grid_m, grid_n, grid_k = tiles.grid(problem)
    if not found and (grid_m != grid_n or grid_k != 1):
        found.append(
            Violation(
                rule="rows-by-columns",
                value=f"tiles {tiles} make {grid_m} bands of rows, {grid_n} of columns, and cut k in {grid_k}",
                limit="v2 cuts rows and columns alike and leaves k whole",
                fix="",
            )
        )

    def works(splits: int) -> bool:
        return not alignment_violations(problem, bands(problem, splits))

    both = math.gcd(problem.m, problem.n)
    usable = [str(splits) for splits in range(1, min(both, 64) + 1) if both % splits == 0 and works(splits)]
    fix = f"for {problem.m}×{problem.k}×{problem.n} use N={' or '.join(usable)}"
    return [*operand_rules(problem), *(dataclasses.replace(violation, fix=fix) for violation in found)]
