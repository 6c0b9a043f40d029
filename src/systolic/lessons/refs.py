"""Run the kernels of `kernels/refs.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from systolic.chips import Chip
from systolic.lessons.kernels.refs import (
    add_arrays,
    add_into_ref,
    add_refs,
    add_refs_without_a_kernel,
    piece,
    sum_by_calls,
    sum_in_place,
)
from systolic.lessons.lesson import Lesson, Part
from systolic.lessons.runner import run_parts


def _added(x: Array, y: Array) -> Array:
    return x + y


def _piece(at: Array, x: Array, *, rows: int = 256) -> Array:
    return lax.dynamic_slice_in_dim(x, (at[0] + at[1]) * rows, rows)  # it stays within x, as the kernel does


def _summed(x: Array) -> Array:
    return x.sum(axis=0)


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


# 160 MiB an array: more than any chip's VMEM, or v4's CMEM, where XLA would keep it otherwise. Runs are of 3 blocks.
PAIR, FOUR = (_float32(8192, 5120),) * 2, (_float32(4, 8192, 5120),)
RUN_PAIR, RUN_FOUR = (_float32(192, 256),) * 2, (_float32(4, 192, 256),)
AT = np.array([3, 2], np.int32)
PARTS = (
    *(
        Part(name=name, fn=fn, args=PAIR, run_args=RUN_PAIR, reference=_added)
        for name, fn in (
            ("add arrays", add_arrays),
            ("add refs", add_refs),
            ("add into a ref", add_into_ref),
            ("add refs, no kernel", add_refs_without_a_kernel),
        )
    ),
    Part(
        name="a piece",
        fn=piece,
        args=(AT, _float32(8192, 5120)),
        run_args=(AT, _float32(8 * 256, 128)),
        reference=_piece,
    ),
    *(
        Part(name=name, fn=fn, args=FOUR, run_args=RUN_FOUR, reference=_summed)
        for name, fn in (
            ("sum, a new array", functools.partial(sum_by_calls, aliased=False)),
            ("sum, aliased", functools.partial(sum_by_calls, aliased=True)),
            ("sum, in place", sum_in_place),
        )
    ),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run an addition of refs, a slice at a place in SMEM, and a sum by a loop of kernels with a copy and without."""
    results = run_parts(PARTS, chips)
    moved = [results["a piece", chip.name].hbm_bytes for chip in chips]
    shares = sorted({f"{100 * bytes_ / _X_BYTES:.1f} %" for bytes_ in moved if bytes_})
    return Lesson(
        lines=(
            "A ref of only what is written, against refs of the operands too, which are copied first: "
            f"{results.fewer_bytes('add into a ref', 'add refs', chips)} fewer HBM bytes.",
            f"A piece whose place is computed from SMEM, read and written: {', '.join(shares)} of the array's bytes.",
            "A loop of kernels in place, against a new array each round: "
            f"{results.fewer_bytes('sum, in place', 'sum, a new array', chips)} fewer HBM bytes, "
            f"{results.ratios('sum, in place', 'sum, a new array', chips)} as fast.",
            f"input_output_aliases does the same: {results.ratios('sum, aliased', 'sum, in place', chips)} as fast.",
        ),
        rows=results.rows,
        ok=results.ok,
    )


_X_BYTES = PAIR[0].size * 4
