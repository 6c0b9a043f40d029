"""`systolic.moe` beside float64: routings of every kind, by XLA and by the kernels in TPU interpret mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from virtual_devices import run_on_virtual_devices

import systolic

TOKENS, D, F, EXPERTS = 24, 128, 256, 6
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(TOKENS, D)).astype(np.float32)
GATE, UP = (RANDOM.normal(size=(2, EXPERTS, D, F)) / 11).astype(np.float32)
DOWN = (RANDOM.normal(size=(EXPERTS, F, D)) / 16).astype(np.float32)


def expected(x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the layer in float64, choice by choice; -1 is not an expert."""
    out = np.zeros(x.shape, np.float64)
    for token, choice in np.ndindex(ids.shape):
        if (expert := ids[token, choice]) >= 0:
            row = x[token].astype(np.float64)
            gate = row @ GATE[expert]
            hidden = gate / (1 + np.exp(-gate)) * (row @ UP[expert])
            out[token] += weights[token, choice] * (hidden @ DOWN[expert])
    return out


@functools.cache
def compiled(implementation: str, capacity: int | None = None) -> Callable[..., jax.Array]:
    options: dict[str, Any] = {"implementation": implementation, "capacity": capacity, "precision": "highest"}
    return jax.jit(lambda x, ids, weights: systolic.moe(x, (ids, weights), GATE, UP, DOWN, **options))


ROUTINGS = {
    "k 1": RANDOM.integers(0, EXPERTS, (TOKENS, 1)),
    "all of them": np.tile(np.arange(EXPERTS), (TOKENS, 1)),
    "all tokens to one": np.full((TOKENS, 2), 3),
    "none to most": RANDOM.choice([0, 5], (TOKENS, 3)),
    "some to none": RANDOM.integers(-1, EXPERTS, (TOKENS, 2)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_layer_is_the_weighted_sum_of_experts(name: str, implementation: str) -> None:
    ids = ROUTINGS[name]
    weights = np.random.default_rng(1).random(ids.shape).astype(np.float32)
    out = compiled(implementation)(X, ids, weights)
    np.testing.assert_allclose(out, expected(X, ids, weights), atol=2e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("renormalize", [True, False])
def test_logits_choose_the_largest_and_the_first_of_equal_ones(renormalize: bool) -> None:
    logits = np.random.default_rng(2).integers(0, 3, (TOKENS, EXPERTS)).astype(np.float32)
    out = systolic.moe(
        X, logits, GATE, UP, DOWN, top_k=2, renormalize=renormalize, implementation="xla", precision="highest"
    )
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :2]
    shares = np.exp(logits.astype(np.float64))
    weights = np.take_along_axis(shares / shares.sum(1, keepdims=True), ids, 1)
    weights = weights / weights.sum(1, keepdims=True) if renormalize else weights
    np.testing.assert_allclose(out, expected(X, ids, weights), atol=2e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_nothing_of_a_dropped_token_reaches_another(implementation: str) -> None:
    """Above the capacity, and without an expert, a token of NaN with a weight of NaN changes no other token."""
    ids = np.full((TOKENS, 1), 2)
    ids[:2] = -1
    weights = np.ones((TOKENS, 1), np.float32)
    x = X.copy()
    dropped = np.r_[0, 1, 7:TOKENS]  # 5 rows are kept
    x[dropped] = weights[dropped] = np.nan
    out = compiled(implementation, 5)(x, ids, weights)
    kept = np.where(np.isin(np.arange(TOKENS), dropped)[:, None], -1, ids)
    np.testing.assert_allclose(out, expected(X, kept, np.ones_like(weights)), atol=2e-5)


@pytest.mark.exhaustive
def test_nothing_of_a_dropped_token_reaches_a_gradient() -> None:
    ids, weights, x = np.full((TOKENS, 1), 2), np.ones((TOKENS, 1), np.float32), X.copy()
    ids[:2] = -1
    dropped = np.r_[0, 1, 7:TOKENS]  # 5 rows are kept
    x[dropped] = weights[dropped] = np.nan
    cotangent = np.random.default_rng(5).normal(size=X.shape).astype(np.float32)

    def gradients(x: np.ndarray, weights: np.ndarray, ids: np.ndarray, capacity: int | None) -> Any:
        def layer(x: jax.Array, weights: jax.Array, *matrices: jax.Array) -> jax.Array:
            plain: dict[str, Any] = {"implementation": "xla", "precision": "highest"}
            return systolic.moe(x, (ids, weights), *matrices, capacity=capacity, **plain)

        return jax.jit(jax.vjp(layer, x, weights, GATE, UP, DOWN)[1])(cotangent)

    kept = np.where(np.isin(np.arange(TOKENS), dropped)[:, None], -1, ids)
    expected_gradients = gradients(X, np.ones_like(weights), kept, None)
    for one, other in zip(gradients(x, weights, ids, 5), expected_gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_no_tokens_are_no_tokens() -> None:
    out = systolic.moe(X[:0], np.zeros((0, EXPERTS), np.float32), GATE, UP, DOWN, top_k=2)
    assert out.shape == (0, D)


def test_every_floating_argument_has_a_gradient() -> None:
    logits = np.random.default_rng(3).normal(size=(8, EXPERTS)).astype(np.float32)

    def layer(*given: jax.Array) -> jax.Array:
        return systolic.moe(*given, top_k=3, capacity=4, implementation="xla", precision="highest")

    with jax.default_matmul_precision("highest"):
        check_grads(jax.jit(layer), (X[:8], logits, GATE, UP, DOWN), 1, ("fwd", "rev"), atol=0.02, rtol=0.02)


def test_shared_experts_and_biases_are_added() -> None:
    ids, weights = np.tile([4, 1], (TOKENS, 1)), np.full((TOKENS, 2), 0.5, np.float32)
    bias = np.random.default_rng(4).normal(size=(EXPERTS, D)).astype(np.float32)
    up = np.ones((EXPERTS, F), np.float32)
    shared = (GATE[0], UP[0], DOWN[0])
    plain: dict[str, Any] = {"implementation": "xla", "precision": "highest"}
    out = systolic.moe(X, (ids, weights), GATE, UP, DOWN, bias_down=bias, bias_up=up, shared=shared, **plain)
    every = expected(X, np.zeros((TOKENS, 1), int), np.ones((TOKENS, 1)))
    gates = [np.asarray(jax.nn.silu(jnp.matmul(X, GATE[e], precision="highest"))) for e in (4, 1)]
    added = sum(0.5 * (gate @ DOWN[e] + bias[e]) for gate, e in zip(gates, (4, 1), strict=True))
    np.testing.assert_allclose(out, expected(X, ids, weights) + added + every, atol=1e-4)


DEVICES = """
import jax, jax.numpy as jnp, numpy as np, systolic
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()[:4]), ("expert",))
random = np.random.default_rng(0)
x, logits = random.normal(size=(32, 128)).astype("f"), random.normal(size=(32, 8)).astype("f")
gate, up = (random.normal(size=(2, 8, 128, 256)) / 11).astype("f")
down = (random.normal(size=(8, 256, 128)) / 16).astype("f")
given = x, logits, gate, up, down

def whole(*given, axis=None, capacity=None):
    return systolic.moe(*given, top_k=2, axis_name=axis, capacity=capacity, implementation="xla", precision="highest")

def compare(capacity):
    cut = jax.shard_map(
        lambda *given: whole(*given, axis="expert", capacity=capacity), mesh=mesh, in_specs=P("expert"),
        out_specs=P("expert"),
    )
    one = lambda *given: whole(*given, capacity=capacity)
    np.testing.assert_allclose(jax.jit(cut)(*given), one(*given), atol=2e-5)
    gradients = (jax.jit(jax.grad(lambda *given: (fn(*given) ** 2).sum(), range(5)))(*given) for fn in (cut, one))
    for ours, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-4)

compare(5)
compare(None)
with jax.set_mesh(mesh):  # whose order of devices is then known: sums go both ways round a ring
    compare(None)
"""


@pytest.mark.exhaustive
def test_experts_on_four_devices_compute_what_one_device_does(tmp_path: Path) -> None:
    run_on_virtual_devices(DEVICES, tmp_path)
