"""Quantized arrays against float64: each value is the nearest of its format, whatever the block."""

from __future__ import annotations

import pickle
import sys
import types
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers the formats with NumPy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import systolic
from systolic.spec.formats import LARGEST, QuantizationError, format_named

FORMATS = tuple(LARGEST)


def grid_of(name: str) -> np.ndarray:
    """Every number of a format that `quantize` makes, in float64."""
    if name.startswith("int"):
        return np.arange(-LARGEST[name], LARGEST[name] + 1)
    codes = np.arange(16 if name == "float4_e2m1fn" else 256, dtype=np.uint8)
    every = codes.view(np.dtype(name)).astype(np.float64)
    return np.unique(every[np.isfinite(every)])


def expanded(q: systolic.Quantized) -> tuple[np.ndarray, np.ndarray]:
    """Values and scales in float64, each of the shape of the whole."""
    scales = np.asarray(q.scales).astype(np.float64)
    for axis, block in enumerate(q.blocks):
        scales = scales.repeat(block, axis)
    return np.asarray(q.values).astype(np.float64), scales


@settings(deadline=None, max_examples=examples(12))
@given(
    name=st.sampled_from(FORMATS),
    block=st.sampled_from([None, 4, 32]),
    axis=st.sampled_from([0, -1, None]),
    scale_dtype=st.sampled_from(["float32", "bfloat16"]),
    magnitude=st.sampled_from([1e-30, 1.0, 3e5]),
    seed=st.integers(0, 2**16),
)
def test_each_value_is_a_nearest_one(
    name: str, block: int | None, axis: int | None, scale_dtype: str, magnitude: float, seed: int
) -> None:
    x = (np.random.default_rng(seed).standard_normal((32, 64)) * magnitude).astype(np.float32)
    q = systolic.quantize(x, name, axis=axis, block=None if axis is None else block, scale_dtype=scale_dtype)
    values, scales = expanded(q)
    ratio = x.astype(np.float64) / scales
    distances = np.abs(np.clip(ratio, -LARGEST[name], LARGEST[name])[..., None] - grid_of(name)).min(-1)
    slack = np.abs(ratio) * 2.0**-23  # of the division in float32
    assert np.all(np.abs(np.clip(ratio, -LARGEST[name], LARGEST[name]) - values) <= distances + slack)
    np.testing.assert_allclose(np.asarray(q.dequantize()).astype(np.float64), values * scales, rtol=2**-23)


@pytest.mark.parametrize("name", FORMATS)
def test_the_largest_magnitude_is_the_largest_number(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    q = systolic.quantize(x, name, axis=0, block=16)
    values, _ = expanded(q)
    assert q.blocks == (16, 1)
    assert q.scales.shape == (4, 48)
    assert q.shape == (64, 48)
    assert q.ndim == 2
    assert np.all(np.abs(values).reshape(4, 16, 48).max(1) == LARGEST[name])
    expected = np.abs(x.reshape(4, 16, 48)).max(1) / LARGEST[name]
    np.testing.assert_allclose(np.asarray(q.scales), expected, rtol=2**-23)


def test_ties_go_to_even() -> None:
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 7.0]], np.float32)
    q = systolic.quantize(x, "int4", axis=-1)
    assert np.asarray(q.values).astype(int).tolist() == [[0, 2, 2, 0, -2, 7]]


def test_squares_and_other_axes() -> None:
    x = np.random.default_rng(1).standard_normal((3, 64, 96)).astype(np.float32)
    q = systolic.quantize(x, "e4m3", axis=(-2, -1), block=(32, 48))
    assert q.scales.shape == (3, 2, 2)
    assert q.blocks == (1, 32, 48)
    largest = np.abs(x.reshape(3, 2, 32, 2, 48)).max((2, 4))
    np.testing.assert_allclose(np.asarray(q.scales), largest / 448, rtol=2**-23)
    turned = q.mT
    np.testing.assert_array_equal(np.asarray(turned.dequantize()), np.asarray(q.dequantize()).swapaxes(1, 2))


def test_one_nan_among_many_numbers() -> None:
    x = np.random.default_rng(8).standard_normal((256, 128)).astype(np.float32)
    x[3, 7] = np.nan
    assert np.argwhere(np.isnan(np.asarray(systolic.quantize(x, "int4", block=128).scales))).tolist() == [[0, 7]]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_finite(name: str) -> None:
    x = np.ones((4, 8), np.float32)
    x[1, 2], x[2, 3], x[3] = np.nan, np.inf, 0
    q = systolic.quantize(x, name, axis=-1, block=4)
    back = np.asarray(q.dequantize())
    assert np.isnan(back[1, :4]).all()
    assert np.isnan(back[2, :4]).all()
    assert (back[0] == 1).all()
    assert (back[1:3, 4:] == 1).all()
    assert (back[3] == 0).all()
    assert (np.asarray(q.scales)[3] == 1).all()
    bounded = systolic.quantize(x, name, axis=-1, block=4, largest=2.0)
    back = np.asarray(bounded.dequantize())
    assert np.isnan(back[1, :4]).all()
    assert back[2, 3] == 2.0
    assert np.isfinite(back[2]).all()


def test_numbers_too_small_for_a_scale_are_zero() -> None:
    q = systolic.quantize(np.full((2, 4), 1e-44, np.float32), "int8")
    assert not np.asarray(q.dequantize()).any()
    assert np.isfinite(np.asarray(q.scales)).all()


def test_a_search_never_has_a_larger_error() -> None:
    x = np.random.default_rng(2).standard_t(2, (128, 64)).astype(np.float32)

    def error(q: systolic.Quantized) -> np.ndarray:
        return np.square(x - np.asarray(q.dequantize())).reshape(4, 32, 64).sum(1)

    plain = systolic.quantize(x, "int4", axis=0, block=32)
    searched = systolic.quantize(x, "int4", axis=0, block=32, search=True)
    assert np.all(error(searched) <= error(plain) * (1 + 1e-5))
    assert np.mean(error(searched) < error(plain)) > 0.5


@pytest.mark.exhaustive
def test_it_is_a_pytree() -> None:
    q = systolic.quantize(np.ones((8, 4), np.float32), "int4", block=4)
    same = jax.jit(lambda one: one)(q)
    assert isinstance(same, systolic.Quantized)
    assert same.values.dtype == jnp.int4
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(q)] == [".values", ".scales"]
    stacked = jax.vmap(lambda x: systolic.quantize(x, "int8"))(jnp.ones((3, 8, 4)))
    assert stacked.values.shape == (3, 8, 4)
    assert stacked.scales.shape == (3, 1, 4)
    shapes = jax.eval_shape(lambda x: systolic.quantize(x, "int8"), jnp.ones((8, 4)))
    assert shapes.shape == (8, 4)
    assert jax.tree.map(lambda _: None, q).values is None
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(q)).dequantize()), np.asarray(q.dequantize()))


def test_qwix_arrays_go_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class QArray:
        qvalue: Any
        scale: Any
        zero_point: Any = None

    q = systolic.quantize(np.eye(8, dtype=np.float32), "int8", block=4)
    made = systolic.from_qwix(QArray(q.values, q.scales))
    np.testing.assert_array_equal(np.asarray(made.dequantize()), np.asarray(q.dequantize()))
    with pytest.raises(QuantizationError, match="zero_point"):
        systolic.from_qwix(QArray(q.values, q.scales, q.values))
    with pytest.raises(QuantizationError, match="qvalue"):
        systolic.from_qwix(np.eye(2))
    module = types.ModuleType("qwix")
    module.QArray = QArray  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "qwix", module)
    back = systolic.to_qwix(q)
    assert isinstance(back, QArray)
    assert back.qvalue is q.values
    assert back.scale is q.scales


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"dtype": "int2"}, "int2"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"block": 5}, "block=5"),
        ({"block": 0}, "block=0"),
        ({"axis": 2}, "axis=2"),
        ({"axis": None, "block": 4}, "block=4"),
        ({"axis": (0, 1), "block": (4,)}, "one number for each axis"),
        ({"largest": np.ones(3)}, "largest"),
        ({"scale_dtype": "float16"}, "float16"),
    ],
)
def test_what_is_refused(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(QuantizationError, match=said):
        systolic.quantize(np.ones((8, 4), np.float32), **keywords)


def test_what_is_no_array_of_floats() -> None:
    for x in (np.ones((2, 2), np.int32), [1.0, 2.0]):
        with pytest.raises(QuantizationError, match="floats"):
            systolic.quantize(x)  # pyright: ignore[reportArgumentType]


def test_records_that_do_not_fit() -> None:
    values = jnp.zeros((8, 4), jnp.int8)
    for scales in (jnp.ones((3, 4)), jnp.ones(4), jnp.ones((1, 4), jnp.int32)):
        with pytest.raises(QuantizationError, match="scales"):
            systolic.Quantized(values, scales)
    with pytest.raises(QuantizationError, match="float32"):
        systolic.Quantized(jnp.zeros((8, 4)), jnp.ones((1, 4)))
    with pytest.raises(QuantizationError, match="list"):
        systolic.Quantized([1], jnp.ones((1, 4)))


def test_short_names() -> None:
    assert [format_named(one) for one in ("e4m3", "fp4", jnp.int8)] == ["float8_e4m3fn", "float4_e2m1fn", "int8"]


def test_nothing_has_no_blocks() -> None:
    q = systolic.quantize(np.ones((0, 4), np.float32))
    assert q.dequantize().shape == (0, 4)
