"""Run the kernels of `kernels/grouped.py`, XLA and `systolic.grouped_matmul`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from systolic.chips import Chip
from systolic.lessons.kernels.grouped import ROWS, aligned_grouped, grouped
from systolic.lessons.lesson import Lesson, Part
from systolic.lessons.runner import run_parts
from systolic.ops.grouped import grouped_matmul

M, K, N, GROUPS = 4096, 2048, 2048, 16
EVEN = np.full(GROUPS, M // GROUPS, np.int32)
# As uneven as routers leave them; drawn once.
UNEVEN = np.random.default_rng(0).multinomial(M, np.random.default_rng(1).dirichlet([2.0] * GROUPS)).astype(np.int32)


def reference(sizes: Int32[Array, " groups"], x: Float[Array, "m k"], w: Float[Array, "groups k n"]) -> Array:
    """Multiply every row by its group's matrix, which is gathered."""
    group = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(x.shape[0]), side="right")
    return jnp.einsum("mk,mkn->mn", x, w[group])


def xla(sizes: Array, x: Array, w: Array) -> Array:
    return jax.lax.ragged_dot(x, w, sizes, preferred_element_type=x.dtype)


def systolic_grouped(sizes: Array, x: Array, w: Array) -> Array:
    return grouped_matmul(x, w, sizes)


def _arguments(sizes: np.ndarray, k: int, n: int) -> tuple[np.ndarray, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    shapes = (int(sizes.sum()), k), (len(sizes), k, n)
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    return sizes, x, w


_SMALL_EVEN = np.array([ROWS, 0, 2 * ROWS], np.int32)
_SMALL = np.array([100, 0, 300, 3, 365], np.int32)
_part = functools.partial(Part, reference=reference)
PARTS = (
    _part(
        name="looked up, even",
        fn=aligned_grouped,
        args=_arguments(EVEN, K, N),
        run_args=_arguments(_SMALL_EVEN, 128, 512),
    ),
    _part(name="visited, even", fn=grouped, args=_arguments(EVEN, K, N), run_args=()),
    _part(name="visited", fn=grouped, args=_arguments(UNEVEN, K, N), run_args=_arguments(_SMALL, 128, 512)),
    _part(name="XLA", fn=xla, args=_arguments(UNEVEN, K, N), run_args=()),
    _part(name="systolic", fn=systolic_grouped, args=_arguments(UNEVEN, K, N), run_args=()),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run even groups by both kernels, uneven ones by the second, by XLA and by systolic."""
    results = run_parts(PARTS, chips)
    listed = int((-(-np.cumsum(UNEVEN) // ROWS) - (np.cumsum(UNEVEN) - UNEVEN) // ROWS)[UNEVEN > 0].sum())
    return Lesson(
        lines=(
            f"Even groups, looked up against visited: {results.ratios('looked up, even', 'visited, even', chips)} as "
            "fast.",
            f"Uneven groups take {listed} visits of {ROWS} rows where {M // ROWS} would hold all; against even ones "
            f"they are {results.ratios('visited', 'visited, even', chips)} as fast.",
            f"Visited against XLA: {results.ratios('visited', 'XLA', chips)} as fast.",
            f"systolic.grouped_matmul against visited: {results.ratios('systolic', 'visited', chips)} as fast.",
        ),
        rows=results.rows,
        ok=results.ok,
    )
