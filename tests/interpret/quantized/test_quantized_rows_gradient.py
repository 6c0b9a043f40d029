"""Gradients of products whose rows are quantized: straight through, and of the scales of both sides."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quantized_operands import quantized, rows

import systolic

multiply = functools.partial(systolic.matmul, preferred_element_type="float32")


interpreted = functools.partial(multiply, implementation="interpret")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_gradients_go_straight_through(implementation: Any) -> None:
    random = np.random.default_rng(6)
    q, lhs = quantized(random, (256, 128), "int8"), rows(random, 8, 256, dtype="float32")
    bias, weights = (random.standard_normal(shape).astype(np.float32) for shape in ((128,), (8, 128)))

    def ours(lhs: Any, scales: Any, bias: Any) -> Any:
        out = multiply(
            lhs,
            systolic.Quantized(q.values, scales),
            quantize_lhs="int8",
            bias=bias,
            activation="silu",
            implementation=implementation,
            chip="v6e",
        )
        return (out * weights).sum()

    def plain(lhs: Any, scales: Any, bias: Any) -> Any:
        weight = systolic.Quantized(q.values, scales).dequantize()
        rounded = systolic.fake_quantize(lhs, "int8", axis=-1)
        return (jax.nn.silu(jnp.matmul(rounded, weight, precision="highest") + bias) * weights).sum()

    found, expected = (jax.grad(loss, (0, 1, 2))(lhs, q.scales, bias) for loss in (ours, plain))
    for one, other in zip(found, expected, strict=True):
        largest = np.abs(np.asarray(other)).max()
        # float32 sums of 256 products, and of 8 times 128.
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1024 * 2.0**-23 * largest)


def test_gradients_of_scales_of_both_sides() -> None:
    random = np.random.default_rng(7)
    lhs, q = quantized(random, (8, 256), "int8", axis=-1, block=128), quantized(random, (256, 128), "int8", block=128)
    weights = random.standard_normal((8, 128)).astype(np.float32)

    def loss(multiplied: Any, of_rows: Any, of_weight: Any) -> Any:
        out = multiplied(systolic.Quantized(lhs.values, of_rows), systolic.Quantized(q.values, of_weight))
        return (out * weights).sum()

    def plain(lhs: systolic.Quantized, q: systolic.Quantized) -> Any:
        return jnp.matmul(lhs.dequantize(), q.dequantize(), precision="highest")

    ours = functools.partial(interpreted, chip="v6e")
    found, expected = (jax.grad(loss, (1, 2))(fn, lhs.scales, q.scales) for fn in (ours, plain))
    for one, other in zip(found, expected, strict=True):
        largest = np.abs(np.asarray(other)).max()
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1024 * 2.0**-23 * largest)
