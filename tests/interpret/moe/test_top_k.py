"""The kernel that chooses experts next to `lax.top_k`, bit for bit, in TPU interpret mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from systolic.ops.engine.backend import BY_XLA, Backend, backend_of
from systolic.ops.moe.choosing import chosen_experts, largest

INTERPRETED = backend_of("interpret", "v6e", None)
ALL_BITS = 2**32 - 1  # of the NaN that counts as taken out


@functools.cache
def chosen(top_k: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    return jax.jit(lambda logits: largest(INTERPRETED, logits, top_k))


def check(bits: np.ndarray, top_k: int) -> None:
    logits = jnp.asarray(bits.astype(np.uint32).view(np.float32))
    (values, ids), (expected, expected_ids) = chosen(top_k)(logits), lax.top_k(logits, top_k)
    np.testing.assert_array_equal(ids, expected_ids)
    # NaN by its bits too.
    np.testing.assert_array_equal(np.asarray(values).view(np.uint32), np.asarray(expected).view(np.uint32))


SPECIAL = [
    int(bits) for bits in np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -np.nan], np.float32).view("uint32")
]
FEW = st.lists(st.sampled_from(SPECIAL) | st.integers(0, ALL_BITS - 1), min_size=1, max_size=12)


# 3 experts are less than a register's eight, 9 a register and one; 1,100 tokens take two tiles of five blocks.
@settings(max_examples=20)
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"),
    [
        (5, 9, 1),
        (70, 3, 2),
        pytest.param(130, 60, 8, marks=pytest.mark.exhaustive),
        pytest.param(257, 128, 8, marks=pytest.mark.exhaustive),
        pytest.param(1100, 130, 16, marks=pytest.mark.exhaustive),
    ],
)
@given(few=FEW, seed=st.integers(0, 2**32 - 1))
def test_few_numbers_are_chosen_as_by_top_k(tokens: int, experts: int, top_k: int, few: list[int], seed: int) -> None:
    """Most logits are equal to others: zeros of both signs, infinities and NaN too."""
    check(np.random.default_rng(seed).choice(few, (tokens, experts)), top_k)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(300, 128, 8), (150, 512, 16)])
def test_any_numbers_are_chosen_as_by_top_k(tokens: int, experts: int, top_k: int) -> None:
    check(np.random.default_rng(0).integers(0, ALL_BITS, (tokens, experts)), top_k)


def test_the_lowest_nan_counts_as_taken_out() -> None:
    logits = np.full((1, 8), ALL_BITS, np.uint32)
    logits[0, 5] = 0
    values, ids = chosen(3)(jnp.asarray(logits.view(np.float32)))
    assert ids.tolist() == [[5, 0, 0]]
    assert np.asarray(values).view(np.uint32).tolist() == [[0, ALL_BITS, ALL_BITS]]


def test_vmap_calls_the_kernel_for_each_batch() -> None:
    logits = jnp.asarray(np.random.default_rng(0).integers(-2, 2, (3, 5, 9)).astype(np.float32))
    values, ids = jax.vmap(chosen(2))(logits)
    expected, expected_ids = lax.top_k(logits, 2)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(ids, expected_ids)


@pytest.mark.parametrize("renormalize", [True, False])
def test_weights_have_the_gradient_of_top_k(renormalize: bool) -> None:
    random = np.random.default_rng(0)
    logits, cotangent = jnp.asarray(random.integers(-2, 2, (24, 6)), jnp.float32), random.normal(size=(24, 2))

    def gradient(backend: Backend, wrap: Callable[..., Any]) -> jax.Array:
        @wrap
        def loss(logits: jax.Array) -> jax.Array:
            ids, weights = chosen_experts(backend, logits, 2, renormalize)
            return (weights * (cotangent + ids)).sum()

        return jax.jit(jax.grad(loss))(logits)

    expected = gradient(BY_XLA, jax.jit)
    assert np.abs(expected).max() > 0.1
    # All compute it in float32 from equal numbers, and XLA may add up a few terms in another order.
    rounding = 4 * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(gradient(INTERPRETED, jax.jit), expected, atol=rounding)
    # With the kernel traced, XLA's part runs here: interpret mode has effects, which `checkpoint` does not take.
    np.testing.assert_allclose(gradient(backend_of(None, "v6e", None), jax.checkpoint), expected, atol=rounding)
