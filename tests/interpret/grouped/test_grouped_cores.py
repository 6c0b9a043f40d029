"""Grouped products and gradients on chips whose device has two TensorCores: each computes half of the columns."""

from __future__ import annotations

import functools
from collections.abc import Callable

import grouped_reference as reference
import jax
import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic.compat import races_found
from systolic.kernels.launch import HbmKernel
from systolic.ops.grouped.kernel.gradient import GradientOperands, grouped_gradient
from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.schedule import KernelConfig, Tiles

TWO_CORES = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", num_cores_or_threads=2)
M, K, N, GROUPS = 96, 128, 512, 5
SIZES = [13, 0, 37, 5, 22]
SPEC = {"m": M, "k": K, "n": N, "groups": GROUPS, "rows_per_group": 20, "dtype": "bfloat16", "dtype_out": "float32"}
CHIP = systolic.chip("v5p")


def config(panel: int, tile_n: int) -> KernelConfig:
    """Blocks of one register: a longer one reads rows behind its group's, which may be on their way, for nothing."""
    tiles = Tiles(tile_m=panel, tile_k=K, tile_n=tile_n)
    return KernelConfig(tiles=tiles, subtile_m=16, subtile_n=128, pipeline="manual")


@functools.cache
def product() -> Callable[..., jax.Array]:
    """Everything that is copied by columns: both weights, side by side, a bias, what is added, and what remains."""
    its = GroupedSchedule.of(GroupedSpec(**SPEC, gated=True, side_by_side=True), config(64, 128), CHIP)
    assert (its.cores, its.core_n) == (2, 2)

    def run(lhs: jax.Array, both: jax.Array, sizes: jax.Array, *beside: jax.Array) -> jax.Array:
        bias, residual, existing = beside
        return systolic.grouped_matmul(
            lhs,
            both,
            sizes,
            side_by_side=True,
            bias=bias,
            activation="relu",
            residual=residual,
            existing_out=existing,
            group_offset=1,
            preferred_element_type="float32",
            implementation=TWO_CORES,
            tiles=config(64, 128),
            chip=CHIP,
        )

    return jax.jit(run)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", [SIZES, [16, 1, 1, 32, 30]])
def test_each_core_computes_its_columns(sizes: list[int]) -> None:
    random = np.random.default_rng(0)
    lhs = reference.small_integers(random, (M, K), "bfloat16")
    gate, up = (reference.small_integers(random, (3, K, N), "bfloat16") for _ in range(2))
    bias, residual, existing = (reference.small_integers(random, (rows, N), "float32") for rows in (3, M, M))
    starts = np.cumsum([0, *sizes])
    mine = slice(starts[1], starts[4])
    value = np.maximum(reference.product(lhs, gate, sizes, 1)[mine] + np.repeat(bias, sizes[1:4], axis=0), 0)
    expected = existing.astype(np.float64)
    expected[mine] = value * reference.product(lhs, up, sizes, 1)[mine] + residual[mine]
    both = np.concatenate([gate, up], axis=2)
    out = product()(lhs, both, np.array(sizes, np.int32), bias, residual, existing)
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    assert not races_found()


@pytest.mark.exhaustive
def test_rows_of_no_group_are_zero_in_all_columns() -> None:
    random = np.random.default_rng(0)
    lhs, rhs = (reference.small_integers(random, shape, "bfloat16") for shape in ((M, K), (GROUPS, K, N)))
    run = jax.jit(
        lambda sizes: systolic.grouped_matmul(
            lhs,
            rhs,
            sizes,
            preferred_element_type="float32",
            implementation=TWO_CORES,
            tiles=config(128, 256),
            chip=CHIP,
        )
    )
    for sizes in ([0, 0, 40, 0, 0], [0, 0, 0, 0, 0]):
        out = run(np.array(sizes, np.int32))
        np.testing.assert_array_equal(np.asarray(out, np.float64), reference.product(lhs, rhs, sizes))
        assert not races_found()


@pytest.mark.exhaustive
def test_the_gradient_of_the_matrices() -> None:
    spec = GroupedGradientSpec(**SPEC)
    its = GradientSchedule.of(spec, config(64, 128), CHIP)
    assert (its.cores, its.core_n) == (2, 2)
    random = np.random.default_rng(0)
    lhs, cotangent = (reference.small_integers(random, (M, size), "bfloat16") for size in (K, N))
    operands = GradientOperands(np.array(SIZES, np.int32), None, lhs, cotangent)
    out = grouped_gradient(
        operands, HbmKernel(spec=spec, schedule=its, chip=CHIP, vmem_limit_bytes=2**25, interpret=TWO_CORES)
    )
    np.testing.assert_array_equal(np.asarray(out, np.float64), reference.gradient(lhs, cotangent, SIZES))
    assert not races_found()


def test_an_odd_number_of_tiles_is_not_shared() -> None:
    spec = GroupedSpec(**SPEC)
    assert [GroupedSchedule.of(spec, config(128, tile_n), CHIP).cores for tile_n in (128, 512)] == [2, 1]
    assert GroupedSchedule.of(spec, config(128, 128), systolic.chip("v6e")).cores == 1
