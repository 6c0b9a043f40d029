"""The mixture of experts of examples/: it chooses, it trains, and cutting it over devices changes nothing."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformer.experts import permuted, routed, untrained_sizes
from transformer.models import configured
from transformer.sharding import Sharding
from transformer.step import AdamW, begin, init, loss, train_function

from systolic.compiler import WorkerPool, with_virtual_devices

ALONE = Sharding(None)
MIXED = configured("tiny-moe")
TOKENS = np.random.default_rng(1).integers(0, MIXED.vocabulary, (4, 33)).astype(np.int32)
BATCH = {"tokens": TOKENS[:, :-1], "targets": TOKENS[:, 1:]}


def dense_reference(x: np.ndarray, weights: dict[str, np.ndarray], per_token: int) -> np.ndarray:
    """Every expert's MLP of every token, in float64, of which the router's best count."""
    logits = x @ weights["router"]
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    worst = np.sort(shares, axis=-1)[..., -per_token]
    shares = np.where(shares >= worst[..., None], shares, 0)
    gate, up = (np.einsum("bsd,edf->bsef", x, weights[name]) for name in ("expert_gate", "expert_up"))
    hidden = gate / (1 + np.exp(-gate)) * up
    return np.einsum("bsef,efd,bse->bsd", hidden, weights["expert_down"], shares)


@pytest.mark.exhaustive
@pytest.mark.parametrize("grouped", ["plain", "moe"])
def test_each_token_goes_to_the_experts_that_its_router_likes_best(grouped: str) -> None:
    rng = np.random.default_rng(0)
    c = configured("tiny-moe", grouped=grouped)
    shapes = {
        "router": (c.width, c.experts),
        "expert_gate": (c.experts, c.width, c.expert_width),
        "expert_up": (c.experts, c.width, c.expert_width),
        "expert_down": (c.experts, c.expert_width, c.width),
    }
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.normal(size=(3, 7, c.width)).astype(np.float32)
    wanted = dense_reference(
        x.astype(np.float64), {n: w.astype(np.float64) for n, w in weights.items()}, c.experts_per_token
    )
    found = routed(jnp.asarray(x), weights, c, ALONE)
    # Sums of `width` and `expert_width` products of float32.
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.exhaustive
def test_the_loss_falls() -> None:
    step = train_function(MIXED, ALONE, AdamW(learning_rate=1e-2))
    state = jax.jit(functools.partial(begin, config=MIXED))(jax.random.key(0))
    losses = []
    for _ in range(16):
        state, value = step(state, BATCH)
        losses.append(float(value))
    assert abs(losses[0] - np.log(MIXED.vocabulary)) < 1
    assert losses[-1] < losses[0] / 2
    moved = state["first"]["layers"]
    assert all(float(jnp.max(jnp.abs(each))) > 0 for each in moved.values())


def test_a_permutation_is_undone_in_its_gradient() -> None:
    rng = np.random.default_rng(2)
    x, slopes = rng.normal(size=(2, 13, 3)).astype(np.float32)
    order = rng.permutation(13)
    _, pulled = jax.vjp(lambda each: permuted(each, jnp.asarray(order)), jnp.asarray(x))
    (found,) = pulled(jnp.asarray(slopes))
    wanted = np.zeros_like(x)
    np.add.at(wanted, order, slopes)
    np.testing.assert_array_equal(found, wanted)


def test_untrained_routers_prefer_nobody() -> None:
    sizes = untrained_sizes(24 * 2048 * 6, 64)
    assert sizes.sum() == 24 * 2048 * 6
    mean = sizes.sum() / 64
    assert np.all(np.abs(sizes - mean) < 6 * np.sqrt(mean))  # six standard deviations


def gradients_of(axes: dict[str, int] | None, grouped: str = "plain") -> list[np.ndarray]:
    """Loss and gradients, on a mesh of CPU devices if there are axes."""
    mesh = None if axes is None else jax.sharding.Mesh(np.array(jax.devices()).reshape(*axes.values()), tuple(axes))
    config = configured("tiny-moe", grouped=grouped)
    parameters: Any = jax.jit(functools.partial(init, config=config))(jax.random.key(0))
    function = functools.partial(loss, config=config, sharding=Sharding(mesh))
    # In bfloat16 a token may go to another expert for a rounding.
    with mock.patch.object(jnp, "bfloat16", jnp.float32), jax.default_matmul_precision("highest"):
        found = jax.jit(jax.value_and_grad(function))(parameters, BATCH)
    return [np.asarray(each) for each in jax.tree.leaves(found)]


@pytest.mark.slow
@pytest.mark.parametrize("grouped", ["plain", "moe"])
@pytest.mark.parametrize("axes", [{"fsdp": 2, "expert": 2}, {"expert": 4}, {"fsdp": 2, "tensor": 2}], ids=str)
def test_cutting_it_over_devices_changes_nothing(axes: dict[str, int], grouped: str) -> None:
    with WorkerPool(max_workers=1) as pool:
        found = pool.submit(with_virtual_devices, 4, gradients_of, axes, grouped).result()
    for mine, other in zip(found, gradients_of(None), strict=True):
        assert np.linalg.norm(mine - other) <= 1e-5 * np.linalg.norm(other)
