"""The kernel that adds up each token's rows, in TPU interpret mode beside float64, and its derivatives."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from systolic.ops.engine.backend import Backend, backend_of
from systolic.ops.moe.permuting import Summing, combined
from systolic.ops.moe.routing import sorted_by_expert
from systolic.ops.moe.schedule import CombineSchedule, CombineSpec

INTERPRETED = backend_of("interpret", "v6e", None)
RANDOM = np.random.default_rng(0)


def summing(backend: Backend, dtype: str) -> Summing:
    return Summing(backend=backend, dtype_out=dtype, used_rows=None)


def summed(
    ids: np.ndarray, weights: np.ndarray, d: int, dtype: str, experts: int, capacity: int | None = None
) -> tuple[Any, ...]:
    """Return the kernel's sums, and those of float64; rows of no choice are NaN."""
    choices = sorted_by_expert(jnp.asarray(ids, jnp.int32), experts, capacity)
    place, kept = np.asarray(choices.place), int(choices.sizes.sum())
    results = np.full((ids.size, d), np.nan, np.float32)
    results[:kept] = RANDOM.normal(size=(kept, d))
    results = jnp.asarray(results, dtype)
    out = jax.jit(functools.partial(combined, summing(INTERPRETED, dtype)))(results, weights, choices)
    is_kept = (place < kept)[:, None]
    rows = np.where(is_kept, np.asarray(results, np.float64)[np.where(place < kept, place, 0)], 0)
    terms = rows.reshape(*ids.shape, d) * np.where(np.isnan(weights), 0, weights)[:, :, None].astype(np.float64)
    return np.asarray(out, np.float64), terms.sum(1), np.abs(terms).sum(1)


# 300 tokens are three granules of 128, the last one ragged. 1,152 columns are a register of eight tiles and one tile;
# 100 are none.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("tokens", "top_k", "d", "dtype"),
    [(300, 2, 1152, "bfloat16"), (5, 8, 256, "bfloat16"), (5, 8, 256, "float32"), (130, 1, 100, "float32")],
)
def test_sums_are_those_of_float64(tokens: int, top_k: int, d: int, dtype: str) -> None:
    ids = RANDOM.integers(-1, 9, (tokens, top_k))
    weights = RANDOM.random(ids.shape).astype(np.float32)
    weights[ids < 0] = np.nan
    out, expected, size = summed(ids, weights, d, dtype, experts=9)
    rounding = float(jnp.finfo(dtype).eps)
    assert (np.abs(out - expected) <= rounding * np.abs(expected) + top_k * 2.0**-23 * size).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("expert", [0, 3])
def test_all_tokens_may_go_to_one_expert_and_some_of_them_be_dropped(expert: int) -> None:
    ids, weights = np.full((150, 1), expert), np.ones((150, 1), np.float32)
    out, expected, _ = summed(ids, weights, 128, "float32", experts=5, capacity=140)
    np.testing.assert_array_equal(out, expected)
    assert not out[140:].any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("columns", [128, 384])
def test_slabs_of_columns_give_the_same(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 128 tokens in slabs of columns, as where VMEM is small."""
    from systolic.ops.moe import schedule

    spec = CombineSpec(tokens=260, top_k=2, experts=4, d=384, dtype="bfloat16", dtype_out="bfloat16")
    (chosen,) = [one for one in schedule._schedules(spec) if one.tokens == 128 and one.columns == columns]
    monkeypatch.setattr(CombineSchedule, "of", lambda *_: chosen)
    jax.clear_caches()
    ids, weights = RANDOM.integers(0, 4, (260, 2)), RANDOM.random((260, 2)).astype(np.float32)
    out, expected, size = summed(ids, weights, 384, "bfloat16", experts=4)
    jax.clear_caches()
    assert (np.abs(out - expected) <= 2.0**-8 * np.abs(expected) + 2.0**-22 * size).all()


@pytest.mark.exhaustive
def test_sums_are_differentiable_in_rows_and_weights_to_second_order() -> None:
    ids = jnp.asarray(RANDOM.integers(-1, 3, (6, 2)), jnp.int32)
    choices = sorted_by_expert(ids, 3, 2)
    results, weights = RANDOM.normal(size=(12, 4)).astype("f"), RANDOM.random((6, 2)).astype("f")
    by_xla = summing(backend_of("xla", None, None), "float32")
    sums = jax.jit(lambda results, weights: combined(by_xla, results, weights, choices))
    check_grads(sums, (results, weights), 2, ("fwd", "rev"), atol=0.02, rtol=0.02)


@pytest.mark.exhaustive
def test_nothing_of_a_dropped_row_reaches_a_gradient() -> None:
    choices = sorted_by_expert(jnp.asarray([[0], [0], [-1], [1]], jnp.int32), 2, 1)
    results = jnp.asarray([[1.0], [2.0], [np.nan], [np.nan]]) * jnp.ones((1, 128))
    weights = jnp.asarray([[3.0], [np.nan], [np.nan], [4.0]])
    cotangent = jnp.asarray([[1.0], [np.nan], [np.nan], [1.0]]) * jnp.ones((1, 128))
    sums = functools.partial(combined, summing(INTERPRETED, "float32"), choices=choices)
    out, transposed = jax.vjp(sums, results, weights)
    np.testing.assert_array_equal(out[:, 0], [3, 0, 0, 8])
    d_results, d_weights = transposed(cotangent)
    np.testing.assert_array_equal(d_results[:, 0], [3, 4, 0, 0])
    np.testing.assert_array_equal(d_weights[:, 0], [128, 0, 0, 256])
