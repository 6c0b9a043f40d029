"""Run the kernels of `kernels/block_matmul.py`, and report the results."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.bench.accuracy import check
from systolic.chips import Chip
from systolic.lessons.kernels.block_matmul import LARGEST_SMALL, block_matmul, lost_share
from systolic.lessons.lesson import Lesson
from systolic.spec import MatmulSpec


def lesson(chips: Sequence[Chip] = ()) -> Lesson:
    """Compare divisible, ragged and tiny sizes with float64, and show what a grid rounded down would lose."""
    del chips  # it shows arithmetic that is the same on every chip
    rows = []
    for m, k, n in ((512, 512, 512), (1000, 700, 300), (257, 513, 129), (100, 100, 100)):
        spec = MatmulSpec.of(m, k, n, "float32")
        accuracy = check(block_matmul, spec, output_roundings=-(-k // LARGEST_SMALL))
        rows.append(
            {
                "m": m,
                "k": k,
                "n": n,
                "dtype": "float32",
                "block": LARGEST_SMALL,
                "lost_by_rounding_down_percent": 100 * lost_share(m, k, n, bm=256, bk=256, bn=256),
                **accuracy.as_row(),
            }
        )
    return Lesson(
        lines=(
            "A product of any size is a sum of products of blocks, here of at most 256 × 256.",
            "The number of blocks is rounded up and the last ones are cut short: every size is right.",
            "Rounded down, as m // bm does, the rest is lost without a word; a block above the matrix loses all.",
        ),
        rows=tuple(rows),
        ok=all(row["ok"] for row in rows),
    )
