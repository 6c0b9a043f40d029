"""`dot_general` and `einsum` beside JAX's, dimension by dimension, and where they leave the product to JAX."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import systolic

BY = functools.partial(systolic.dot_general, implementation="interpret", chip="v6e")


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers"),
    [
        ((8, 16), (16, 24), (((1,), (0,)), ((), ()))),
        ((16, 8), (24, 16), (((0,), (1,)), ((), ()))),
        ((2, 3, 8), (8, 4, 5), (((2,), (0,)), ((), ()))),  # a layer of heads
        ((2, 3, 4, 5), (4, 5, 8), (((2, 3), (0, 1)), ((), ()))),  # and back
        ((2, 7, 3, 8), (2, 9, 3, 8), (((3,), (3,)), ((0, 2), (0, 2)))),  # scores of attention
        ((2, 3, 8), (3, 8, 2), (((2,), (1,)), ((0, 1), (2, 0)))),  # vectors, in a batch
        ((3,), (4,), (((), ()), ((), ()))),  # an outer product
        ((8,), (8,), (((0,), (0,)), ((), ()))),
        ((0, 8), (8, 4), (((1,), (0,)), ((), ()))),
    ],
)
def test_every_order_of_dimensions_is_jax(lhs: Any, rhs: Any, numbers: Any) -> None:
    left, right = normal(*lhs), normal(*rhs)
    wanted = lax.dot_general(left, right, numbers, precision="highest")
    found = BY(left, right, numbers, precision="highest")
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_dtypes_are_jax() -> None:
    numbers = (((1,), (0,)), ((), ()))
    full = np.full((16, 16), 100, np.int8)
    for preferred in (None, jnp.int32, jnp.float32):
        wanted = lax.dot_general(full, full, numbers, preferred_element_type=preferred)
        found = BY(full, full, numbers, preferred_element_type=preferred)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    half = normal(16, 16, dtype=np.float16)
    assert BY(half, half, numbers).dtype == jnp.float16


def kernels(fn: Any, *arrays: Any) -> int:
    return str(jax.make_jaxpr(fn)(*arrays)).count("pallas_call")


def test_what_the_kernel_does_not_multiply_is_jax() -> None:
    numbers = (((1,), (0,)), ((), ()))
    by = functools.partial(systolic.dot_general, implementation="pallas", chip="v6e", dimension_numbers=numbers)
    array = normal(16, 16)
    assert kernels(by, array, array) == 1
    assert kernels(by, array.astype(np.int32), array.astype(np.int32)) == 0
    assert kernels(by, array.astype(complex), array.astype(complex)) == 0
    assert kernels(functools.partial(by, precision=("high", "default")), array, array) == 0
    with pytest.raises(TypeError, match="contracting"):
        by(array, normal(8, 16))


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("bsd,dhf->bshf", ((2, 3, 8), (8, 4, 5))),
        ("bqhd,bkhd->bhqk", ((2, 7, 3, 8), (2, 9, 3, 8))),
        ("ij,jk,kl->il", ((4, 8), (8, 6), (6, 5))),
        ("ij->j", ((4, 8),)),
    ],
)
def test_einsum(subscripts: str, shapes: Any) -> None:
    arrays = [normal(*shape) for shape in shapes]
    wanted = jnp.einsum(subscripts, *arrays, precision="highest")
    by = functools.partial(systolic.einsum, subscripts, implementation="interpret", chip="v6e", precision="highest")
    np.testing.assert_allclose(by(*arrays), wanted, rtol=0, atol=2e-5)
    on_tpu = functools.partial(systolic.einsum, subscripts, implementation="pallas", chip="v6e")
    assert kernels(on_tpu, *arrays) == len(arrays) - 1


def test_gradients() -> None:
    lhs, rhs = normal(4, 8, 16), normal(16, 3, 8)

    def total(by: Any, lhs: Any, rhs: Any) -> Any:
        return (by("bsd,dhf->bshf", lhs, rhs, precision="highest") ** 2).sum()

    ours = functools.partial(systolic.einsum, implementation="interpret", chip="v6e")
    for found, wanted in zip(
        jax.grad(functools.partial(total, ours), argnums=(0, 1))(lhs, rhs),
        jax.grad(functools.partial(total, jnp.einsum), argnums=(0, 1))(lhs, rhs),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)


def test_a_layer_of_flax() -> None:
    flax = pytest.importorskip("flax.linen")
    x = normal(2, 8)
    layer = functools.partial(flax.Dense, features=4)
    weights = layer().init(jax.random.key(0), x)
    found = layer(dot_general=functools.partial(systolic.dot_general, implementation="xla")).apply(weights, x)
    np.testing.assert_allclose(found, layer().apply(weights, x), rtol=1e-5)
