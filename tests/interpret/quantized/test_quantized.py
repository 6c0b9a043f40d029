"""Products with quantized weights against float64, within bounds that follow from formats, k and blocks."""

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
from systolic.ops.quantized.route import Route
from systolic.ops.quantized.routes import route_of
from systolic.ops.quantized.schedule import aligned_sizes
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import LARGEST

FORMATS = tuple(LARGEST)
CHIPS = ("v4", "v5e", "v6e", "v7x")


def weight(random: np.random.Generator, k: int, n: int, name: str, **keywords: Any) -> systolic.Quantized:
    return quantized(random, (k, n), name, **keywords)


def bound(lhs: np.ndarray, q: systolic.Quantized, route: Route) -> np.ndarray:
    """A result may be this far from the product: it follows from roundings of weights, if any, and of float32 sums."""
    k = q.shape[-2]
    weights = np.abs(exact(q))
    # bfloat16 has eight bits: the scale is rounded to them, and its product with the value.
    rounding = 2 * 2.0**-8 * weights if route.scaled == "weights" else 0.0
    added = weights + route.offset * scales_of(q)
    return np.abs(lhs).astype(np.float64) @ (rounding + (k + 4) * 2.0**-23 * added)


def route(m: int, q: systolic.Quantized, chip: str) -> Route:
    (k, n), block = q.shape, q.blocks[0]
    k, n = aligned_sizes(k, n, block)
    block = k if q.scales.shape[0] == 1 else block
    spec = QuantizedSpec(m=m, k=k, n=n, dtype_lhs="bfloat16", dtype_rhs=q.dtype.name, dtype_out="float32", block=block)
    return route_of(spec, systolic.plan(spec, chip).config.subtile_m, systolic.chip(chip))


def check(lhs: jax.Array, q: systolic.Quantized, chip: str, **keywords: Any) -> None:
    out = systolic.matmul(lhs, q, implementation="interpret", chip=chip, preferred_element_type="float32", **keywords)
    left = np.asarray(lhs.astype(jnp.bfloat16)).astype(np.float64)
    found = np.abs(np.asarray(out) - left @ exact(q))
    assert np.all(found <= bound(left, q, route(lhs.shape[0], q, chip)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "k", "block"), [(16, 512, 128), (13, 384, 64), (33, 384, 192)])
def test_even_columns_before_odd_ones(m: int, k: int, block: int) -> None:
    random = np.random.default_rng(m)
    q = weight(random, k, 256, "int4", block=block)
    assert route(m, q, "v7x").even_first
    lhs = rows(random, m, k)
    check(lhs, q, "v7x")
    out = systolic.matmul(lhs.at[3, 5].set(jnp.inf), q, implementation="interpret", chip="v7x")
    assert list(np.flatnonzero(~np.isfinite(np.asarray(out, np.float32)).all(1))) == [3]


@settings(deadline=None, max_examples=examples(5))
@given(
    name=st.sampled_from(FORMATS),
    chip=st.sampled_from(CHIPS),
    m=st.sampled_from([1, 7, 16, 40]),
    blocks=st.integers(1, 3),
    block=st.sampled_from([32, 64, 128, 160, 256]),
    n=st.sampled_from([1, 100, 128, 200, 256]),
    scale_dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 999),
)
def test_any_size_and_block(
    name: str, chip: str, m: int, blocks: int, block: int, n: int, scale_dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    q = weight(random, blocks * block, n, name, block=block, scale_dtype=scale_dtype)
    check(rows(random, m, blocks * block), q, chip)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(FORMATS),
    chip=st.sampled_from(CHIPS),
    m=st.integers(1, 70),
    blocks=st.integers(1, 5),
    block=st.sampled_from([32, 64, 96, 128, 160, 256, 384]),
    n=st.integers(1, 400),
    scale_dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 999),
)
def test_many_sizes_and_blocks(
    name: str, chip: str, m: int, blocks: int, block: int, n: int, scale_dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    q = weight(random, blocks * block, n, name, block=block, scale_dtype=scale_dtype)
    check(rows(random, m, blocks * block), q, chip)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("chip", ["v4", "v6e", "v7x"])
def test_every_number_of_a_format(name: str, chip: str) -> None:
    """Each code is multiplied by one: what comes out is the number that it stands for, also -8 of int4 and zeros."""
    bits = 4 if name in ("int4", "float4_e2m1fn") else 8
    codes = jnp.arange(2**bits, dtype=jnp.uint8)
    values = jax.lax.bitcast_convert_type(codes.astype(jnp.uint4) if bits == 4 else codes, jnp.dtype(name))
    numbers = np.asarray(values).astype(np.float64)
    values = jnp.where(np.isfinite(numbers), values.astype(jnp.float32), 0).astype(name)  # two floats are not numbers
    numbers = np.asarray(values).astype(np.float64)
    q = systolic.Quantized(jnp.tile(values, (128, 256 // len(codes))), jnp.ones((1, 256)))
    lhs = jnp.zeros((16, 128), jnp.bfloat16).at[3, 5].set(1)
    out = np.asarray(systolic.matmul(lhs, q, implementation="interpret", chip=chip, preferred_element_type="float32"))
    np.testing.assert_array_equal(out[3], np.tile(numbers, 256 // len(codes)))
    assert not out[[0, 15]].any()


def config(tile_m: int, tile_k: int, tile_n: int, subtile_m: int, subtile_n: int) -> KernelConfig:
    tiles = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    return KernelConfig(tiles=tiles, subtile_m=subtile_m, subtile_n=subtile_n, pipeline="manual")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "block", "tiles"),
    [
        ("int4", None, config(32, 1024, 128, 16, 128)),  # weights are kept for the second subtile of rows
        ("int4", 64, config(48, 512, 256, 48, 128)),  # k in two steps, with scales of its own
        ("int8", None, config(32, 256, 128, 32, 128)),  # one scale, k in four steps
        ("int4", None, config(48, 256, 128, 48, 128)),  # and sums of rows that are taken off once
        ("fp4", 32, config(16, 256, 384, 16, 128)),
        ("int8", 128, config(48, 256, 128, 48, 128)),  # scales of two blocks a step
    ],
)
def test_steps_race_with_nothing(name: str, block: int | None, tiles: KernelConfig) -> None:
    random = np.random.default_rng(0)
    q, lhs = weight(random, 1024, 768, name, block=block), rows(random, 48, 1024)
    params = interpret_params(detect_races=True, uninitialized_memory="nan")
    out = systolic.matmul(lhs, q, implementation=params, chip="v6e", tiles=tiles, preferred_element_type="float32")
    left = np.asarray(lhs).astype(np.float64)
    spec = QuantizedSpec(
        m=48, k=1024, n=768, dtype_lhs="bfloat16", dtype_rhs=q.dtype.name, dtype_out="float32", block=block or 1024
    )
    allowed = bound(left, q, route_of(spec, tiles.subtile_m, systolic.chip("v6e")))
    assert np.all(np.abs(np.asarray(out) - left @ exact(q)) <= allowed)
    assert not races_found()


def test_what_is_fused() -> None:
    random = np.random.default_rng(3)
    q, lhs = weight(random, 256, 200, "int4", block=128), rows(random, 2, 5, 256, dtype="float32")
    bias, residual = (random.standard_normal(shape).astype(np.float32) for shape in ((200,), (2, 5, 200)))
    left = np.asarray(lhs.astype(jnp.bfloat16)).astype(np.float64)
    expected = np.maximum(left @ exact(q) + bias, 0) + residual
    for implementation in ("interpret", "xla"):
        out = systolic.matmul(
            lhs, q, bias=bias, activation="relu", residual=residual, implementation=implementation, chip="v6e"
        )
        assert out.dtype == jnp.float32
        # XLA multiplies float32 as it is: bfloat16 rounds each element of lhs to eight bits.
        slack = 2.0**-8 * np.abs(left) @ np.abs(exact(q))
        allowed = bound(left.reshape(10, 256), q, route(10, q, "v6e")).reshape(2, 5, 200) + 2.0**-20 + slack
        assert np.all(np.abs(np.asarray(out) - expected) <= allowed)


def test_a_scale_of_the_result() -> None:
    """A scale of each column comes behind everything else; integers are rounded to the nearest and saturate."""
    random = np.random.default_rng(9)
    q, lhs = weight(random, 256, 200, "int8"), rows(random, 7, 256)
    residual, scale = random.standard_normal((7, 200)).astype(np.float32), random.uniform(0.5, 30, 200)
    scale = scale.astype(np.float32)
    left = np.asarray(lhs).astype(np.float64)
    exactly = (np.maximum(left @ exact(q), 0) + residual) * scale
    allowed = (bound(left, q, route(7, q, "v6e")) + 4 * 2.0**-23 * (np.abs(left) @ np.abs(exact(q)))) * scale + 2.0**-20
    for implementation in ("interpret", "xla"):
        multiply = functools.partial(
            systolic.matmul, lhs, q, activation="relu", residual=residual, implementation=implementation, chip="v6e"
        )
        out = np.asarray(multiply(out_scale=scale, preferred_element_type="float32"))
        slack = 0 if implementation == "interpret" else 2.0**-7 * (np.abs(left) @ np.abs(exact(q))) * scale
        assert np.all(np.abs(out - exactly) <= allowed + slack)
        rounded = np.asarray(multiply(out_scale=scale, preferred_element_type="int8")).astype(np.float64)
        assert np.abs(rounded).max() <= 128
        assert np.all(np.abs(rounded - np.clip(exactly, -128, 127)) <= 0.5 + allowed + slack)
        one = np.asarray(multiply(out_scale=2.0, preferred_element_type="float32"))
        np.testing.assert_array_equal(one, 2 * np.asarray(multiply(preferred_element_type="float32")))


@pytest.mark.exhaustive
def test_squares_tensors_and_batches() -> None:
    random = np.random.default_rng(4)
    lhs = rows(random, 8, 256)
    check(lhs, weight(random, 256, 256, "e4m3", axis=(0, 1), block=(128, 128)), "v7x")
    check(lhs, weight(random, 256, 256, "int8", axis=None), "v6e")
    stack = systolic.quantize(random.standard_normal((3, 256, 128)).astype(np.float32), "int8", block=128)
    many = rows(random, 3, 8, 256)
    out = systolic.matmul(many, stack, implementation="interpret", chip="v6e", preferred_element_type="float32")
    for number in range(3):
        one = jax.tree.map(lambda array, number=number: array[number], stack)
        left = np.asarray(many[number]).astype(np.float64)
        assert np.all(np.abs(np.asarray(out[number]) - left @ exact(one)) <= bound(left, one, route(8, one, "v6e")))
    vector = systolic.matmul(lhs[0], weight(random, 256, 128, "int8"), implementation="interpret", chip="v6e")
    assert vector.shape == (128,)


def test_vmap_makes_one_product_of_rows_that_share_a_weight() -> None:
    random = np.random.default_rng(7)
    q, lhs = weight(random, 128, 128, "int8"), rows(random, 3, 5, 128)

    def one(lhs: Any) -> Any:
        return systolic.matmul(lhs, q, implementation="interpret", chip="v6e", preferred_element_type="float32")

    out = np.asarray(jax.vmap(one)(lhs))
    np.testing.assert_array_equal(out.reshape(15, 128), np.asarray(one(lhs.reshape(15, 128))))
    assert "systolic_quantized_int8_128_15_128_128" in str(jax.make_jaxpr(jax.vmap(one))(lhs))

    def each(lhs: Any, scales: Any) -> Any:
        return systolic.matmul(
            lhs,
            systolic.Quantized(q.values, scales),
            implementation="interpret",
            chip="v6e",
            preferred_element_type="float32",
        )

    scales = jnp.stack([q.scales, 2 * q.scales, 4 * q.scales])
    twice = np.asarray(jax.vmap(each)(lhs, scales))
    np.testing.assert_allclose(twice, out * np.array([1, 2, 4])[:, None, None], rtol=1e-6)


@pytest.mark.exhaustive
def test_nan_of_a_block_stays_in_its_columns() -> None:
    random = np.random.default_rng(8)
    x = random.standard_normal((256, 128)).astype(np.float32)
    x[3, 7] = np.nan
    for name, block in (("int4", 128), ("int8", None), ("int4", 32)):
        q = systolic.quantize(x, name, block=block)
        out = np.asarray(systolic.matmul(rows(random, 16, 256), q, implementation="interpret", chip="v6e"))
        assert np.isnan(out[:, 7]).all()
        assert np.isfinite(np.delete(out, 7, axis=1).astype(np.float32)).all()


def test_nothing_to_multiply() -> None:
    q = systolic.quantize(np.ones((8, 4), np.float32))
    assert systolic.matmul(jnp.zeros((0, 8)), q).shape == (0, 4)


@pytest.mark.parametrize(("chip", "by_kernel"), [("v4", False), ("v6e", True)])
def test_a_kernel_that_unpacks_slowly_is_taken_only_if_asked_for(chip: str, by_kernel: bool) -> None:
    weight = systolic.quantize(jnp.ones((256, 256)), "int8")

    def kernels(implementation: Any) -> int:
        def multiplied(x: Any) -> Any:
            return systolic.matmul(x, weight, chip=chip, implementation=implementation)

        return str(jax.make_jaxpr(multiplied)(jnp.ones((16, 256), jnp.bfloat16))).count("name=systolic_quantized")

    assert bool(kernels(None)) == by_kernel
    assert kernels("interpret")
    spec = systolic.QuantizedSpec(
        m=16, k=256, n=256, block=256, dtype_lhs="bfloat16", dtype_rhs="int8", dtype_out="bfloat16"
    )
    said = systolic.plan(spec, chip).reason
    assert ("implementation='pallas'" in said) != by_kernel
