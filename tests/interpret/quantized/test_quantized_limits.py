"""Quantized products at the limits of their sums: past int32, infinite, and past float32 before the scales."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from quantized_operands import exact, quantized, rows

import systolic
from systolic.spec import EXACT_INT32_PRODUCTS

LONG_K = 139_264  # 128² times this is past 2³¹


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("chip", ["v6e", "v7x"])
def test_sums_past_int32_do_not_wrap(chip: str, implementation: Any) -> None:
    """In int32 the first column would be negative."""
    assert LONG_K > EXACT_INT32_PRODUCTS
    random = np.random.default_rng(0)
    values = random.integers(-128, 128, (LONG_K, 128), np.int8)
    values[:, 0] = -128
    left = systolic.Quantized(jnp.full((2, LONG_K), -128, jnp.int8), jnp.asarray([[1.0], [0.5]], jnp.float32))
    right = systolic.Quantized(values, jnp.ones((1, 128), jnp.float32))
    out = systolic.matmul(left, right, implementation=implementation, chip=chip)
    expected = -128 * values.sum(0, dtype=np.int64) * np.array([[1.0], [0.5]])
    assert expected[0, 0] > 2**31
    # Each part of k is rounded to float32, and so is the sum of parts.
    bound = 128 * np.abs(values.astype(np.int64)).sum(0) * 2.0**-23
    assert (np.abs(np.asarray(out) - expected) <= bound).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("chip", "name", "block", "exact_classes"),
    [("v6e", "int8", None, True), ("v6e", "e4m3", 64, True), ("v4", "int4", None, True), ("v6e", "int4", 64, False)],
)
def test_infinities_stay_in_their_rows(chip: str, name: str, block: int | None, exact_classes: bool) -> None:
    """Codes with an offset make a row NaN where arithmetic has an infinity: infinity less infinity."""
    random = np.random.default_rng(1)
    q = quantized(random, (256, 128), name, block=block)
    x = np.array(rows(random, 16, 256, dtype="float32"))
    x[3, 7], x[5, 100], x[9, 4], x[9, 5], x[12, 8] = np.inf, -np.inf, np.inf, -np.inf, np.nan
    x = np.asarray(x, jnp.bfloat16)
    out = np.asarray(systolic.matmul(x, q, implementation="interpret", chip=chip, preferred_element_type="float32"))
    xla = np.asarray(systolic.matmul(x, q, implementation="xla", preferred_element_type="float32"))
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ exact(q)
    broken = [3, 5, 9, 12]
    usual = np.delete(np.arange(16), broken)
    np.testing.assert_allclose(out[usual], expected[usual], rtol=2**-6, atol=2**-6)
    np.testing.assert_array_equal(xla[broken], expected[broken].astype(np.float32))
    np.testing.assert_array_equal(out[broken], xla[broken] if exact_classes else np.full((4, 128), np.nan, np.float32))


@pytest.mark.parametrize("name", ["int8", "e4m3"])
def test_sums_past_float32_before_their_scales(name: str) -> None:
    """The kernel scales sums, so it has an infinity where only the scaled sum is a float32; XLA scales weights."""
    x = jnp.zeros((16, 256), jnp.bfloat16).at[0, 0].set(3e38).at[1, 0].set(2.0**100)
    q = systolic.quantize(jnp.full((256, 128), 0.5, jnp.float32), name)
    kernel, xla = (
        np.asarray(systolic.matmul(x, q, implementation=each, chip="v6e", preferred_element_type="float32"))
        for each in ("interpret", "xla")
    )
    assert np.isposinf(kernel[0]).all()
    np.testing.assert_allclose(xla[:2], np.asarray(x, np.float64)[:2, :1] @ np.full((1, 128), 0.5), rtol=2**-6)
    np.testing.assert_allclose(kernel[1:], xla[1:], rtol=2**-6)
