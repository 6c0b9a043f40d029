"""Block multiplication in NumPy: a big product out of small ones.

    out[rows, columns] = Σ_blocks lhs[rows, block] @ rhs[block, columns]

Suppose that the only multiplier at hand takes matrices of up to 256 × 256, as the matrix unit of a newer TPU does.
Any product is then a sum of such small ones: cut the three matrices into blocks of bm × bk, bk × bn and bm × bn, and
let three loops go over the blocks of m, n and k. These loops are the grid of every Pallas kernel on the ladder, and
the slices its `BlockSpec`s.

The edge: with m // bm blocks, the last m % bm rows would be in no block, and nobody would notice. Here the number of
blocks is rounded up and the slices of the last ones end where the matrix does, which NumPy does for us: a slice that
runs past the end is cut short. A TPU's blocks have one size, so a kernel has to refuse, pad or mask instead.

Order: i over m, j over n, kk over k innermost, so that each block of the result is summed in one go.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from systolic.bench.accuracy import check
from systolic.chips import Chip
from systolic.lessons.lesson import Lesson
from systolic.problem import MatmulProblem, ProblemError, accumulator_dtype
from systolic.tiling import Tiles, TilesError

LARGEST_SMALL = 256


def multiply_small(lhs: Shaped[np.ndarray, "bm bk"], rhs: Shaped[np.ndarray, "bk bn"]) -> Shaped[np.ndarray, "bm bn"]:
    """The only multiplier we have.

    Raises:
      TilesError: a side above 256.
    """
    if max(*lhs.shape, *rhs.shape) > LARGEST_SMALL:
        raise TilesError(
            f"blocks {list(lhs.shape)} and {list(rhs.shape)}: the small multiplier takes up to {LARGEST_SMALL}"
        )
    return np.matmul(lhs, rhs)


def block_matmul(
    lhs: Shaped[np.ndarray, "m k"], rhs: Shaped[np.ndarray, "k n"], *, bm: int = 256, bk: int = 256, bn: int = 256
) -> Shaped[np.ndarray, "m n"]:
    """`lhs @ rhs` by blocks, right for sizes that the blocks do not divide; float32 sums, or int32 for integers.

    Raises:
      ProblemError: the operands are no matrices, do not fit each other, or are empty.
      TilesError: blocks of no elements, or above 256.
    """
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0]:
        raise ProblemError(f"lhs{list(lhs.shape)} @ rhs{list(rhs.shape)} needs lhs[m, k] and rhs[k, n]")
    problem = MatmulProblem.of(lhs.shape[0], lhs.shape[1], rhs.shape[1], lhs.dtype.name)
    sum_dtype = np.dtype(accumulator_dtype(lhs.dtype.name))
    blocks_m, blocks_n, blocks_k = Tiles(tile_m=bm, tile_k=bk, tile_n=bn).grid(problem)
    out = np.zeros((problem.m, problem.n), sum_dtype)
    for i, j, kk in itertools.product(range(blocks_m), range(blocks_n), range(blocks_k)):
        rows = slice(i * bm, (i + 1) * bm)
        columns = slice(j * bn, (j + 1) * bn)
        terms = slice(kk * bk, (kk + 1) * bk)
        out[rows, columns] += multiply_small(lhs[rows, terms].astype(sum_dtype), rhs[terms, columns].astype(sum_dtype))
    return out


def lost_share(problem: MatmulProblem, *, bm: int, bk: int, bn: int) -> float:
    """Share of the m·k·n products that a grid of `m // bm`, `n // bn`, `k // bk` blocks would leave out."""
    kept_m, kept_k, kept_n = problem.m // bm * bm, problem.k // bk * bk, problem.n // bn * bn
    return 1 - kept_m * kept_k * kept_n / (problem.m * problem.k * problem.n)


def lesson(chips: Sequence[Chip] = ()) -> Lesson:
    """Divisible, ragged and tiny sizes against float64, and what a grid rounded down would have lost."""
    del chips  # it shows arithmetic that is the same on every chip
    rows = []
    for m, k, n in ((512, 512, 512), (1000, 700, 300), (257, 513, 129), (100, 100, 100)):
        problem = MatmulProblem.of(m, k, n, "float32")
        accuracy = check(block_matmul, problem, output_roundings=-(-k // LARGEST_SMALL))
        rows.append(
            {
                "m": m,
                "k": k,
                "n": n,
                "dtype": "float32",
                "block": LARGEST_SMALL,
                "lost_by_rounding_down_percent": 100 * lost_share(problem, bm=256, bk=256, bn=256),
                "max_abs_error": accuracy.max_abs_error,
                "tolerance": accuracy.tolerance,
                "ok": accuracy.ok,
            }
        )
    return Lesson(
        name="block_matmul",
        title="Block multiplication in NumPy",
        lines=(
            "A product of any size is a sum of products of blocks, here of at most 256 × 256.",
            "The number of blocks is rounded up and the last ones are cut short: every size is right.",
            "Rounded down, as m // bm does, the rest is lost without a word; a block above the matrix loses all.",
        ),
        rows=tuple(rows),
        ok=all(row["ok"] for row in rows),
    )


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "block_matmul", *sys.argv[1:]]))
