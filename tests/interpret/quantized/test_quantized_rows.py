"""Products of quantized rows with quantized weights, against int64 and float64."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_operands import exact, quantized, rows, scales_of
from selection import examples

import systolic
from systolic.compat import interpret_params, races_found
from systolic.ops.quantized.spec import ROW_FORMATS
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import LARGEST

FORMATS = tuple(LARGEST)
CHIPS = ("v4", "v5e", "v6e", "v7x")
multiply = functools.partial(systolic.matmul, preferred_element_type="float32")
interpreted = functools.partial(multiply, implementation="interpret")


def bound(lhs: np.ndarray, q: systolic.Quantized, sums: int) -> np.ndarray:
    """A result may be this far from the product of what both sides stand for.

    Values, and products of two, are exact. Of integers each block's sum is too, so that there are as many float32 sums
    as blocks, of floats as many as k. Before the offset of codes is taken off, int4 is as much as 8 further from zero.
    """
    offset = 8 * scales_of(q) if q.dtype.name == "int4" else 0.0
    return (sums + 8) * 2.0**-23 * (np.abs(lhs) @ (np.abs(exact(q)) + offset))


def check(lhs: systolic.Quantized, q: systolic.Quantized, chip: str) -> None:
    left = exact(lhs)
    integers = {lhs.dtype.name, q.dtype.name} <= {"int4", "int8"}
    blocks = max(np.lcm(lhs.scales.shape[-1], q.scales.shape[-2]), 1)
    out = np.asarray(interpreted(lhs, q, chip=chip))
    assert np.all(np.abs(out - left @ exact(q)) <= bound(left, q, blocks if integers else left.shape[-1]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("chip", "row_format", "name"),
    [("v6e", "int8", "int8"), ("v7x", "int8", "int8"), ("v6e", "int8", "int4"), ("v4", "int8", "int8")],
)
def test_sums_of_integers_are_exact_also_past_what_float32_holds(chip: str, row_format: str, name: str) -> None:
    random, k = np.random.default_rng(0), 2560
    values = random.integers(int(LARGEST[row_format]) // 2, int(LARGEST[row_format]), (16, k), endpoint=True)
    weights = random.integers(-int(LARGEST[name]) - 1, -int(LARGEST[name]) // 2, (k, 128), endpoint=True)
    lhs = systolic.Quantized(jnp.asarray(values, row_format), jnp.ones((16, 1)))
    q = systolic.Quantized(jnp.asarray(weights).astype(name), jnp.ones((1, 128)))
    expected = (values.astype(np.int64) @ weights.astype(np.int64)).astype(np.float32)
    for tile_k in (k, k // 2):
        config = KernelConfig(
            tiles=Tiles(tile_m=16, tile_k=tile_k, tile_n=128), subtile_m=16, subtile_n=128, pipeline="manual"
        )
        np.testing.assert_array_equal(np.asarray(interpreted(lhs, q, chip=chip, tiles=config)), expected)
    np.testing.assert_array_equal(np.asarray(multiply(lhs, q, implementation="xla")), expected)


sizes = {
    "chip": st.sampled_from(CHIPS),
    "row_format": st.sampled_from(FORMATS),
    "name": st.sampled_from(FORMATS),
    "m": st.sampled_from([1, 7, 16, 40, 70]),
    "blocks": st.integers(1, 3),
    "block": st.sampled_from([32, 64, 128, 160, 256]),
    "by_block": st.booleans(),
    "n": st.sampled_from([1, 100, 128, 256]),
    "seed": st.integers(0, 999),
}


def check_sizes(
    chip: str, row_format: str, name: str, m: int, blocks: int, block: int, by_block: bool, n: int, seed: int
) -> None:
    random, k = np.random.default_rng(seed), blocks * block
    lhs = quantized(random, (m, k), row_format, axis=-1, block=block if by_block else None)
    check(lhs, quantized(random, (k, n), name, block=block), chip)


def test_padded_fp4() -> None:
    check_sizes("v6e", "int8", "float4_e2m1fn", m=7, blocks=3, block=32, by_block=False, n=100, seed=0)


test_any_formats_and_blocks = settings(deadline=None, max_examples=examples(4))(given(**sizes)(check_sizes))
test_many_formats_and_blocks = pytest.mark.slow(settings(deadline=None, max_examples=150)(given(**sizes)(check_sizes)))


def test_what_is_fused_behind_both_scales() -> None:
    random = np.random.default_rng(10)
    lhs, q = quantized(random, (40, 256), "int8", axis=-1), quantized(random, (256, 200), "int4", block=128)
    bias, scale = random.standard_normal(200).astype(np.float32), random.uniform(0.5, 2, 200).astype(np.float32)
    residual = random.standard_normal((40, 200)).astype(np.float32)
    fused = {"bias": bias, "activation": "relu", "residual": residual, "out_scale": scale}
    expected = (np.maximum(exact(lhs) @ exact(q) + bias, 0) + residual) * scale
    allowed = (bound(exact(lhs), q, 2) + 8 * 2.0**-23 * (np.abs(bias) + np.abs(residual) + 1)) * scale
    for implementation in ("interpret", "xla"):
        out = np.asarray(multiply(lhs, q, implementation=implementation, chip="v6e", **fused))
        assert np.all(np.abs(out - expected) <= allowed)


@pytest.mark.exhaustive
def test_scales_of_tensors_and_other_blocks() -> None:
    random = np.random.default_rng(1)
    q = quantized(random, (384, 128), "int8", block=128)
    check(quantized(random, (8, 384), "int8", axis=None), q, "v6e")
    check(quantized(random, (8, 384), "int8", axis=-1, block=192), q, "v6e")  # both in blocks of 64
    check(quantized(random, (8, 384), "int8", axis=-1, block=128), quantized(random, (384, 128), "int8"), "v6e")
    check(quantized(random, (8, 128), "e4m3b11", axis=-1), quantized(random, (128, 128), "e4m3"), "v7x")
    # Rows that are cast ahead of the kernel, beside blocks so small that scaled weights would be faster.
    small = quantized(random, (64, 128), "int8", block=32)
    check(quantized(random, (16, 64), "e4m3b11", axis=-1, block=32), small, "v6e")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("chip", "row_format", "block"), [("v5e", "int8", 64), ("v6e", "e4m3", None)])
def test_a_weight_that_is_not_quantized(chip: str, row_format: str, block: int | None) -> None:
    """It is multiplied in bfloat16, beside the values of rows, which that holds; both sides have derivatives."""
    random = np.random.default_rng(9)
    lhs = quantized(random, (20, 192), row_format, axis=-1, block=block)
    weight, given = rows(random, 192, 100), random.standard_normal((20, 100)).astype(np.float32)
    right = np.asarray(weight).astype(np.float64)
    allowed = (192 + 8) * 2.0**-23 * (np.abs(exact(lhs)) @ np.abs(right))
    for implementation in ("interpret", "xla"):
        out = np.asarray(multiply(lhs, weight, implementation=implementation, chip=chip))
        assert np.all(np.abs(out - exact(lhs) @ right) <= allowed)
    np.testing.assert_array_equal(interpreted(lhs, weight.astype(jnp.float32), chip=chip), out)

    def loss(scales: Any, weight: Any, fn: Any) -> Any:
        return (jax.nn.relu(fn(systolic.Quantized(lhs.values, scales), weight)) * given).sum()

    def plain(lhs: systolic.Quantized, weight: Any) -> Any:
        return jnp.matmul(lhs.dequantize(), weight.astype(jnp.float32), precision="highest")

    ours = functools.partial(interpreted, chip=chip)
    found, expected = (jax.grad(loss, (0, 1))(lhs.scales, weight, fn) for fn in (ours, plain))
    for one, other in zip(found, expected, strict=True):
        one, other = (np.asarray(each).astype(np.float64) for each in (one, other))
        # float32 sums, and a cotangent and rows that are multiplied as bfloat16.
        np.testing.assert_allclose(one, other, atol=2.0**-6 * np.abs(other).max())
    quantized_here = interpreted(lhs.dequantize(), weight, quantize_lhs=row_format, chip=chip)
    assert np.abs(np.asarray(quantized_here) - exact(lhs) @ right).max() < 0.1 * np.abs(exact(lhs) @ right).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("chip", "name", "row_format"),
    [("v6e", "int8", "int8"), ("v5e", "int4", "int4"), ("v7x", "e4m3", "e4m3"), ("v4", "e5m2", "e5m2")],
)
def test_rows_that_are_on_the_grid_are_quantized_to_it(chip: str, name: str, row_format: str) -> None:
    """A row of multiples of a scale, with the largest number among them, comes out as if it had been given so."""
    random = np.random.default_rng(2)
    lhs, q = quantized(random, (40, 256), row_format, axis=-1), quantized(random, (256, 128), name)
    powers = systolic.Quantized(lhs.values, 2.0 ** jnp.arange(-20, 20, dtype=jnp.float32)[:, None])
    given = np.asarray(interpreted(powers, q, chip=chip))
    np.testing.assert_array_equal(
        np.asarray(interpreted(powers.dequantize(), q, quantize_lhs=row_format, chip=chip)), given
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("chip", "row_format"), [*(("v6e", one) for one in ROW_FORMATS), ("v4", "float8_e4m3fn")])
def test_rows_are_rounded_to_the_nearest(chip: str, row_format: str) -> None:
    random = np.random.default_rng(3)
    lhs, q = rows(random, 40, 256, dtype="float32"), quantized(random, (256, 128), "int8")
    left, most = np.asarray(lhs).astype(np.float64), LARGEST[row_format]
    scales = np.abs(left).max(axis=1, keepdims=True) / most
    if row_format.startswith("int"):
        step = scales * np.ones_like(left)
    else:  # a float has as many digits for each power of two, and subnormals below
        finfo = jnp.finfo(row_format)
        step = np.maximum(np.abs(left) * float(finfo.eps), scales * float(finfo.smallest_subnormal))
    # The inverse of the scale and the product with it round, so a number near the middle of two may go either way.
    allowed = (0.5 * step + 4 * 2.0**-23 * np.abs(left)) @ np.abs(exact(q)) + bound(2 * np.abs(left), q, 256)
    for implementation in ("interpret", "xla"):
        out = multiply(lhs, q, quantize_lhs=row_format, implementation=implementation, chip=chip)
        assert np.all(np.abs(np.asarray(out) - left @ exact(q)) <= allowed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("chip", "row_format"), [("v6e", "int8"), ("v7x", "e4m3"), ("v4", "e4m3")])
def test_rows_that_are_zero_tiny_or_not_finite(chip: str, row_format: str) -> None:
    random = np.random.default_rng(4)
    lhs, q = np.asarray(rows(random, 8, 256, dtype="float32")).copy(), quantized(random, (256, 128), "int8")
    lhs[1] = 0
    lhs[2] = 1e-39  # no scale of normal numbers: taken for zero
    lhs[3, 5], lhs[4, 200], lhs[5, 7], lhs[6] = np.nan, np.inf, -np.inf, 1e38
    q = systolic.Quantized(q.values, 1e-3 * q.scales)
    for implementation in ("interpret", "xla"):
        out = np.asarray(multiply(lhs, q, quantize_lhs=row_format, implementation=implementation, chip=chip))
        assert np.isnan(out[3:6]).all()
        assert not out[1:3].any()
        assert np.isfinite(out[[0, 6, 7]]).all()
        assert np.abs(out[[0, 6, 7]]).max(axis=1).all()


def config(tile_m: int, tile_k: int, tile_n: int, subtile_m: int, subtile_n: int) -> KernelConfig:
    tiles = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    return KernelConfig(tiles=tiles, subtile_m=subtile_m, subtile_n=subtile_n, pipeline="manual")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("chip", "row_format", "name", "block", "dynamic", "tiles"),
    [
        ("v6e", "int8", "int8", None, True, config(64, 512, 256, 32, 128)),  # k in two steps, of two blocks of rows
        ("v6e", "int8", "int8", None, False, config(64, 512, 256, 32, 128)),
        ("v6e", "int8", "int4", 64, False, config(96, 1024, 128, 32, 128)),  # weights are kept for three subtiles
        ("v7x", "float8_e4m3fn", "int4", None, True, config(96, 256, 128, 96, 128)),  # sums of rows in float8
    ],
)
def test_steps_race_with_nothing(
    chip: str, row_format: str, name: str, block: int | None, dynamic: bool, tiles: KernelConfig
) -> None:
    random = np.random.default_rng(5)
    lhs, q = quantized(random, (96, 1024), row_format, axis=-1), quantized(random, (1024, 256), name, block=block)
    params = interpret_params(detect_races=True, uninitialized_memory="nan")
    # Scales that are powers of two, so that rows are found again as they were.
    lhs = systolic.Quantized(lhs.values, jnp.full_like(lhs.scales, 0.25))
    operand: Any = lhs.dequantize() if dynamic else lhs
    out = multiply(
        operand, q, quantize_lhs=row_format if dynamic else None, implementation=params, chip=chip, tiles=tiles
    )
    left = exact(lhs)
    assert np.all(np.abs(np.asarray(out) - left @ exact(q)) <= bound(left, q, 1024))
    assert not races_found()


@pytest.mark.exhaustive
def test_batches_and_vmap() -> None:
    random = np.random.default_rng(8)
    q, lhs = quantized(random, (128, 128), "int8"), quantized(random, (3, 5, 128), "int8", axis=-1)
    flat = jax.tree.map(lambda array: array.reshape(15, -1), lhs)
    expected = np.asarray(interpreted(flat, q, chip="v6e")).reshape(3, 5, 128)
    np.testing.assert_array_equal(np.asarray(interpreted(lhs, q, chip="v6e")), expected)
    mapped = jax.vmap(lambda lhs: interpreted(lhs, q, chip="v6e"))
    np.testing.assert_array_equal(np.asarray(mapped(lhs)), expected)
    assert "systolic_quantized_int8_int8_128_15_128_128" in str(jax.make_jaxpr(mapped)(lhs))
    stack = quantized(random, (3, 128, 128), "int8")
    out = np.asarray(interpreted(lhs, stack, chip="v6e"))
    for number in range(3):
        one, weight = (jax.tree.map(lambda array, number=number: array[number], each) for each in (lhs, stack))
        np.testing.assert_array_equal(out[number], np.asarray(interpreted(one, weight, chip="v6e")))
    vector = jax.tree.map(lambda array: array[0, 0], lhs)
    np.testing.assert_array_equal(np.asarray(interpreted(vector, q, chip="v6e")), expected[0, 0])


@pytest.mark.parametrize("dynamic", [True, False])
def test_blocks_of_rows_come_in_parts(dynamic: bool) -> None:
    """Three blocks of 160 rows, of which 128 and 32 come at a time, each while the block before is multiplied."""
    random = np.random.default_rng(6)
    lhs, q = quantized(random, (450, 256), "int8", axis=-1), quantized(random, (256, 384), "int8")
    lhs = systolic.Quantized(lhs.values, jnp.full_like(lhs.scales, 0.25))
    out = multiply(
        lhs.dequantize() if dynamic else lhs,
        q,
        quantize_lhs="int8" if dynamic else None,
        implementation=interpret_params(detect_races=True, uninitialized_memory="nan"),
        chip="v6e",
        tiles=config(160, 256, 128, 160, 128),
    )
    assert np.all(np.abs(np.asarray(out) - exact(lhs) @ exact(q)) <= bound(exact(lhs), q, 1))
    assert not races_found()
