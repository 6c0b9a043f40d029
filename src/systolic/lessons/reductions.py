"""Run the kernels of `kernels/reductions.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from systolic.chips import Chip
from systolic.lessons.kernels.reductions import (
    ONE_CORE,
    naive_sum_kernel,
    sum_axis_first,
    sum_blocks,
    sum_whole,
)
from systolic.lessons.lesson import Lesson, Part
from systolic.lessons.runner import run_parts


def _summed(x: Array) -> Array:
    return x.sum(axis=0)


SMALL = (jax.ShapeDtypeStruct((8, 512, 512), jnp.float32),)
LARGE = (jax.ShapeDtypeStruct((8, 4096, 4096), jnp.float32),)
RUN = (jax.ShapeDtypeStruct((3, 1024, 1024), jnp.float32),)  # in interpret mode: four blocks, three steps each
PARTS = (
    Part(
        name="not cleared",
        fn=functools.partial(sum_whole, kernel=naive_sum_kernel),
        args=SMALL,
        reference=_summed,
        finds=frozenset({"nan"}),
    ),
    Part(name="output whole", fn=sum_whole, args=SMALL, reference=_summed),
    Part(
        name="by blocks",
        fn=functools.partial(sum_blocks, semantics=ONE_CORE),
        args=LARGE,
        run_args=RUN,
        reference=_summed,
    ),
    Part(name="on both cores", fn=sum_blocks, args=LARGE, run_args=RUN, reference=_summed),
    Part(
        name="summed axis first",
        fn=sum_axis_first,
        args=LARGE,
        run_args=RUN,
        reference=_summed,
        finds=frozenset({"revisited-output"}),
    ),
    Part(
        name="summed axis parallel",
        fn=functools.partial(sum_blocks, semantics=("parallel", "parallel", "parallel")),
        args=LARGE,
        run_args=RUN,
        reference=_summed,
        finds=frozenset({"wrong-result"}),
        simulated=False,
    ),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run the sum that is not cleared, the right one, by blocks, on both cores, and with two wrong orders of steps."""
    results = run_parts(PARTS, chips)
    of = {part.name: results[part.name, chips[0].name] for part in PARTS}  # runs do not depend on the chip
    at_once, blocks = of["output whole"], of["by blocks"]
    lines = [
        f"Not cleared: the run finds {_words(of['not cleared'].violated)}. Cleared at the first step, the largest "
        f"error is {_number(at_once.error)} where rounding explains {_number(at_once.tolerance)}.",
    ]
    if at_once.vmem_bytes and blocks.vmem_bytes:
        larger = LARGE[0].size // SMALL[0].size
        lines.append(
            f"By blocks, {larger} times as much is summed with {blocks.vmem_bytes / at_once.vmem_bytes:.2f} times the "
            f"VMEM; whole, it would take {larger * at_once.vmem_bytes / 2**20:,.0f} MiB."
        )
    return Lesson(
        lines=(
            *lines,
            f"Parallel rows and columns: {results.ratios('on both cores', 'by blocks', chips)} as fast as on one core.",
            f"The summed axis first: {_words(of['summed axis first'].violated)}; in parallel: "
            f"{_words(of['summed axis parallel'].violated)}. It goes last, and in order.",
        ),
        rows=results.rows,
        ok=results.ok,
    )


def _words(rules: Sequence[str]) -> str:
    return ", ".join(rules) or "nothing"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2g}"
