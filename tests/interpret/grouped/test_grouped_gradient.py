"""Gradients of `grouped_matmul` in TPU interpret mode, beside float64 and finite differences."""

from __future__ import annotations

import dataclasses
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
from systolic.kernels.launch import HbmKernel
from systolic.ops.grouped import code_blocks
from systolic.ops.grouped.kernel.gradient import GradientOperands, grouped_gradient
from systolic.ops.grouped.schedule import GradientSchedule
from systolic.ops.grouped.spec import GroupedGradientSpec
from systolic.schedule import KernelConfig, Tiles

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize(
    ("sizes", "transpose_rhs"), [([40, 0, 3, 29], False), ([4, 4, 4, 52], True), ([0, 0, 0, 0], False)]
)
def test_both_gradients(sizes: list[int], transpose_rhs: bool, implementation: Any) -> None:
    random = np.random.default_rng(0)
    m, k, n = 80, 128, 256
    lhs, cotangent = (reference.small_integers(random, (m, size), "float32") for size in (k, n))
    rhs = reference.small_integers(random, (4, k, n), "float32")
    expected = (
        reference.product(cotangent, rhs.swapaxes(1, 2), sizes),
        reference.gradient(lhs, cotangent, sizes),
    )
    for array in (lhs, cotangent):
        array[sum(sizes) :] = np.nan  # rows of no group

    def product(lhs: Any, rhs: Any) -> Any:
        return systolic.grouped_matmul(
            lhs,
            rhs.swapaxes(1, 2) if transpose_rhs else rhs,
            np.array(sizes),
            transpose_rhs=transpose_rhs,
            implementation=implementation,
        )

    found = jax.vjp(product, lhs, rhs)[1](cotangent)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_gradient_of_what_the_result_is_written_into(implementation: Any) -> None:
    """It is the cotangent in rows that remain, and zero in the others."""
    sizes, cotangent = [13, 0, 22, 5], np.ones((48, 128), np.float32)
    lhs, rhs = np.ones((48, 128), np.float32), np.ones((4, 128, 128), np.float32)

    def product(existing: Any) -> Any:
        return systolic.grouped_matmul(lhs, rhs, np.array(sizes), existing_out=existing, implementation=implementation)

    (found,) = jax.vjp(product, cotangent)[1](cotangent)
    np.testing.assert_array_equal(found, np.where(np.arange(48)[:, None] < 40, 0, 1) * cotangent)


@pytest.mark.exhaustive
@pytest.mark.parametrize("joined", [False, True])
def test_gradients_of_a_gated_product(joined: bool) -> None:
    """Gradients of rows and of both weights are those of plain JAX, which multiplies each row by its group's matrix."""
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5]
    group = np.repeat(np.arange(4), sizes)
    lhs = random.standard_normal((48, 128)).astype(np.float32)
    gate, up = (random.standard_normal((4, 128, 256)).astype(np.float32) for _ in range(2))
    dout = random.standard_normal((48, 256)).astype(np.float32)

    def plain(lhs: Any, gate: Any, up: Any) -> Any:
        one, other = (jnp.einsum("mk,mkn->mn", lhs[:40], matrices[group]) for matrices in (gate, up))
        return jnp.concatenate([jax.nn.silu(one) * other, jnp.zeros((8, 256))])

    def ours(lhs: Any, gate: Any, up: Any) -> Any:
        both: dict[str, Any] = {"side_by_side": True} if joined else {"up": up}
        rhs = jnp.concatenate([gate, up], axis=2) if joined else gate
        return systolic.grouped_matmul(
            lhs, rhs, np.array(sizes), activation="silu", implementation="interpret", precision="highest", **both
        )

    with jax.default_matmul_precision("highest"):
        wanted = jax.vjp(plain, lhs, gate, up)[1](dout)
    for one, other in zip(jax.vjp(ours, lhs, gate, up)[1](dout), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=4e-6 * np.abs(other).max())


M, GROUPS = 96, 6


@functools.cache
def compiled(rows: int, tile_k: int, tile_n: int, dtype: str) -> Callable[..., jax.Array]:
    """One program for all sizes of groups, which the kernel alone knows."""
    spec = GroupedGradientSpec(m=M, k=256, n=256, groups=GROUPS, rows_per_group=8, dtype=dtype, dtype_out="float32")
    tiles = Tiles(tile_m=rows, tile_k=tile_k, tile_n=tile_n)
    config = KernelConfig(tiles=tiles, subtile_m=32, subtile_n=128, pipeline="manual")

    def gradient(sizes: jax.Array, lhs: jax.Array, cotangent: jax.Array) -> jax.Array:
        schedule = GradientSchedule.of(spec, config, systolic.chip("v5e"))
        kernel = HbmKernel(
            spec=spec, schedule=schedule, chip=systolic.chip("v5e"), vmem_limit_bytes=2**25, interpret=CAREFUL
        )
        return grouped_gradient(GradientOperands(sizes, None, lhs, cotangent), kernel)

    return jax.jit(gradient)


@pytest.mark.exhaustive
@settings(
    max_examples=examples(10),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    sizes=reference.group_sizes(GROUPS, M),
    # most rows of a visit, tile_k, tile_n, dtype
    case=st.sampled_from([(32, 128, 256, "float32"), (64, 256, 128, "bfloat16"), (96, 256, 256, "float32")]),
)
def test_any_configuration(sizes: list[int], case: tuple[int, int, int, str]) -> None:
    """Groups of one visit and of several, empty ones, and NaN in rows of no group."""
    rows, tile_k, tile_n, dtype = case
    random = np.random.default_rng(sum(sizes))
    lhs, cotangent = (reference.small_integers(random, (M, 256), dtype) for _ in "ln")
    expected = reference.gradient(lhs, cotangent, sizes)
    for array in (lhs, cotangent):
        array[sum(sizes) :] = np.nan
    out = compiled(rows, tile_k, tile_n, dtype)(np.array(sizes, np.int32), lhs, cotangent)
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    assert not races_found()


def test_blocks_that_do_not_divide_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of 200 × 300 in blocks of 128 × 128, and room for one tile that waits to be stored."""
    monkeypatch.setattr(code_blocks, "_RAGGED_COLUMNS", 128)
    monkeypatch.setattr(code_blocks, "MAX_BLOCK_BUNDLES", 32 * 128 * 128 / 65536)
    spec = GroupedGradientSpec(
        m=M, k=200, n=300, groups=GROUPS, rows_per_group=16, dtype="float32", dtype_out="float32"
    )
    tiles = Tiles(tile_m=32, tile_k=200, tile_n=300)
    config = KernelConfig(tiles=tiles, subtile_m=32, subtile_n=300, pipeline="manual")
    small = dataclasses.replace(systolic.chip("v5e"), usable_vmem_bytes_per_core=1_000_000)
    its = GradientSchedule.of(spec, config, small)
    assert (its.block_k, its.block_n, its.out_slots) == (128, 128, 1)
    random, sizes = np.random.default_rng(0), [5, 0, 40, 3, 17, 1]
    lhs, cotangent = (reference.small_integers(random, (M, size), "float32") for size in (200, 300))
    operands = GradientOperands(jnp.array(sizes), None, jnp.asarray(lhs), jnp.asarray(cotangent))
    out = grouped_gradient(
        operands,
        HbmKernel(spec=spec, schedule=its, chip=systolic.chip("v5e"), vmem_limit_bytes=2**25, interpret=CAREFUL),
    )
    np.testing.assert_array_equal(np.asarray(out), reference.gradient(lhs, cotangent, sizes))
    assert not races_found()


@pytest.mark.parametrize("implementation", ["xla", pytest.param("interpret", marks=pytest.mark.exhaustive)])
def test_finite_differences_of_everything_that_is_fused(implementation: Any) -> None:
    random, sizes = np.random.default_rng(0), np.array([5, 0, 6, 2])
    lhs, rhs, bias, row_scale = (
        jnp.asarray(random.normal(size=shape) / 4, jnp.float32) for shape in ((16, 8), (4, 8, 8), (4, 8), (16,))
    )

    def product(lhs: Any, rhs: Any, bias: Any, row_scale: Any) -> Any:
        return systolic.grouped_matmul(
            lhs, rhs, sizes, bias=bias, activation="silu", row_scale=row_scale, implementation=implementation
        )

    check_grads(product, (lhs, rhs, bias, row_scale), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.exhaustive
def test_second_derivatives() -> None:
    random, sizes = np.random.default_rng(0), np.array([5, 0, 6, 2])
    lhs, rhs = (jnp.asarray(random.normal(size=shape) / 4, jnp.float32) for shape in ((16, 8), (4, 8, 8)))

    def product(lhs: Any, rhs: Any) -> Any:
        return systolic.grouped_matmul(lhs, rhs, sizes, implementation="interpret")

    check_grads(product, (lhs, rhs), order=2, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.exhaustive
def test_second_derivatives_of_a_gated_product() -> None:
    random, sizes = np.random.default_rng(0), np.array([5, 0, 6, 2])
    lhs, gate, up = (jnp.asarray(random.normal(size=shape) / 4, jnp.float32) for shape in ((16, 8), *[(4, 8, 8)] * 2))

    def product(lhs: Any, gate: Any, up: Any) -> Any:
        return systolic.grouped_matmul(lhs, gate, sizes, up=up, activation="silu", implementation="xla")

    with jax.default_matmul_precision("highest"):
        check_grads(jax.jit(product), (lhs, gate, up), order=2, modes=["fwd", "rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.exhaustive
def test_the_gradient_of_some_of_the_groups() -> None:
    random, sizes = np.random.default_rng(0), [9, 7, 0, 12, 4]
    lhs, cotangent = (reference.small_integers(random, (40, 128), "float32") for _ in "ln")
    rhs = reference.small_integers(random, (2, 128, 128), "float32")

    def product(rhs: Any) -> Any:
        return systolic.grouped_matmul(lhs, rhs, np.array(sizes), group_offset=2, implementation="interpret")

    (found,) = jax.vjp(product, rhs)[1](cotangent)
    np.testing.assert_array_equal(found, reference.gradient(lhs, cotangent, sizes)[2:4])
