"""Shapes of operands: vectors, batches, slices of a larger array, and nothing to multiply."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from matmul_reference import Call, values, wide

import systolic

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", num_cores_or_threads=1)


def check(call: Call, implementation: Any = CAREFUL, **keywords: Any) -> None:
    call.check(systolic.matmul(call.lhs, call.rhs, implementation=implementation, **call.keywords, **keywords))


# Pairs of shapes: vectors, matrices, batches that are equal, broadcast, or only on one side.
PAIRS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)),
    ((1,), (1,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((1, 3), (3, 1)),
    ((1, 1), (1, 5)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((5, 1, 3), (5, 3, 1)),
    ((5, 8, 3), (3, 4)),
    ((4, 6, 2, 3), (3,)),
    ((4, 6, 2, 3), (3, 5)),
    ((4, 6, 2, 3), (6, 3, 5)),
    ((4, 1, 2, 3), (1, 6, 3, 5)),
    ((6, 2, 3), (4, 1, 3, 5)),
    ((2, 1, 3, 2, 3), (4, 1, 3, 5)),
    ((3,), (2, 2, 3, 5)),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("lhs", "rhs"), PAIRS)
def test_pairs_of_shapes(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    arrays = values(random, lhs, jnp.float32), values(random, rhs, jnp.float32)
    for implementation in ("interpret", "xla", None):
        found = np.asarray(systolic.matmul(*arrays, implementation=implementation))
        wanted = np.matmul(*map(wide, arrays))
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("side", ["row", "column", "both"])
def test_vectors_with_everything_beside_them(side: Literal["row", "column", "both"]) -> None:
    """The output of a vector lacks an axis, and so has what is added to it."""
    random = np.random.default_rng(0)
    lhs = values(random, (3, 40) if side == "both" else (40,) if side == "row" else (2, 9, 40), jnp.float32)
    rhs = values(random, (2, 40, 7) if side == "row" else (40,), jnp.float32)
    lhs = lhs[0] if side == "both" else lhs
    shape = np.matmul(lhs, rhs).shape
    beside: dict[str, Any] = {
        "residual": values(random, shape, jnp.float32),
        "out_scale": values(random, shape[-1:], jnp.float32),
    }
    bias = values(random, (7,) if side == "row" else (1,), jnp.float32)
    found = systolic.matmul(lhs, rhs, bias=bias, activation="tanh", implementation="interpret", **beside)
    total = np.matmul(wide(lhs), wide(rhs)) + (wide(bias) if side == "row" else wide(bias)[0])
    assert found.shape == shape
    np.testing.assert_allclose(found, (np.tanh(total) + beside["residual"]) * beside["out_scale"], atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("transpose_lhs", "transpose_rhs"), list(itertools.product([False, True], repeat=2)))
def test_transposes_of_slices_of_a_larger_array(transpose_lhs: bool, transpose_rhs: bool) -> None:
    """Slices are taken outside of the kernel, inside of one jitted function, and each product is fused with a stack."""
    random = np.random.default_rng(0)
    large = values(random, (2, 400, 400), jnp.float32)
    keywords: dict[str, Any] = {"transpose_lhs": transpose_lhs, "transpose_rhs": transpose_rhs}
    lhs_at = np.s_[0, 100:300, 7:140] if transpose_lhs else np.s_[0, 7:140, 100:300]
    rhs_at = np.s_[1, 33:188, 200:400] if transpose_rhs else np.s_[1, 200:400, 33:188]

    @jax.jit
    def fn(large: jax.Array) -> jax.Array:
        return systolic.matmul(
            large[lhs_at],
            large[rhs_at],
            bias=large[0, 5, 33:188],
            activation="silu",
            residual=large[1, 200:333, 10:165],
            tiles=(128, 128, 128),
            implementation=CAREFUL,
            **keywords,
        )

    beside = {"bias": large[0, 5, 33:188], "activation": "silu", "residual": large[1, 200:333, 10:165]}
    Call(lhs=large[lhs_at], rhs=large[rhs_at], keywords={**keywords, **beside}).check(fn(large))


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", ["interpret", "xla", None])
@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [((0, 5), (5, 3)), ((4, 5), (5, 0)), ((4, 0), (0, 3)), ((0, 4, 5), (5, 3)), ((0,), (0, 3)), ((0,), (0,)),
     ((2, 4, 0), (1, 0, 3)), ((0, 4, 5), (1, 5, 3)), ((0, 0), (0, 0))],
)  # fmt: skip
def test_nothing_to_multiply(lhs: tuple[int, ...], rhs: tuple[int, ...], implementation: Any) -> None:
    left, right = np.ones(lhs, np.float32), np.ones(rhs, np.float32)
    wanted = np.matmul(left, right)
    found = systolic.matmul(left, right, implementation=implementation)
    assert (found.shape, found.dtype) == (wanted.shape, jnp.float32)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_a_sum_over_nothing_is_zero_and_all_else_is_done(implementation: Any) -> None:
    random = np.random.default_rng(0)
    beside: dict[str, Any] = {
        "residual": values(random, (4, 3), jnp.float32),
        "bias": values(random, (3,), jnp.float32),
    }
    call = Call(
        lhs=np.ones((4, 0), np.float32),
        rhs=np.ones((0, 3), np.float32),
        keywords={**beside, "activation": "sigmoid", "out_scale": np.float32(2)},
    )
    check(call, implementation)
    grads = jax.grad(lambda b, r: systolic.matmul(call.lhs, call.rhs, bias=b, residual=r, out_scale=2.0).sum(), (0, 1))(
        beside["bias"], beside["residual"]
    )
    np.testing.assert_array_equal(grads[0], np.full(3, 8.0))
    np.testing.assert_array_equal(grads[1], np.full((4, 3), 2.0))


def test_batches_of_the_same_weight_become_rows() -> None:
    """One product of many rows reads the weight less often: seen in the grid of the kernel."""
    lhs, rhs = np.ones((3, 2, 16, 40), np.float32), np.ones((40, 50), np.float32)
    jaxpr = jax.make_jaxpr(lambda *arrays: systolic.matmul(*arrays, implementation="interpret"))(lhs, rhs)
    assert f"f32[{math.prod(lhs.shape[:-1])},50]" in str(jaxpr)
