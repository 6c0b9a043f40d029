"""An array that `grouped_matmul` adds to its result, in TPU interpret mode beside float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import grouped_reference as reference
import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from jax.test_util import check_grads
from selection import examples

import systolic
from systolic.compat import races_found
from systolic.schedule import KernelConfig, Tiles

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
M, K, N, GROUPS = 96, 128, 512, 6


@functools.cache
def compiled(panel: int, tile_n: int, rows: int) -> Callable[..., jax.Array]:
    """One program for all sizes of groups, which the kernel alone knows."""
    tiles = Tiles(tile_m=panel, tile_k=K, tile_n=tile_n)
    config = KernelConfig(tiles=tiles, subtile_m=rows, subtile_n=128, pipeline="manual")

    def product(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, residual: jax.Array) -> jax.Array:
        return systolic.grouped_matmul(
            lhs,
            rhs,
            sizes,
            residual=residual,
            implementation=CAREFUL,
            preferred_element_type="float32",
            tiles=config,
            chip="v5e",
        )

    return jax.jit(product)


@pytest.mark.exhaustive
@settings(
    max_examples=examples(6),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    sizes=reference.group_sizes(GROUPS, M),
    # panel, tile_n, rows of a block, dtype of what is added
    case=st.sampled_from([(32, 128, 16, "bfloat16"), (64, 256, 32, "float32"), (256, 512, 32, "int8")]),
)
def test_any_sizes_and_configuration(sizes: list[int], case: tuple[int, int, int, str]) -> None:
    """Panels that are smaller than a group, panels of many groups, one panel; several tiles of columns and one."""
    *tiles, dtype = case
    random = np.random.default_rng(sum(sizes))
    lhs, rhs = (reference.small_integers(random, shape, "bfloat16") for shape in ((M, K), (GROUPS, K, N)))
    residual = random.integers(-100, 100, (M, N)).astype(dtype)
    owned = (np.arange(M) < sum(sizes))[:, None]
    expected = np.where(owned, reference.product(lhs, rhs, sizes) + residual.astype(np.float64), 0)
    if dtype != "int8":
        residual[sum(sizes) :] = np.nan  # rows of no group
    out = compiled(*tiles)(lhs, rhs, np.array(sizes, np.int32), residual)
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    assert not races_found()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["xla", CAREFUL])
@pytest.mark.parametrize("is_gated", [False, True])
def test_it_is_added_last_and_to_own_rows_alone(is_gated: bool, implementation: Any) -> None:
    """Behind bias, activation, the second product and the scale; rows of others are those of `existing_out`."""
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5, 7]
    lhs, gate, up = (reference.small_integers(random, shape, "float32") for shape in ((56, K), *[(3, K, 256)] * 2))
    bias, existing = (reference.small_integers(random, (rows, 256), "float32") for rows in (3, 56))
    row_scale = np.exp2(random.integers(-2, 3, 56)).astype(np.float32)  # so that float32 holds all of it
    residual = reference.small_integers(random, (56, 256), "bfloat16")
    mine = slice(13, 40)
    value = np.maximum(reference.product(lhs, gate, sizes, 1)[mine] + bias[np.repeat(np.arange(3), sizes[1:4])], 0)
    value = value * reference.product(lhs, up, sizes, 1)[mine] if is_gated else value
    expected = existing.astype(np.float64)
    expected[mine] = value * row_scale[mine, None] + residual[mine].astype(np.float64)
    out = systolic.grouped_matmul(
        lhs,
        gate,
        np.array(sizes),
        up=up if is_gated else None,
        group_offset=1,
        bias=bias,
        activation="relu",
        row_scale=row_scale,
        residual=residual,
        existing_out=jnp.asarray(existing),
        implementation=implementation,
    )
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)


def test_a_sum_of_integers() -> None:
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5]
    lhs, rhs = (reference.small_integers(random, shape, "int8") for shape in ((48, K), (4, K, 128)))
    residual = random.integers(-99, 99, (48, 128)).astype(np.int32)
    expected = reference.product(lhs, rhs, sizes)
    expected[:40] += residual[:40]
    for implementation in ("xla", "interpret"):
        out = systolic.grouped_matmul(lhs, rhs, np.array(sizes), residual=residual, implementation=implementation)
        assert out.dtype == jnp.int32
        np.testing.assert_array_equal(out, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_finite_differences(activation: str | None, implementation: Any) -> None:
    random, sizes = np.random.default_rng(0), np.array([5, 0, 6, 2])
    lhs, rhs, residual = (
        jnp.asarray(random.normal(size=shape) / 4, jnp.float32) for shape in ((16, 8), (4, 8, 8), (16, 8))
    )

    def product(lhs: Any, rhs: Any, residual: Any) -> Any:
        return systolic.grouped_matmul(
            lhs, rhs, sizes, residual=residual, activation=activation, implementation=implementation
        )

    check_grads(product, (lhs, rhs, residual), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_its_cotangent_is_that_of_rows_of_groups() -> None:
    lhs, rhs, ones = jnp.ones((16, 8)), jnp.ones((2, 8, 24)), np.ones((16, 24), np.float32)

    def product(residual: Any) -> Any:
        return systolic.grouped_matmul(lhs, rhs, np.array([5, 6]), residual=residual, implementation="xla")

    (found,) = jax.vjp(product, ones)[1](ones)
    np.testing.assert_array_equal(found, np.where(np.arange(16)[:, None] < 11, ones, 0))


def test_one_kernel_adds_it_where_it_is_differentiated_too() -> None:
    """Its derivative needs no sum, so that nothing but the result is stored: three kernels, of which XLA keeps all."""
    lhs, rhs, residual = jnp.ones((16, 128)), jnp.ones((2, 128, 128)), jnp.ones((16, 128))

    def loss(lhs: Any, rhs: Any, residual: Any) -> Any:
        out = systolic.grouped_matmul(lhs, rhs, np.array([5, 6]), residual=residual, chip="v6e")
        return (out * out).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(lhs, rhs, residual)
    assert traced.lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") == 3
