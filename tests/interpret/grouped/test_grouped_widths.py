"""Grouped products whose columns no tile divides: the last tile is wider than the others."""

from __future__ import annotations

from typing import Any

import grouped_reference as reference
import jax
import jax.numpy as jnp
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
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
M, K = 72, 128
WIDTHS = [(556, 300, [256, 300]), (1984, 704, [640, 640, 704])]  # n, tile_n, columns of the tiles


def config(tile_m: int, tile_n: int, rows: int) -> KernelConfig:
    tiles = Tiles(tile_m=tile_m, tile_k=K, tile_n=tile_n)
    return KernelConfig(tiles=tiles, subtile_m=rows, subtile_n=tile_n, pipeline="manual")


@pytest.mark.parametrize(("n", "tile_n", "columns"), WIDTHS)
def test_tiles_end_where_the_array_ends(n: int, tile_n: int, columns: list[int]) -> None:
    spec = GroupedSpec(m=M, k=K, n=n, groups=3, rows_per_group=24, dtype="bfloat16", dtype_out="bfloat16")
    its = GroupedSchedule.of(spec, config(32, tile_n, 16), systolic.chip("v6e"))
    assert [its.step_n] * (its.grid_n - 1) + [its.tile_n] == columns
    assert sum(columns) == n
    with pytest.raises(IllegalTilesError, match="not a multiple of tile_n"):
        GroupedSchedule.of(spec, config(32, tile_n - 4, 16), systolic.chip("v6e"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize(("n", "tile_n"), [one[:2] for one in WIDTHS])
def test_a_gated_product_with_all_that_is_fused(n: int, tile_n: int, transpose_rhs: bool) -> None:
    """Panels of several groups, registers that groups share, rows of others that remain."""
    random, sizes, offset = np.random.default_rng(n), [3, 9, 0, 33, 7], 1
    lhs = reference.small_integers(random, (M, K), "bfloat16")
    gate, up = (reference.small_integers(random, (3, K, n), "bfloat16") for _ in range(2))
    existing, residual = (random.integers(-100, 100, (M, n)).astype("float32") for _ in range(2))

    def product(*matrices: Any, **beside: Any) -> jax.Array:
        rhs, up = (one.swapaxes(1, 2) if transpose_rhs else one for one in matrices)
        return systolic.grouped_matmul(
            lhs,
            rhs,
            jnp.array(sizes),
            up=up,
            activation="relu",
            group_offset=offset,
            transpose_rhs=transpose_rhs,
            preferred_element_type="float32",
            implementation=CAREFUL,
            tiles=config(32, tile_n, 16),
            chip="v5e",
            **beside,
        )

    out = product(gate, up, residual=residual, existing_out=existing)
    one, other = (reference.product(lhs, matrices, sizes, offset) for matrices in (gate, up))
    expected = existing.astype(np.float64)
    mine = slice(sum(sizes[:offset]), sum(sizes[: offset + 3]))
    expected[mine] = (np.maximum(one, 0) * other + residual)[mine]
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    assert not races_found()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("n", "tile_n"), [one[:2] for one in WIDTHS])
@pytest.mark.parametrize("sizes", [[0, 40, 3, 0, 20], [0, 0, 0, 0, 0]])
def test_bias_and_rows_that_no_group_has(sizes: list[int], n: int, tile_n: int) -> None:
    random = np.random.default_rng(n)
    lhs, rhs = (reference.small_integers(random, shape, "float32") for shape in ((M, K), (5, K, n)))
    bias = random.integers(-9, 9, (5, n)).astype(np.float32)
    lhs[sum(sizes) :] = np.nan
    out = systolic.grouped_matmul(
        lhs, rhs, np.array(sizes), bias=bias, implementation=CAREFUL, tiles=config(24, tile_n, 8), chip="v5e"
    )
    group = np.repeat(np.arange(5), sizes)
    expected = reference.product(lhs, rhs, sizes)
    expected[: sum(sizes)] += bias[group]
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    assert not races_found()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("n", "tile_n"), [one[:2] for one in WIDTHS])
@pytest.mark.parametrize("tile_k", [128, 256])
def test_the_gradient_of_the_matrices(n: int, tile_n: int, tile_k: int) -> None:
    """Groups of one visit, of several, and of none; more tiles of the result than wait to be stored."""
    sizes = [40, 0, 3, 17]
    spec = GroupedGradientSpec(m=M, k=256, n=n, groups=4, rows_per_group=18, dtype="float32", dtype_out="float32")
    tiles = Tiles(tile_m=32, tile_k=tile_k, tile_n=tile_n)
    random = np.random.default_rng(n)
    lhs, cotangent = (reference.small_integers(random, (M, size), "float32") for size in (256, n))
    expected = reference.gradient(lhs, cotangent, sizes)
    for array in (lhs, cotangent):
        array[sum(sizes) :] = np.nan
    chosen = KernelConfig(tiles=tiles, subtile_m=32, subtile_n=tile_n, pipeline="manual")
    schedule = GradientSchedule.of(spec, chosen, systolic.chip("v5e"))
    out = grouped_gradient(
        GradientOperands(jnp.array(sizes), None, jnp.asarray(lhs), jnp.asarray(cotangent)),
        HbmKernel(spec=spec, schedule=schedule, chip=systolic.chip("v5e"), vmem_limit_bytes=2**25, interpret=CAREFUL),
    )
    np.testing.assert_array_equal(out, expected)
    assert not races_found()
