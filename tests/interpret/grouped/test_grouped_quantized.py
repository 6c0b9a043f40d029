"""Grouped products with codes, in TPU interpret mode beside float64, and their form in floats."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import grouped_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from virtual_devices import run_on_virtual_devices

import systolic
from systolic.compat import races_found
from systolic.ops.grouped import code_blocks
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import QuantizationError, SpecError

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
M, K, N, GROUPS = 64, 128, 256, 4
SIZES = np.array([13, 0, 22, 5])
RANDOM = np.random.default_rng(0)
LHS = RANDOM.integers(-2, 3, (M, K)).astype(np.float32)
COTANGENT = RANDOM.normal(size=(M, N)).astype(np.float32)


def weights(scale_groups: int = GROUPS, scale_columns: int = N) -> systolic.Quantized:
    """Codes with scales that are powers of two, so that float32 holds every product and sum."""
    codes = RANDOM.integers(-127, 128, (GROUPS, K, N)).astype(np.int8)
    scales = np.exp2(RANDOM.integers(-3, 3, (scale_groups, 1, scale_columns))).astype(np.float32)
    return systolic.Quantized(codes, scales)


def product(rhs: systolic.Quantized) -> np.ndarray:
    floats = np.asarray(rhs.values, np.float64) * np.asarray(rhs.scales, np.float64)
    return reference.product(LHS, floats, SIZES.tolist())


GATE, UP = weights(), weights()
BOTH = jax.tree.map(lambda *parts: np.concatenate(parts, axis=2), GATE, UP)
FORMS: dict[str, dict[str, Any]] = {
    "one": {"rhs": GATE},
    "transposed": {"rhs": GATE.mT, "transpose_rhs": True},
    "gated": {"rhs": GATE, "up": UP, "activation": "relu"},
    "side by side": {"rhs": BOTH, "side_by_side": True, "activation": "relu"},
}


@pytest.mark.exhaustive
@pytest.mark.paired
@pytest.mark.parametrize("implementation", ["xla", CAREFUL])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_exact(form: str, dtype: str, implementation: Any) -> None:
    options = {"implementation": implementation, "preferred_element_type": "float32", **FORMS[form]}
    out = systolic.grouped_matmul(jnp.asarray(LHS, dtype), group_sizes=SIZES, **options)
    expected = product(GATE)
    if "activation" in FORMS[form]:
        expected = (np.maximum(expected, 0) * product(UP)).astype(np.float32)
    np.testing.assert_array_equal(out, expected)
    assert not races_found()


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", CAREFUL])
@pytest.mark.parametrize(("codes", "block", "columns"), [("int8", 384, 1), ("int4", 128, 1), ("int8", 128, 128)])
def test_quantized_rows_are_multiplied_as_integers(codes: str, block: int, columns: int, implementation: Any) -> None:
    rhs = systolic.Quantized(
        jnp.asarray(RANDOM.integers(-7, 8, (GROUPS, DEEP, N)), codes),
        np.exp2(RANDOM.integers(-3, 3, (GROUPS, DEEP // block, N // columns))).astype(np.float32),
    )
    lhs = RANDOM.normal(size=(M, DEEP)).astype(np.float32)
    lhs[SIZES.sum() :] = np.nan
    rows = systolic.quantize(jnp.asarray(lhs), axis=-1)
    represented = np.nan_to_num(np.asarray(rows.values, np.float64) * np.asarray(rows.scales, np.float64))
    floats = np.asarray(rhs.dequantize(), np.float64)
    scale = np.linspace(1, 2, M, dtype=np.float32)
    bias = RANDOM.normal(size=(GROUPS, N)).astype(np.float32)
    out = systolic.grouped_matmul(
        lhs, rhs, SIZES, quantize_lhs="int8", bias=bias, row_scale=scale, implementation=implementation, chip="v6e"
    )
    total = reference.product(represented, floats, SIZES.tolist())
    total[: SIZES.sum()] += bias.repeat(SIZES, 0)
    # Sums of integers are exact; then a few roundings.
    np.testing.assert_allclose(out, total * scale[:, None], rtol=1e-6, atol=2e-6 * np.abs(total).max())
    assert not races_found()


@pytest.mark.exhaustive
def test_a_derivative_ignores_the_rounding_of_rows() -> None:
    def total(lhs: Any, **options: Any) -> Any:
        return (systolic.grouped_matmul(lhs, GATE, SIZES, implementation="xla", **options) * COTANGENT).sum()

    lhs = RANDOM.normal(size=(M, K)).astype(np.float32)
    quantized, plain = jax.grad(functools.partial(total, quantize_lhs="int8"))(lhs), jax.grad(total)(lhs)
    np.testing.assert_allclose(quantized, plain, rtol=1e-5, atol=1e-5 * np.abs(plain).max())


@pytest.mark.exhaustive
def test_rows_in_other_formats_are_rounded_and_multiplied_as_floats() -> None:
    options: dict[str, Any] = {"implementation": "interpret", "chip": "v6e", "precision": "highest"}
    for name in ("e4m3", "int4"):
        rounded = np.asarray(systolic.fake_quantize(jnp.asarray(LHS), name, axis=-1))
        expected = systolic.grouped_matmul(rounded, GATE, SIZES, **options)
        np.testing.assert_array_equal(systolic.grouped_matmul(LHS, GATE, SIZES, quantize_lhs=name, **options), expected)


DEEP = 384
DEEP_LHS = RANDOM.integers(-2, 3, (M, DEEP)).astype(np.float32)
# The dtype of codes, and the rows and columns that share a scale.
FORMATS = {
    "e4m3": ("float8_e4m3fn", DEEP, 1),
    "e5m2": ("float8_e5m2", DEEP, 64),
    "e4m3 in squares": ("float8_e4m3fn", 128, 128),
    "int8 in wide blocks": ("int8", 128, 256),
    "int4 in blocks": ("int4", 128, 1),
}


def coded(name: str) -> tuple[systolic.Quantized, np.ndarray]:
    """Return codes with scales, and the product with the numbers that they represent."""
    stored, block, columns = FORMATS[name]
    codes = RANDOM.integers(-7, 8, (GROUPS, DEEP, N))
    scales = np.exp2(RANDOM.integers(-3, 3, (GROUPS, DEEP // block, N // columns)))
    floats = codes * scales.repeat(block, 1).repeat(columns, 2)
    out = reference.product(DEEP_LHS, floats, SIZES.tolist())
    return systolic.Quantized(jnp.asarray(codes, stored), scales.astype(np.float32)), out


@pytest.mark.exhaustive
@pytest.mark.paired
@pytest.mark.parametrize("implementation", ["xla", CAREFUL])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_exact(name: str, dtype: str, form: str, implementation: Any) -> None:
    (gate, expected), (up, expected_up) = coded(name), coded(name)
    sides: dict[str, dict[str, Any]] = {
        "one": {"rhs": gate},
        "transposed": {"rhs": gate.mT},
        "gated": {"rhs": gate, "up": up},
        "side by side": {"rhs": jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), gate, up)},
    }
    options = {**FORMS[form], **sides[form], "preferred_element_type": "float32", "chip": "v6e"}
    lhs = jnp.asarray(DEEP_LHS, dtype)
    out = systolic.grouped_matmul(lhs, group_sizes=SIZES, implementation=implementation, **options)
    if "activation" in options:
        expected = (np.maximum(expected, 0) * expected_up).astype(np.float32)
    np.testing.assert_array_equal(out, expected)
    assert not races_found()


@pytest.mark.exhaustive
def test_several_stretches_of_k_and_tiles_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of code of one block of k add up in VMEM, and a tile has the scales of its own columns."""
    monkeypatch.setattr(code_blocks, "MAX_BUNDLES", 1)
    tiles = Tiles(tile_m=32, tile_k=DEEP, tile_n=128)
    config = KernelConfig(tiles=tiles, subtile_m=16, subtile_n=128, pipeline="manual")
    for name in ("e4m3 in squares", "int4 in blocks"):
        rhs, expected = coded(name)
        options: dict[str, Any] = {"implementation": CAREFUL, "tiles": config, "preferred_element_type": "float32"}
        out = systolic.grouped_matmul(DEEP_LHS.astype("bfloat16"), rhs, SIZES, chip="v6e", **options)
        np.testing.assert_array_equal(out, expected)
    assert not races_found()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("panel", "tile_n", "rows"), [(32, 128, 16), (64, 256, 32)])
def test_several_panels_and_tiles_of_columns(panel: int, tile_n: int, rows: int) -> None:
    tiles = Tiles(tile_m=panel, tile_k=K, tile_n=tile_n)
    config = KernelConfig(tiles=tiles, subtile_m=rows, subtile_n=128, pipeline="manual")
    for rhs in (GATE, weights(1, 1), weights(GROUPS, 2)):  # also one scale for all, and one for half of the columns
        out = systolic.grouped_matmul(LHS, rhs, SIZES, implementation=CAREFUL, tiles=config, chip="v6e")
        columns = systolic.Quantized(rhs.values, np.repeat(rhs.scales, N // rhs.scales.shape[2], axis=2))
        np.testing.assert_array_equal(out, product(columns))
    assert not races_found()


@pytest.mark.exhaustive
def test_a_derivative_is_that_of_floats() -> None:
    def loss(lhs: Any, rhs: systolic.Quantized, up: systolic.Quantized) -> Any:
        hidden = systolic.grouped_matmul(lhs, rhs, SIZES, up=up, activation="silu", implementation="xla")
        return (hidden**2).sum()

    def floats(lhs: Any, scales: Any, up_scales: Any) -> Any:
        sides = (side.values.astype(np.float32) * scale for side, scale in ((GATE, scales), (UP, up_scales)))
        return loss(lhs, *sides)

    dx, *ours = jax.grad(loss, (0, 1, 2), allow_int=True)(LHS, GATE, UP)
    expected_dx, *expected = jax.grad(floats, (0, 1, 2))(LHS, GATE.scales, UP.scales)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-5, atol=1e-5 * np.abs(expected_dx).max())
    for side, scales in zip(ours, expected, strict=True):
        np.testing.assert_allclose(side.scales, scales, rtol=1e-4, atol=1e-5 * np.abs(scales).max())


@pytest.mark.exhaustive
def test_other_formats_are_dequantized_first() -> None:
    floats = np.asarray(GATE.dequantize())
    for rhs in (systolic.quantize(floats, "fp4"), systolic.quantize(floats, "int8", block=32)):
        ours, expected = (
            systolic.grouped_matmul(LHS, side, SIZES, implementation="interpret", precision="highest")
            for side in (rhs, rhs.dequantize())
        )
        np.testing.assert_array_equal(ours, expected)
    mixed = systolic.grouped_matmul(LHS, GATE, SIZES, up=UP.dequantize(), implementation="xla")
    np.testing.assert_allclose(mixed, product(GATE) * product(UP), rtol=1e-6)


def test_mistakes_are_named() -> None:
    with pytest.raises(SpecError, match="lhs is int8; next to rhs, which is quantized"):
        systolic.grouped_matmul(LHS.astype(np.int8), GATE, SIZES)
    with pytest.raises(SpecError, match="without quantized matrices"):
        systolic.grouped_matmul(LHS, GATE.dequantize(), SIZES, quantize_lhs="int8")
    with pytest.raises(SpecError, match="up needs the shape"):
        systolic.grouped_matmul(LHS, GATE, SIZES, up=UP.mT)
    with pytest.raises(QuantizationError, match="values are float32"):
        systolic.grouped_matmul(LHS, jax.tree.map(lambda part: part.astype(np.float32), GATE), SIZES)


SCRIPT = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import systolic

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=jax.devices()[:4])
random, sizes = np.random.default_rng(0), np.array((5, 0, 14, 9))
lhs = random.standard_normal((32, 16)).astype(np.float32)
gate, up = (systolic.quantize(random.standard_normal((4, 16, 24)).astype(np.float32), "int8") for _ in range(2))
both = jax.tree.map(lambda *parts: jnp.concatenate(parts, 2), gate, up)
multiply = functools.partial(
    systolic.grouped_matmul, precision="highest", implementation=sys.argv[1], chip="v6e", activation="silu"
)

def put(value, *spec):
    if isinstance(value, systolic.Quantized):
        scale_spec = [None if size == 1 else axis for axis, size in zip(spec, value.scales.shape)]
        return systolic.Quantized(put(value.values, *spec), put(value.scales, *scale_spec))
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))

def fused(lhs, gate, up):
    return multiply(lhs, gate, sizes, up=up)

def side_by_side(lhs, both):
    return multiply(lhs, both, sizes, side_by_side=True)

expected = fused(lhs, gate.dequantize(), up.dequantize())
# Groups and k with a sum; columns; groups with a sum; k with a sum.
pairs = (("x", "y"), ("x", "y")), (("x",), (None, None, "y")), (("x",), ("y",)), ((None, "y"), (None, "y"))
for left, right in pairs if sys.argv[1] == "xla" else pairs[:1]:
    sides = [put(side, *right) for side in (gate, up)]
    for out in (jax.jit(fused)(put(lhs, *left), *sides), jax.jit(side_by_side)(put(lhs, *left), put(both, *right))):
        np.testing.assert_allclose(out, expected, atol=1e-4)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["xla", "interpret"])
def test_each_device_multiplies_its_part(tmp_path: Path, by: str) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, by)
