"""Run the kernels of `kernels/pipelining.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from systolic.chips import Chip
from systolic.explaining import timeline_windows
from systolic.lessons.kernels.pipelining import (
    add_matrices,
    add_matrices_pipelined,
    add_matrices_pipelined_2d,
)
from systolic.lessons.lesson import Lesson, Part
from systolic.lessons.runner import run_parts
from systolic.timing import simulate


def _added(x: Array, y: Array) -> Array:
    return x + y


def _shapes(m: int, n: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (jax.ShapeDtypeStruct((m, n), jnp.float32),) * 2


LARGE, SMALL = _shapes(8192, 4096), _shapes(512, 512)
PARTS = (
    Part(name="whole 512²", fn=add_matrices, args=SMALL, reference=_added),
    Part(name="rows", fn=functools.partial(add_matrices_pipelined, bm=128), args=LARGE, reference=_added),
    *(
        Part(
            name=f"blocks of {bm}×{bn}",
            fn=functools.partial(add_matrices_pipelined_2d, bm=bm, bn=bn),
            args=LARGE,
            reference=_added,
        )
        for bm, bn in ((128, 128), (256, 256), (512, 512), (512, 1024))
    ),
    Part(
        name="not pipelined",
        fn=functools.partial(add_matrices_pipelined_2d, bm=512, bn=512, buffers=1),
        args=LARGE,
        reference=_added,
    ),
)


def steady_step(buffers: int, chip: Chip) -> str:
    """Return the simulator's timeline of one step in the middle, in words."""
    fn = functools.partial(add_matrices_pipelined_2d, bm=512, bn=512, buffers=buffers)
    windows = timeline_windows(simulate(fn, *LARGE, chip=chip, spans=60))
    return next(window.words for window in windows if window.title == "one steady step")


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Add whole arrays, by rows, by blocks of four sizes, and by blocks without a pipeline."""
    results = run_parts(PARTS, chips)
    pipelined = results.ratios("blocks of 512×512", "not pipelined", chips)
    larger = results.ratios("blocks of 512×512", "blocks of 128×128", chips)
    return Lesson(
        lines=(
            "Whole, arrays of 512² fit VMEM and these do not; by blocks any size does, and copies run beside it.",
            f"Blocks of 512×512 with a pipeline against the same without: {pipelined} as fast.",
            f"Blocks of 512×512 against 128×128: {larger} as fast, since a step costs time of its own.",
            f"A step in the middle on {chips[0].name}, with a pipeline: {steady_step(2, chips[0])}",
            f"The same without: {steady_step(1, chips[0])}",
        ),
        rows=results.rows,
        ok=results.ok,
    )
