"""The tolerance of a comparison: a reference in float64 throughout, and the worst order of a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from systolic.checking.comparing import Reference, ReferenceFunction, compared


def evaluated(reference: Callable[..., Any], *arguments: np.ndarray) -> Reference:
    return ReferenceFunction(reference).evaluated(arguments, 0)


def positive(*shape: int) -> np.ndarray:
    return (1000 + np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


def test_a_reference_that_names_float32_is_evaluated_in_float64() -> None:
    def reference(x: jax.Array, y: jax.Array) -> jax.Array:
        def add(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return total + row.astype(jnp.float32), None

        product = jnp.dot(x.astype(jnp.float32), y, preferred_element_type=jnp.float32)
        return lax.scan(add, jnp.zeros(product.shape[1], jnp.float32), product)[0]

    lhs, rhs = positive(8, 100), positive(100, 16)
    exact = (lhs.astype(np.float64) @ rhs.astype(np.float64)).sum(0)
    values = evaluated(reference, lhs, rhs).values[0]
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, exact, rtol=1e-12)


def _grouped(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.ragged_dot(x, y[None], jnp.array([x.shape[0]], jnp.int32))


def _looped(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.fori_loop(0, x.shape[1], lambda k, total: total + x[:, k, None] * y[k], jnp.zeros((8, 16), x.dtype))


def _scattered(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(jnp.moveaxis(x[..., None] * y, 1, 0), jnp.zeros(x.shape[1], jnp.int32), 1)[0]


@pytest.mark.parametrize("product", [_grouped, _looped, _scattered])
def test_a_product_responds_to_rounding_in_whatever_way_it_is_written(product: Callable[..., Any]) -> None:
    lhs, rhs = positive(8, 100), positive(100, 16)
    expected = evaluated(product, lhs, rhs)
    np.testing.assert_allclose(expected.values[0], lhs.astype(np.float64) @ rhs.astype(np.float64), rtol=1e-12)
    # A sum of equal signs is rounded to the unit of its own size, and not only to that of its terms.
    assert (expected.responses[0] > 0.5 * np.abs(expected.values[0])).mean() > 0.9


def test_the_worst_order_of_a_sum_is_between_the_tolerance_and_the_limit() -> None:
    terms = 512
    # Each addition of 2^-24 to 1 rounds down: all errors have one sign, and are as large as they can be.
    row = np.full((1, terms), 2.0**-24, np.float32)
    row[0, 0] = 1.0
    expected = evaluated(lambda x: x.sum(-1), row)
    in_order = np.add.accumulate(row, axis=1, dtype=np.float32)[:, -1]
    assert in_order == 1.0

    def against(result: np.ndarray) -> Any:
        return compared(result, expected.values[0], expected.responses[0], terms=terms, roundings=1)

    unlikely, lost = against(in_order), against(in_order - np.float32(0.01))
    assert (unlikely.error > unlikely.tolerance).all()
    assert (unlikely.error <= unlikely.limit).all()
    assert (lost.error > lost.limit).all()
