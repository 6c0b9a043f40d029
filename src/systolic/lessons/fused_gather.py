"""Fused gather · Rows by their numbers inside a product.

    step 1   XLA's gather, then its product            an array of gathered rows is written and read again
    step 2   the kernel fetches rows, then multiplies  a copy for each row; copies and products take turns
    step 3   the same with two buffers                 the next rows arrive while this block is multiplied
    step 4   all of x in VMEM                          a load and a store for each row, and no copies

The kernels are in files of their own. They leave out the array of gathered rows, and none is faster than step 1: what
they save is 64 MiB across HBM, and what they add is work for each row. A core starts copies one after another, and its
matrix units wait meanwhile. Two buffers hide the time for which copies are under way, which is the smaller part. Loads
from VMEM take less time than copies. On v5e and v6e XLA's gather has x in VMEM too.

Step 4 pays where the work for a row is hidden: `systolic.moe` copies the next expert's rows together in the code that
multiplies this one's, and where experts' weights take longer to arrive than all of that.

The fault is in the wait, and no time shows it:

    late     a block's copies are awaited after its product: rows are multiplied that may not have arrived; only race
             detection shows the fault
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from systolic.chips import Chip
from systolic.lessons.kernels.fetch_then_multiply import fetch_then_multiply
from systolic.lessons.kernels.fetch_while_multiplying import BLOCK, fetch_while_multiplying
from systolic.lessons.kernels.rows_from_vmem import rows_from_vmem
from systolic.lessons.kernels.take_then_multiply import take_then_multiply
from systolic.lessons.lesson import Lesson, Part
from systolic.lessons.runner import run_parts

TOKENS, ROWS, K, N = 2048, 8192, 2048, 2048


def reference(x: Float[Array, "tokens k"], ids: Int32[Array, " rows"], w: Float[Array, "k n"]) -> Array:
    return x[ids] @ w


def _arguments(tokens: int, rows: int, k: int, n: int) -> tuple[Any, ...]:
    ids = np.random.default_rng(0).integers(0, tokens, rows).astype(np.int32)
    return jax.ShapeDtypeStruct((tokens, k), jnp.float32), ids, jax.ShapeDtypeStruct((k, n), jnp.bfloat16)


def _part(name: str, fn: Callable[..., Any], *finds: str) -> Part:
    return Part(
        name=name,
        fn=fn,
        args=_arguments(TOKENS, ROWS, K, N),
        run_args=_arguments(BLOCK, 2 * BLOCK, 128, 128),
        reference=reference,
        finds=frozenset(finds),
    )


PARTS = (
    _part("take, then multiply", take_then_multiply),
    _part("fetch, then multiply", fetch_then_multiply),
    _part("fetch while multiplying", fetch_while_multiplying),
    _part("the same, late", functools.partial(fetch_while_multiplying, late=True), "race"),
    _part("rows from VMEM", rows_from_vmem),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run the four steps and the fault, and simulate them on each chip."""
    results = run_parts(PARTS, chips)
    taken, fetched, overlapped, late, in_vmem = (part.name for part in PARTS)

    def times(*names: str) -> str:
        def of_chip(chip: Chip) -> str:
            shown = (results[name, chip.name].time_us for name in names)
            return " → ".join("?" if time_us is None else f"{time_us:,.0f}" for time_us in shown)

        return ", ".join(f"{chip.name} {of_chip(chip)} µs" for chip in chips)

    products = ", ".join(
        f"{chip.name} {2 * ROWS * K * N / chip.peak_ops_per_s('bfloat16') * 1e6:,.0f} µs" for chip in chips
    )
    return Lesson(
        lines=(
            f"The products alone, at the published peak: {products}.",
            f"XLA's gather, then its product → rows fetched in the kernel → with two buffers, simulated: "
            f"{times(taken, fetched, overlapped)}.",
            f"The race costs nothing, waits in time → late: {times(overlapped, late)}.",
            f"All of x in VMEM, against rows fetched with two buffers: {results.ratios(in_vmem, overlapped, chips)} as "
            f"fast; against XLA: {results.ratios(in_vmem, taken, chips)}.",
        ),
        rows=results.rows,
        ok=results.ok,
    )
