"""The kernels of the lesson on cores, at small sizes, against float64; two cores share what is parallel."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from systolic.checking.running import run_checks
from systolic.chips import chip
from systolic.lessons.kernels.cores import add_matrices, sine, triangle


def right(fn: Callable[..., jax.Array], reference: Callable[..., jax.Array], *args: jax.ShapeDtypeStruct) -> None:
    for semantics, on in (("arbitrary", "v5e"), ("parallel", "v5p")):
        outcome = run_checks(
            functools.partial(fn, semantics=semantics), args, chip=chip(on), reference=reference, seeds=(0,)
        )
        assert [each for each in outcome.findings if each.grade != "note"] == []
        assert outcome.summary.error is not None
        assert outcome.summary.tolerance is not None
        assert outcome.summary.error <= outcome.summary.tolerance


@pytest.mark.exhaustive
@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(8, 128), (24, 256), (16, 384)])
def test_add(shape: tuple[int, int]) -> None:
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    right(functools.partial(add_matrices, bm=8, bn=128), lambda x, y: x + y, x, x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [8, 24, 32])  # a step alone, a step too few for two cores, two for each
def test_sine(rows: int) -> None:
    right(functools.partial(sine, bm=8), jnp.sin, jax.ShapeDtypeStruct((rows, 100), jnp.float32))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("blocks", "dealt"), [(1, True), (3, False), pytest.param(3, True, marks=pytest.mark.slow), (4, True)]
)
def test_triangle(blocks: int, *, dealt: bool) -> None:
    m = 128 * blocks
    lhs, x = (jax.ShapeDtypeStruct((m, n), jnp.bfloat16) for n in (m, 128))
    right(functools.partial(triangle, bm=128, dealt=dealt), lambda lhs, x: jnp.tril(lhs) @ x, lhs, x)
