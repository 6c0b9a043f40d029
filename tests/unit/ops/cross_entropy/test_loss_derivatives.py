"""Derivatives of `systolic.linear_cross_entropy` in both modes, in any order, against plain JAX in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.ops.cross_entropy import xla

M, K, N = 10, 6, 20
RANDOM = np.random.default_rng(0)
X, W, DX, DW = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((M, K), (K, N), (M, K), (K, N)))
LABELS = np.where(RANDOM.random(M) < 0.3, -100, RANDOM.integers(0, N, M))
CAP, SMOOTHING, Z_LOSS = 3.0, 0.1, 0.01


def plain(x: Any, w: Any) -> Any:
    logits = CAP * jnp.tanh(x @ w / CAP)
    lse = jax.nn.logsumexp(logits, axis=1)
    picked = jnp.take_along_axis(logits, jnp.maximum(LABELS, 0)[:, None], 1)[:, 0]
    losses = lse - (1 - SMOOTHING) * picked - SMOOTHING * logits.mean(1) + Z_LOSS * lse**2
    return jnp.where(LABELS < 0, 0, losses).sum() / (LABELS >= 0).sum()


def tangent(fn: Any) -> Callable[..., Any]:
    return lambda x, w: jax.jvp(fn, (x, w), (DX.astype(x.dtype), DW.astype(w.dtype)))[1]


def gradient(fn: Any) -> Callable[..., Any]:
    return jax.grad(lambda *given: sum(leaf.sum() for leaf in jax.tree.leaves(fn(*given))), argnums=(0, 1))


ORDERS = {
    "tangent": (tangent,),
    "gradient of the tangent": (tangent, gradient),
    "tangent of the gradient": (gradient, tangent),
    "gradient of the gradient": (gradient, gradient),
    "tangent of the tangent": (tangent, tangent),
    "third": (gradient, tangent, gradient),
}


@pytest.mark.parametrize(
    ("order", "logits"),
    [
        *((order, "recompute") for order in list(ORDERS)[:4]),
        ("tangent of the gradient", "keep"),
        *(pytest.param(order, "keep", marks=pytest.mark.exhaustive) for order in list(ORDERS)[4:]),
    ],
)
def test_derivatives(order: str, logits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "_CHUNK_BYTES", 4 * N * 4)  # 4 of 10 tokens at once: the last chunk is shorter

    def ours(x: Any, w: Any) -> Any:
        return systolic.linear_cross_entropy(
            x,
            w,
            LABELS,
            label_smoothing=SMOOTHING,
            z_loss=Z_LOSS,
            soft_cap=CAP,
            logits=logits,
            precision="highest",
            implementation="xla",
        )

    derived, reference = ours, plain
    for transform in ORDERS[order]:
        derived, reference = transform(derived), transform(reference)
    with jax.enable_x64(True):
        wanted = jax.tree.leaves(reference(X.astype(np.float64), W.astype(np.float64)))
    for value, exact in zip(jax.tree.leaves(jax.jit(derived)(X, W)), wanted, strict=True):
        assert value.shape == exact.shape
        assert exact.dtype == np.float64
        np.testing.assert_allclose(value, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.exhaustive
def test_hessian_of_a_batch() -> None:
    """`jax.hessian` is forward over reverse mode, each a batch of tangents."""

    def ours(x: Any) -> Any:
        return systolic.linear_cross_entropy(x, W, LABELS[:3], precision="highest", implementation="xla")

    def exact(x: Any) -> Any:
        logits = x @ W.astype(np.float64)
        picked = jnp.take_along_axis(logits, jnp.maximum(LABELS[:3], 0)[:, None], 1)[:, 0]
        losses = jax.nn.logsumexp(logits, axis=1) - picked
        return jnp.where(LABELS[:3] < 0, 0, losses).sum() / (LABELS[:3] >= 0).sum()

    with jax.enable_x64(True):
        wanted = jax.hessian(exact)(X[:3].astype(np.float64))
    np.testing.assert_allclose(jax.hessian(ours)(X[:3]), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
