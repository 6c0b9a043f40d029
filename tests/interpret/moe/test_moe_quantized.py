"""`systolic.moe` with quantized experts beside float64, for each format and its blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.spec import SpecError

TOKENS, D, F, EXPERTS = 16, 256, 128, 4
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(TOKENS, D)).astype(np.float32)
IDS = RANDOM.integers(-1, EXPERTS, (TOKENS, 2))
WEIGHTS = RANDOM.random((TOKENS, 2)).astype(np.float32)
MATRICES = [RANDOM.normal(size=(EXPERTS, *shape)).astype(np.float32) / 12 for shape in ((D, F), (D, F), (F, D))]
FORMATS: dict[str, dict[str, Any]] = {
    "a scale a channel": {"dtype": "int8"},
    "a scale for 128 rows": {"dtype": "int4", "block": 128},
    "a scale for 128 × 128": {"dtype": "e4m3", "axis": (-2, -1), "block": (128, 128)},
}


def layer(x: Any, *matrices: Any, implementation: Any = "xla", precision: Any = "highest", **options: Any) -> jax.Array:
    return systolic.moe(x, (IDS, WEIGHTS), *matrices, implementation=implementation, precision=precision, **options)


def expected(matrices: list[np.ndarray]) -> np.ndarray:
    gate, up, down = (np.asarray(matrix, np.float64) for matrix in matrices)
    out = np.zeros((TOKENS, D))
    for token, choice in np.argwhere(IDS >= 0):
        expert, row = IDS[token, choice], X[token].astype(np.float64)
        total = row @ gate[expert]
        out[token] += WEIGHTS[token, choice] * ((total / (1 + np.exp(-total)) * (row @ up[expert])) @ down[expert])
    return out


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("name", FORMATS)
def test_quantized_experts_are_what_they_represent(name: str, implementation: str) -> None:
    quantized = [systolic.quantize(matrix, **FORMATS[name]) for matrix in MATRICES]
    out = jax.jit(lambda *given: layer(*given, implementation=implementation))(X, *quantized)
    represented = [np.asarray(one.values, np.float64) * _scales(one) for one in quantized]
    np.testing.assert_allclose(out, expected(represented), atol=2e-5)
    assert np.abs(out - expected(MATRICES)).max() > 1e-4  # rounding shows


def _scales(one: systolic.Quantized) -> np.ndarray:
    scales = np.asarray(one.scales, np.float64)
    for axis, block in enumerate(one.blocks):
        scales = scales.repeat(block, axis)
    return scales


@pytest.mark.exhaustive
def test_one_matrix_may_be_quantized_and_shared_ones_too() -> None:
    gate, up, down = MATRICES
    quantized = systolic.quantize(up)
    shared = [systolic.quantize(matrix[0]) for matrix in MATRICES]
    out = layer(X, gate, quantized, down, shared=shared, precision=None)  # of a quantized product there is none
    every = layer(X, gate, quantized.dequantize(), down, shared=[one.dequantize() for one in shared])
    np.testing.assert_allclose(out, every, atol=2e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_rows_of_both_products_are_quantized(implementation: str) -> None:
    quantized = [systolic.quantize(matrix) for matrix in MATRICES]
    out = layer(X, *quantized, implementation=implementation, quantize_lhs="int8")
    exact = expected([np.asarray(one.values, np.float64) * _scales(one) for one in quantized])
    # Two products whose rows are rounded to 1 part in 254 of their largest number.
    error = np.abs(out - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < 0.03


@pytest.mark.exhaustive
def test_scales_have_a_gradient_and_values_are_constants() -> None:
    quantized = [systolic.quantize(matrix, "e4m3") for matrix in MATRICES]

    def loss(x: jax.Array, *matrices: systolic.Quantized) -> jax.Array:
        return (layer(x, *matrices) ** 2).sum()

    def plain(x: jax.Array, *scales: jax.Array) -> jax.Array:
        floats = (one.values.astype(jnp.float32) * scale for one, scale in zip(quantized, scales, strict=True))
        return (layer(x, *floats) ** 2).sum()

    dx, *ours = jax.grad(loss, range(4))(X, *quantized)
    expected_dx, *scales = jax.grad(plain, range(4))(X, *(one.scales for one in quantized))
    np.testing.assert_allclose(dx, expected_dx, atol=1e-4)
    for one, scale in zip(ours, scales, strict=True):
        np.testing.assert_allclose(one.scales, scale, rtol=1e-4, atol=1e-4)
        assert not np.asarray(one.values, np.float32).any()


def test_what_cannot_be_is_refused() -> None:
    gate, up, down = (systolic.quantize(matrix) for matrix in MATRICES)
    with pytest.raises(SpecError, match=r"w_up has to be \[4, 256, 128\]"):
        layer(X, gate, up.mT, down)
    with pytest.raises(SpecError, match="without quantized experts"):
        layer(X, gate, up, MATRICES[2], quantize_lhs="int8")
    with pytest.raises(SpecError, match="beside w_gate, which is quantized"):
        layer(X.astype(np.int8), gate, up, down)
