"""Each op on an attached device, by its kernel on a TPU and by XLA on a GPU; skipped where there is neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.timing import NoDeviceError
from systolic.tuning import tune

pytestmark = pytest.mark.device

# A bfloat16 keeps 8 bits: a result rounds once, and what enters a second product of an op rounds before it.
_ALLOWED = 4 * 2.0**-8


@pytest.fixture(scope="module", autouse=True)
def accelerator() -> str:
    platform = jax.default_backend()
    if platform == "cpu":
        pytest.skip("needs a TPU or a GPU; JAX found only CPUs")
    return platform


def _random(*shape: int, seed: int = 0) -> jax.Array:
    values = np.random.default_rng((seed, *shape)).standard_normal(shape) / np.sqrt(shape[-1])
    return jnp.asarray(values, jnp.bfloat16)


def _wide(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _relative(result: Any, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(_wide(result) - wanted) / np.linalg.norm(wanted))


_X, _W, _UP = _random(384, 512), _random(512, 640, seed=1), _random(512, 640, seed=2)
_EXPERTS = _random(3, 512, 640, seed=3)
_SIZES = (200, 0, 184)


def _grouped() -> np.ndarray:
    edges = np.cumsum((0, *_SIZES))
    pieces = [_wide(_X)[a:b] @ w for a, b, w in zip(edges, edges[1:], _wide(_EXPERTS), strict=False)]
    return np.concatenate(pieces)


def _sparse() -> tuple[Any, np.ndarray]:
    kept = np.random.default_rng(5).random((4, 5)) < 0.5
    kept[0, 0] = True
    dense = jnp.where(jnp.asarray(np.kron(kept, np.ones((128, 128), bool))), _W, 0)
    return systolic.BlockSparse.from_dense(dense, (128, 128)), _wide(_X) @ _wide(dense)


def _products() -> dict[str, tuple[Callable[[], Any], Callable[[], np.ndarray]]]:
    weight = systolic.quantize(_W.astype(jnp.float32), "int8")
    sparse, sparse_product = _sparse()
    return {
        "matmul": (lambda: systolic.matmul(_X, _W), lambda: _wide(_X) @ _wide(_W)),
        "gated": (
            lambda: systolic.gated_matmul(_X, _W, _UP),
            lambda: _silu(_wide(_X) @ _wide(_W)) * (_wide(_X) @ _wide(_UP)),
        ),
        "grouped": (lambda: systolic.grouped_matmul(_X, _EXPERTS, jnp.array(_SIZES, jnp.int32)), _grouped),
        "quantized": (
            lambda: systolic.matmul(_X, weight),
            lambda: _wide(_X) @ _wide(systolic.dequantize(weight, jnp.float32)),
        ),
        "sparse": (lambda: systolic.sparse_matmul(_X, sparse), lambda: sparse_product),
    }


@pytest.mark.parametrize("name", ["matmul", "gated", "grouped", "quantized", "sparse"])
def test_a_product_is_that_of_float64(name: str) -> None:
    product, wanted = _products()[name]
    assert _relative(jax.jit(product)(), wanted()) <= _ALLOWED


def test_gradients_are_those_of_float64() -> None:
    d_out = _random(384, 640, seed=4)
    _, pull = jax.vjp(systolic.matmul, _X, _W)
    dx, dw = jax.jit(pull)(d_out)
    assert _relative(dx, _wide(d_out) @ _wide(_W).T) <= _ALLOWED
    assert _relative(dw, _wide(_X).T @ _wide(d_out)) <= _ALLOWED


@pytest.mark.parametrize("logits", ["recompute", "keep"])
def test_a_loss_and_its_gradient_are_those_of_float64(logits: Any) -> None:
    labels = np.arange(384) * 7 % 640
    loss, dx = jax.jit(
        jax.value_and_grad(lambda x: systolic.linear_cross_entropy(x, 8 * _W, jnp.asarray(labels), logits=logits))
    )(_X)
    values = _wide(_X) @ _wide(8 * _W)
    shifted = np.exp(values - values.max(-1, keepdims=True))
    chances = shifted / shifted.sum(-1, keepdims=True)
    assert float(loss) == pytest.approx(-np.log(chances[np.arange(384), labels]).mean(), rel=_ALLOWED)
    chances[np.arange(384), labels] -= 1
    assert _relative(dx, chances @ _wide(8 * _W).T / 384) <= _ALLOWED


def test_a_layer_of_experts_is_that_of_float64() -> None:
    ids = np.stack([np.arange(384) % 3, (np.arange(384) + 1) % 3], axis=-1)
    down = _random(3, 640, 512, seed=6)
    routing = jnp.asarray(ids, jnp.int32), jnp.full(ids.shape, 0.5)
    layer = jax.jit(lambda: systolic.moe(_X, routing, _EXPERTS, _random(3, 512, 640, seed=7), down, renormalize=False))
    by_expert = [
        (_silu(_wide(_X) @ gate) * (_wide(_X) @ up)) @ out
        for gate, up, out in zip(_wide(_EXPERTS), _wide(_random(3, 512, 640, seed=7)), _wide(down), strict=True)
    ]
    wanted = 0.5 * np.stack(by_expert)[ids.T, np.arange(384)].sum(0)
    assert _relative(layer(), wanted) <= _ALLOWED


def test_measuring_names_the_device_that_is_attached(accelerator: str) -> None:
    if accelerator == "tpu":
        pytest.skip("a TPU is measured")
    with pytest.raises(NoDeviceError, match=jax.devices()[0].device_kind):
        tune(systolic.MatmulSpec.of(512, 512, 512, "bfloat16"), "v6e", trials=1, measured=1)
