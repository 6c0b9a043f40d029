"""Gradients of products with quantized weights: of rows, scales and what is fused, and straight through values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quantized_operands import quantized, rows

import systolic


def weight(random: np.random.Generator, k: int, n: int, name: str, **keywords: Any) -> systolic.Quantized:
    return quantized(random, (k, n), name, **keywords)


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_gradients_of_rows_scales_and_what_is_fused(implementation: Any) -> None:
    random = np.random.default_rng(5)
    q, lhs = weight(random, 256, 128, "int4", block=128), rows(random, 8, 256, dtype="float32")
    lhs = lhs.astype(jnp.bfloat16).astype(jnp.float32)
    bias, weights = (random.standard_normal(shape).astype(np.float32) for shape in ((128,), (8, 128)))

    def loss(lhs: Any, q: systolic.Quantized, bias: Any, multiply: Callable[..., Any]) -> Any:
        return (multiply(lhs, q, bias) * weights).sum()

    def ours(lhs: Any, q: systolic.Quantized, bias: Any) -> Any:
        return systolic.matmul(lhs, q, bias=bias, activation="silu", implementation=implementation, chip="v6e")

    def plain(lhs: Any, q: systolic.Quantized, bias: Any) -> Any:
        return jax.nn.silu(jnp.matmul(lhs, q.dequantize(), precision="highest") + bias)

    def gradients(multiply: Callable[..., Any]) -> tuple[Any, ...]:
        def of(lhs: Any, scales: Any, bias: Any) -> Any:
            return loss(lhs, systolic.Quantized(q.values, scales), bias, multiply)

        return jax.grad(of, (0, 1, 2))(lhs, q.scales, bias)

    for found, expected in zip(gradients(ours), gradients(plain), strict=True):
        largest = np.abs(np.asarray(expected)).max()
        # The sum at which silu's slope is taken is off by roundings of weights to bfloat16, at the most 2^-7 of terms.
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=0.03 * largest)


def test_frozen_values_and_training_straight_through() -> None:
    random = np.random.default_rng(6)
    lhs, x = rows(random, 4, 64, dtype="float32"), rows(random, 64, 32, dtype="float32")
    q = systolic.quantize(x, "int4", block=32)
    rounded = systolic.fake_quantize(x, "int4", block=32)
    np.testing.assert_array_equal(np.asarray(rounded), np.asarray(q.dequantize()))

    def loss(x: Any) -> Any:
        return jnp.square(lhs @ systolic.fake_quantize(x, "int4", block=32)).sum()

    expected = jax.grad(lambda weight: jnp.square(lhs @ weight).sum())(rounded)
    np.testing.assert_array_equal(np.asarray(jax.grad(loss)(x)), np.asarray(expected))
    zero = jax.grad(lambda q: systolic.matmul(lhs, q).sum(), allow_int=True)(q)
    assert zero.values.dtype == jax.dtypes.float0
