"""The kernels of the lesson on refs, at small sizes: exact sums of small integers, and slices."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.interpreting import traced_as_on
from systolic.checking.running import run_checks
from systolic.chips import chip
from systolic.lessons.kernels.refs import (
    add_arrays,
    add_into_ref,
    add_refs,
    add_refs_without_a_kernel,
    piece,
    sum_by_calls,
    sum_in_place,
)


def drawn(*shape: int) -> np.ndarray:
    """Integers, whose sums float32 holds exactly."""
    return np.random.default_rng(len(shape)).integers(-100, 100, shape).astype(np.float32)


def ran(fn: Callable[..., jax.Array], *args: np.ndarray) -> np.ndarray:
    params = pltpu.InterpretParams(uninitialized_memory="nan", detect_races=True)
    with traced_as_on(chip("v5e")), pltpu.force_tpu_interpret_mode(params):
        return np.asarray(jax.jit(fn)(*args))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(8, 128), (40, 300)])
@pytest.mark.parametrize("fn", [add_arrays, add_refs, add_into_ref])
def test_add(fn: Callable[..., jax.Array], shape: tuple[int, int]) -> None:
    x, y = drawn(*shape), drawn(*shape)[::-1]
    np.testing.assert_array_equal(ran(functools.partial(fn, bm=8), x, y), x.astype(float) + y)
    np.testing.assert_array_equal(ran(add_refs_without_a_kernel, x, y), x.astype(float) + y)


@pytest.mark.parametrize(("at", "block"), [((0, 0), 0), ((1, 2), 3), ((4, 0), 4), ((7, 90), 4)])
def test_piece(at: tuple[int, int], block: int) -> None:
    x = drawn(40, 128)
    got = ran(functools.partial(piece, rows=8), np.array(at, np.int32), x)
    np.testing.assert_array_equal(got, x[8 * block : 8 * block + 8])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1, 8, 128), (3, 40, 200)])
@pytest.mark.parametrize(
    "fn",
    [sum_in_place, functools.partial(sum_by_calls, aliased=True), functools.partial(sum_by_calls, aliased=False)],
)
def test_sums(fn: Callable[..., jax.Array], shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    np.testing.assert_array_equal(ran(functools.partial(fn, bm=8), x), x.astype(float).sum(axis=0))


def test_nothing_races_in_place() -> None:
    x = jax.ShapeDtypeStruct((3, 32, 128), jnp.float32)
    outcome = run_checks(
        functools.partial(sum_in_place, bm=8), [x], chip=chip("v5e"), reference=lambda x: x.sum(axis=0), seeds=(0,)
    )
    assert [each for each in outcome.findings if each.grade != "note"] == []
    assert outcome.summary.error is not None
