"""v2 · Rows by columns.

    out[i-th rows, j-th columns] = lhs[i-th rows, :] @ rhs[:, j-th columns]        i, j = 0 … N − 1

lhs is cut into N bands of rows, rhs into N bands of columns; each of the N² grid steps multiplies one band by one band,
over all of k. Every block of the result is finished within its step, so there is nothing to add up between steps.

Adds: a grid, and with it the pipeline. Each operand gets two buffers: while one step is computed, the blocks of the
next are copied in and the block of the one before is copied out. A block whose index did not change is not copied
again: the band of lhs stays for N steps.

Costs: bands are as long as k, so VMEM still grows with the matrix: 2 · (m/N · k + k · n/N + m/N · n/N) elements, 18
MiB for 2048³ in float32 with N = 4. A larger N makes the bands thinner, but rhs is read from HBM once for each band
of lhs, N times in all. Sizes that N does not divide are refused: m // N rows a band would leave the last rows without
a product.

Precision: as v1; the whole sum over k is float32 (int32 for int8) and is rounded once.

Grid: (i, j) = (N, N), j innermost. In VMEM: a band of lhs [m/N, k], a band of rhs [k, n/N], a block of out, twice each.
When to climb on: when a band no longer fits, which a long k brings about whatever N is.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Shaped

from systolic.lessons.ladder.rung import Rung, checked, operand_rules
from systolic.problem import MatmulProblem
from systolic.tiling import Tiles, TilesError, Violation, alignment_violations, hbm_bytes, size_violations

if TYPE_CHECKING:
    from jax.experimental.pallas import tpu as pltpu

DEFAULT_SPLITS = 4


def matmul_v2_kernel(
    lhs_vmem,  # [m/N, k] float32, bfloat16 or int8
    rhs_vmem,  # [k, n/N] the same
    out_vmem,  # [m/N, n/N] dtype_out
):
    """One band of rows by one band of columns."""
    accumulator = jnp.int32 if jnp.issubdtype(lhs_vmem.dtype, jnp.integer) else jnp.float32
    product = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=accumulator)
    out_vmem[...] = product.astype(out_vmem.dtype)


def bands(problem: MatmulProblem, splits: int = DEFAULT_SPLITS) -> Tiles:
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
    """Equal, aligned bands, as many of rows as of columns, over all of k; the fix is the N that would do."""
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


def matmul_v2(
    lhs: Shaped[Array, "m k"],
    rhs: Shaped[Array, "k n"],
    *,
    tiles: Tiles,
    dtype_out: str,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "m n"]:
    """`lhs @ rhs` by bands, as `dtype_out`; `bands(problem, N)` makes the tiles.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty.
      IllegalTilesError: a size that N does not divide, misaligned bands, or dtypes that the ladder does not multiply.
    """
    problem = checked("v2", lhs, rhs, tiles, dtype_out, band_rules)
    m, k, n = problem.m, problem.k, problem.n
    rows, columns = tiles.tile_m, tiles.tile_n
    return pl.pallas_call(
        matmul_v2_kernel,
        grid=(m // rows, n // columns),
        in_specs=[
            pl.BlockSpec((rows, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, columns), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out),
        cost_estimate=pl.CostEstimate(flops=problem.flops, transcendentals=0, bytes_accessed=hbm_bytes(problem, tiles)),
        interpret=interpret,
        name="matmul_v2_rows_columns",
    )(lhs, rhs)


RUNG = Rung(
    name="v2",
    title="rows × columns",
    adds="a grid of N×N bands, copies hidden behind arithmetic",
    costs="bands as long as k in VMEM, rhs read N times",
    multiply=matmul_v2,
    default_tiles=bands,
    takes_tiles=False,
    sweeps=False,
    pipelined=True,
    accumulator=False,
    rounds_each_step=False,
    rules=band_rules,
)

if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["ladder", "v2", *sys.argv[1:]]))
