"""Gated products with quantized weights, against float64 within bounds of both products, and their gradients."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quantized_operands import exact, quantized, rows, scales_of

import systolic
from systolic.compat import interpret_params, races_found
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import SpecError

gated = functools.partial(systolic.gated_matmul, preferred_element_type="float32")
interpreted = functools.partial(gated, implementation="interpret")


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def check(found: Any, left: np.ndarray, weights: list[systolic.Quantized], *, weights_are_scaled: bool = False) -> None:
    """A sum is off by roundings of k float32 additions, and of weights that are multiplied by scales in bfloat16.

    Codes of four bits are up to 8 further from zero before their offset is taken off. silu has slopes up to 1.1.
    """
    sums, errors = [], []
    for q in weights:
        offset = 8 * scales_of(q) if q.dtype.name == "int4" else 0.0
        each = (left.shape[-1] + 8) * 2.0**-23 * (np.abs(exact(q)) + offset)
        each = each + (2 * 2.0**-8 * np.abs(exact(q)) if weights_are_scaled else 0.0)
        sums.append(left @ exact(q))
        errors.append(np.abs(left) @ each)
    (gate, up), (of_gate, of_up) = sums, errors
    allowed = 1.1 * of_gate * (np.abs(up) + of_up) + np.abs(silu(gate)) * of_up
    allowed += 16 * 2.0**-23 * (np.abs(gate) + of_gate) * (np.abs(up) + of_up)
    assert np.all(np.abs(np.asarray(found) - silu(gate) * up) <= allowed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("chip", "name", "block", "row_format", "m", "k", "n"),
    [
        ("v5e", "int4", 128, None, 7, 256, 200),
        ("v6e", "int8", None, None, 16, 160, 128),
        pytest.param("v7x", "e4m3", 64, None, 1, 128, 256, marks=pytest.mark.slow),
        pytest.param("v6e", "fp4", None, None, 40, 128, 100, marks=pytest.mark.slow),
        ("v6e", "int8", None, "int8", 40, 256, 128),
        ("v7x", "e4m3", None, "e4m3", 16, 256, 128),
        pytest.param("v5e", "int4", 128, "int4", 70, 256, 128, marks=pytest.mark.slow),
    ],
)
def test_both_products(chip: str, name: str, block: int | None, row_format: str | None, m: int, k: int, n: int) -> None:
    random = np.random.default_rng(0)
    weights = [quantized(random, (k, n), name, block=block) for _ in range(2)]
    lhs = rows(random, m, k)
    left = np.asarray(lhs).astype(np.float64)
    if row_format:  # rows that are on the grid of their format, whose largest number is among them
        values = quantized(random, (m, k), row_format, axis=-1)
        powers = systolic.Quantized(values.values, jnp.full_like(values.scales, 2.0**-5))
        lhs, left = powers.dequantize(), exact(powers)
        check(interpreted(powers, *weights, chip=chip), left, weights)  # quantized in HBM
    out = interpreted(lhs, *weights, quantize_lhs=row_format, chip=chip)
    check(out, left, weights, weights_are_scaled=row_format is None and block is not None)
    beside = systolic.Quantized(
        *(jnp.concatenate(both, axis=1) for both in zip(*map(jax.tree.leaves, weights), strict=True))
    )
    np.testing.assert_array_equal(interpreted(lhs, beside, quantize_lhs=row_format, chip=chip), np.asarray(out))


def test_xla_computes_the_same() -> None:
    random = np.random.default_rng(1)
    weights = [quantized(random, (96, 40), "int8", block=32) for _ in range(2)]
    lhs = rows(random, 5, 96, dtype="float32")
    with jax.default_matmul_precision("highest"):
        check(gated(lhs, *weights), np.asarray(lhs).astype(np.float64), weights)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("chip", "name", "block", "row_format", "sizes"),
    [
        ("v6e", "int4", None, None, (48, 256, 128, 48, 128)),  # sums of rows, taken off both
        ("v6e", "int4", 64, None, (32, 512, 256, 16, 128)),  # weights are kept for the second subtile of rows
        pytest.param("v6e", "int8", None, "int8", (64, 512, 128, 32, 128), marks=pytest.mark.slow),
        ("v5e", "int8", 128, None, (96, 384, 128, 96, 128)),  # three blocks of a tile
    ],
)
def test_steps_race_with_nothing(
    chip: str, name: str, block: int | None, row_format: str | None, sizes: tuple[int, ...]
) -> None:
    random, k = np.random.default_rng(2), 768 if sizes[1] == 384 else 1024
    tile_m, tile_k, tile_n, subtile_m, subtile_n = sizes
    config = KernelConfig(
        tiles=Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n),
        subtile_m=subtile_m,
        subtile_n=subtile_n,
        pipeline="manual",
    )
    weights = [quantized(random, (k, 256), name, block=block) for _ in range(2)]
    lhs = quantized(random, (96, k), row_format or "int8", axis=-1)
    lhs = systolic.Quantized(lhs.values, jnp.full_like(lhs.scales, 2.0**-6))
    params = interpret_params(detect_races=True, uninitialized_memory="nan")
    out = gated(
        lhs.dequantize("bfloat16"), *weights, quantize_lhs=row_format, implementation=params, chip=chip, tiles=config
    )
    check(out, exact(lhs), weights, weights_are_scaled=row_format is None and block is not None)
    assert not races_found()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("row_format", [None, "int8"])
def test_gradients_go_straight_through(row_format: str | None) -> None:
    random = np.random.default_rng(3)
    gate, up = (quantized(random, (256, 128), "int8") for _ in range(2))
    lhs = rows(random, 8, 256).astype(jnp.float32)
    weights = random.standard_normal((8, 128)).astype(np.float32)

    def ours(lhs: Any, of_gate: Any, of_up: Any) -> Any:
        both = systolic.Quantized(gate.values, of_gate), systolic.Quantized(up.values, of_up)
        return (interpreted(lhs, *both, quantize_lhs=row_format, chip="v6e") * weights).sum()

    def plain(lhs: Any, of_gate: Any, of_up: Any) -> Any:
        its = lhs if row_format is None else systolic.fake_quantize(lhs, row_format, axis=-1)
        left, right = (
            jnp.matmul(its, systolic.Quantized(q.values, scales).dequantize(), precision="highest")
            for q, scales in ((gate, of_gate), (up, of_up))
        )
        return (jax.nn.silu(left) * right * weights).sum()

    found, expected = (jax.grad(loss, (0, 1, 2))(lhs, gate.scales, up.scales) for loss in (ours, plain))
    for one, other in zip(found, expected, strict=True):
        largest = np.abs(np.asarray(other)).max()
        # float32 sums of 256 products, of 8 times 128, and the slope of silu at a sum.
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=2048 * 2.0**-23 * largest)


def test_one_kernel_also_of_a_batch_of_rows() -> None:
    random = np.random.default_rng(4)
    weights = [quantized(random, (128, 128), "int8") for _ in range(2)]
    lhs = rows(random, 3, 5, 128)
    mapped = jax.vmap(lambda lhs: interpreted(lhs, *weights, chip="v6e"))
    expected = np.asarray(interpreted(lhs.reshape(15, 128), *weights, chip="v6e"))
    np.testing.assert_array_equal(np.asarray(mapped(lhs)).reshape(15, 128), expected)
    assert str(jax.make_jaxpr(mapped)(lhs)).count("name=systolic_quantized_gated_int8_128_15_128_128") == 1
    stacks = [jax.tree.map(lambda *each: jnp.stack(each), *[q] * 3) for q in weights]
    np.testing.assert_array_equal(np.asarray(interpreted(lhs, *stacks, chip="v6e")).reshape(15, 128), expected)


@pytest.mark.exhaustive
def test_weights_that_do_not_go_together() -> None:
    lhs = np.ones((2, 64), np.float32)
    x = np.ones((64, 6), np.float32)
    q, blocks, other = systolic.quantize(x), systolic.quantize(x, block=32), systolic.quantize(x, "int4")
    for gate, up, said in ((q, blocks, r"scales \(\[2, 6\]"), (q, other, "int4"), (q, x, "float32"), (x, q, "int8")):
        with pytest.raises(SpecError, match=said):
            systolic.gated_matmul(lhs, gate, up)
    with pytest.raises(SpecError, match="even"):
        systolic.gated_matmul(lhs, systolic.quantize(x[:, :5]))
    with pytest.raises(SpecError, match="precision"):
        systolic.gated_matmul(lhs, q, q, precision="highest")
