"""`grouped_matmul` in TPU interpret mode, beside float64: any sizes of groups, whatever rows hold that no group has."""

from __future__ import annotations

import functools
import itertools
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
from selection import examples

import systolic
from systolic.compat import races_found
from systolic.ops.grouped import code_blocks
from systolic.ops.grouped.schedule import GroupedSchedule
from systolic.ops.grouped.spec import GroupedSpec
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import SpecError

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
MANY = settings(
    max_examples=examples(10),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def config(panel: int, k: int, tile_n: int, rows: int, columns: int) -> KernelConfig:
    tiles = Tiles(tile_m=panel, tile_k=k, tile_n=tile_n)
    return KernelConfig(tiles=tiles, subtile_m=rows, subtile_n=columns, pipeline="manual")


def check(
    sizes: list[int],
    m: int,
    k: int,
    n: int,
    dtype: str = "float32",
    *,
    transpose_rhs: bool = False,
    implementation: Any = CAREFUL,
    offset: int | None = None,
    groups: int | None = None,
    **rest: Any,
) -> None:
    random = np.random.default_rng(0)
    lhs = reference.small_integers(random, (m, k), dtype)
    rhs = reference.small_integers(random, (groups or len(sizes), k, n), dtype)
    expected = reference.product(lhs, rhs, sizes, offset or 0)
    if dtype != "int8":
        lhs[sum(sizes) :] = np.nan  # rows of no group
    out = systolic.grouped_matmul(
        lhs,
        rhs.swapaxes(1, 2) if transpose_rhs else rhs,
        np.array(sizes, np.int32),
        transpose_rhs=transpose_rhs,
        group_offset=offset,
        implementation=implementation,
        preferred_element_type="int32" if dtype == "int8" else "float32",
        **rest,
    )
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_each_dtype_and_both_ways_to_store_rhs(dtype: str, implementation: Any) -> None:
    for transpose_rhs in (False, True):
        check(
            [40, 0, 3, 61, 5, 0, 50, 20],
            192,
            128,
            256,
            dtype,
            transpose_rhs=transpose_rhs,
            implementation=implementation,
        )


M, GROUPS = 96, 8


@functools.cache
def compiled(k: int, n: int, dtype: str, transpose_rhs: bool, tiles: KernelConfig | None) -> Callable[..., jax.Array]:
    """One program for all sizes of groups, which the kernel alone knows."""

    def product(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        return systolic.grouped_matmul(
            lhs,
            rhs,
            sizes,
            transpose_rhs=transpose_rhs,
            implementation=CAREFUL,
            preferred_element_type="int32" if dtype == "int8" else "float32",
            tiles=tiles,
        )

    return jax.jit(product)


def check_drawn(
    sizes: list[int], k: int, n: int, dtype: str, *, transpose_rhs: bool = False, tiles: KernelConfig | None = None
) -> None:
    random = np.random.default_rng(sum(sizes))
    lhs = reference.small_integers(random, (M, k), dtype)
    rhs = reference.small_integers(random, (GROUPS, k, n), dtype)
    expected = reference.product(lhs, rhs, sizes)
    if dtype != "int8":
        lhs[sum(sizes) :] = np.nan  # rows of no group
    run = compiled(k, n, dtype, transpose_rhs, tiles)
    out = run(lhs, rhs.swapaxes(1, 2) if transpose_rhs else rhs, np.array(sizes, np.int32))
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    assert not races_found()


@MANY
@given(
    sizes=reference.group_sizes(GROUPS, M),
    # k, n, dtype, transpose_rhs
    case=st.sampled_from([(128, 300, "bfloat16", False), (255, 255, "float32", True), (100, 128, "int8", False)]),
)
def test_any_sizes(sizes: list[int], case: tuple[int, int, str, bool]) -> None:
    k, n, dtype, transpose_rhs = case
    check_drawn(sizes, k, n, dtype, transpose_rhs=transpose_rhs)


@pytest.mark.exhaustive
@MANY
@given(
    sizes=reference.group_sizes(GROUPS, M),
    # panel, tile_n, rows of a block
    case=st.sampled_from([(32, 128, 16), (64, 256, 32), (96, 256, 32)]),
)
def test_any_configuration(sizes: list[int], case: tuple[int, int, int]) -> None:
    """Groups larger than a panel, panels of many groups, one tile of columns and several."""
    panel, tile_n, rows = case
    check_drawn(sizes, 128, 256, "bfloat16", tiles=config(panel, 128, tile_n, rows, 128))


@pytest.mark.exhaustive
def test_rows_that_are_left_take_several_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of 38 rows has blocks of 8; more than 48 are one block of 64."""
    for name, value in {"_LARGE_ROWS": 64, "_LARGE_FRACTIONS": (1.0, 0.125), "_MIN_ROWS": 8, "_LOST_ROWS": 8}.items():
        monkeypatch.setattr(code_blocks, name, value)
    tiles = config(128, 128, 128, 64, 128)
    spec = GroupedSpec(m=M, k=128, n=128, groups=8, rows_per_group=12, dtype="float32", dtype_out="float32")
    blocks = GroupedSchedule.of(spec, tiles, systolic.chip("v5e")).blocks
    assert [(block.rows, block.above) for block in blocks] == [(64, 48), (8, 0)]
    check_drawn([5, 0, 38, 3, 0, 0, 50, 0], 128, 128, "float32", tiles=tiles)
    check_drawn([0, 0, 0, 91, 0, 5, 0, 0], 128, 128, "float32", tiles=tiles)


@pytest.mark.exhaustive
def test_a_sum_over_k_in_several_stretches_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_blocks, "MAX_BUNDLES", 1)
    tiles = config(64, 384, 128, 32, 128)
    spec = GroupedSpec(m=M, k=384, n=256, groups=8, rows_per_group=12, dtype="float32", dtype_out="float32")
    assert GroupedSchedule.of(spec, tiles, systolic.chip("v5e")).blocks[0].depth == 128
    check_drawn([5, 0, 40, 3, 0, 17, 1, 9], 384, 256, "float32", tiles=tiles)


@pytest.mark.exhaustive
def test_blocks_that_do_not_divide_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns in blocks of 128, 128 and 44, and k in stretches of 128 and 72."""
    monkeypatch.setattr(code_blocks, "_RAGGED_COLUMNS", 128)
    monkeypatch.setattr(code_blocks, "MAX_BUNDLES", 1)
    tiles, sizes = config(64, 200, 300, 32, 300), [5, 0, 40, 3, 0, 17, 1, 9]
    spec = GroupedSpec(m=M, k=200, n=300, groups=8, rows_per_group=12, dtype="float32", dtype_out="float32")
    (block, *_) = GroupedSchedule.of(spec, tiles, systolic.chip("v5e")).blocks
    assert (block.columns, block.depth) == (128, 128)
    check(sizes, M, 200, 300, tiles=tiles, chip="v5e")
    check(sizes, M, 200, 300, tiles=tiles, chip="v5e", transpose_rhs=True)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("sizes", [[4, 4, 4, 116], [0, 0, 0, 0]])
def test_edges(sizes: list[int], implementation: Any) -> None:
    check(sizes, 128, 128, 128, implementation=implementation)


@pytest.mark.exhaustive
def test_every_choice_of_empty_groups() -> None:
    """One traced function for all: which groups are empty is known to the kernel alone."""
    random = np.random.default_rng(0)
    lhs, rhs = (reference.small_integers(random, shape, "float32") for shape in ((48, 128), (6, 128, 128)))
    run = jax.jit(lambda sizes: systolic.grouped_matmul(lhs, rhs, sizes, implementation="interpret"))
    for some in itertools.islice(itertools.product((0, 1), repeat=6), 0, None, 5):
        sizes = np.array(some) * np.array([3, 8, 1, 16, 5, 9])
        np.testing.assert_array_equal(run(sizes), reference.product(lhs, rhs, sizes.tolist()))


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("offset", [2, 12])
def test_some_of_the_groups(offset: int, implementation: Any) -> None:
    """16 groups of which 4 are here."""
    sizes = [3, 9, 0, 21, 7, 0, 11, 2, 0, 0, 5, 1, 1, 17, 0, 4]
    check(sizes, 96, 128, 128, offset=offset, groups=4, implementation=implementation)


def test_sizes_that_are_not_known_and_too_large_lose_rows_past_the_last() -> None:
    random = np.random.default_rng(0)
    lhs, rhs = (reference.small_integers(random, shape, "float32") for shape in ((40, 128), (3, 128, 128)))
    run = jax.jit(lambda sizes: systolic.grouped_matmul(lhs, rhs, sizes, implementation="interpret"))
    np.testing.assert_array_equal(run(np.array([30, -5, 30])), reference.product(lhs, rhs, [30, 0, 10]))


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_bias_activation_and_row_scale(implementation: Any) -> None:
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5]
    lhs, rhs = (reference.small_integers(random, shape, "float32") for shape in ((48, 128), (4, 128, 256)))
    bias, row_scale = reference.small_integers(random, (4, 256), "float32"), random.normal(size=48).astype(np.float32)
    out = systolic.grouped_matmul(
        lhs, rhs, np.array(sizes), bias=bias, activation="relu", row_scale=row_scale, implementation=implementation
    )
    expected = np.zeros((48, 256))
    before = reference.product(lhs, rhs, sizes)[:40] + bias[np.repeat(np.arange(4), sizes)]
    expected[:40] = np.maximum(before, 0) * row_scale[:40, None].astype(np.float64)
    np.testing.assert_allclose(out, expected, rtol=2**-23)


@pytest.mark.parametrize(("m", "k", "n", "groups"), [(0, 8, 8, 2), (8, 0, 8, 2), (8, 8, 0, 2), (8, 8, 8, 0)])
def test_nothing_to_multiply(m: int, k: int, n: int, groups: int) -> None:
    out = systolic.grouped_matmul(jnp.ones((m, k)), jnp.ones((groups, k, n)), jnp.zeros(groups, jnp.int32), chip="v5e")
    np.testing.assert_array_equal(out, np.zeros((m, n)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_operands_of_two_dtypes(implementation: Any) -> None:
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5]
    lhs, rhs = (reference.small_integers(random, shape, "float32") for shape in ((48, 128), (4, 128, 256)))
    for one, other in (("bfloat16", "float32"), ("bfloat16", "int8"), ("float8_e4m3fn", "float8_e4m3fn")):
        out = systolic.grouped_matmul(
            lhs.astype(one),
            rhs.astype(other),
            np.array(sizes),
            implementation=implementation,
            chip="v7x",
            preferred_element_type="float32",
        )
        np.testing.assert_array_equal(out, reference.product(lhs, rhs, sizes))


@pytest.mark.exhaustive
def test_three_passes() -> None:
    """Three passes recover the float32 digits that one pass of bfloat16 loses."""
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5]
    lhs, rhs = (random.standard_normal(shape).astype(np.float32) for shape in ((48, 128), (4, 128, 256)))
    expected = reference.product(lhs, rhs, sizes)
    out = systolic.grouped_matmul(lhs, rhs, np.array(sizes), precision="high", implementation="interpret")
    # Each product is within 2^-15 of its size, and there are k of about one; the sum itself is float32.
    np.testing.assert_allclose(out, expected, rtol=0, atol=128**0.5 * 6 * 2**-15)


@pytest.mark.exhaustive
def test_vmap_and_scan() -> None:
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5]
    lhs, rhs = (reference.small_integers(random, shape, "float32") for shape in ((2, 48, 128), (4, 128, 128)))

    def product(lhs: Any) -> Any:
        return systolic.grouped_matmul(lhs, rhs, jnp.array(sizes), implementation="interpret")

    expected = np.stack([reference.product(one, rhs, sizes) for one in lhs])
    np.testing.assert_array_equal(jax.vmap(product)(lhs), expected)
    np.testing.assert_array_equal(jax.lax.map(product, lhs), expected)


def test_known_sizes_above_m_are_refused() -> None:
    with pytest.raises(SpecError, match="17 rows, more than the 16 of lhs; use the number"):
        systolic.grouped_matmul(jnp.ones((16, 8)), jnp.ones((2, 8, 8)), np.array([8, 9]))
