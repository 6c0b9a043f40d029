"""`systolic.linear_cross_entropy` in TPU interpret mode against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from loss_reference import UNIT, Reference, assert_near

import systolic
from systolic.chips import chip
from systolic.ops.cross_entropy.loss import Loss
from systolic.ops.cross_entropy.pallas import gradients_by_pallas, statistics_by_pallas
from systolic.ops.cross_entropy.schedule import LossSchedule
from systolic.ops.engine.backend import Backend
from systolic.schedule import KernelConfig, Tiles

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", num_cores_or_threads=1)


def operands(m: int, k: int, n: int, dtype: Any = jnp.float32, logits: float = 4.0) -> tuple[Any, Any, Any]:
    """Return x, w and labels, some of them ignored; logits have about this standard deviation."""
    random = np.random.default_rng([m, k, n])
    x = jnp.asarray(random.normal(size=(m, k)) * logits / np.sqrt(k), dtype)
    w = jnp.asarray(random.normal(size=(k, n)), dtype)
    labels = jnp.asarray(np.where(random.random(m) < 0.2, -1, random.integers(0, n, m)), jnp.int32)
    return x, w, labels


def config(*tiles: int, subtile: tuple[int, int]) -> KernelConfig:
    tile_m, tile_k, tile_n = tiles
    whole = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    return KernelConfig(tiles=whole, subtile_m=subtile[0], subtile_n=subtile[1])


def loss(
    tiles: KernelConfig | None = None, soft_cap: float | None = None, total: bool = True, name: str = "v6e"
) -> Loss:
    backend = Backend(implementation=CAREFUL, chip=chip(name), tiles=tiles)
    return Loss(backend=backend, precision="highest", soft_cap=soft_cap, total=total)


# Sizes and tiles: one tile; subtiles in both directions; a vocabulary that ends in a register; k of several slices with
# rows between whose products the elementwise work is spread.
CASES = [
    pytest.param((40, 128, 256), config(48, 128, 256, subtile=(48, 256)), id="one tile"),
    pytest.param((96, 256, 700), config(32, 256, 256, subtile=(16, 128)), id="subtiles, ragged"),
    pytest.param((70, 640, 513), config(64, 640, 128, subtile=(64, 128)), id="spread work, ragged"),
    pytest.param((30, 200, 390), config(16, 200, 128, subtile=(16, 128)), id="k in no whole registers"),
]
# One step; several tiles of rows with a vocabulary that ends in a register; parts of the features, the last of which is
# shorter and ends in a register; one tile of the vocabulary for several tiles of rows.
GRADIENTS = [
    pytest.param((40, 128, 256), config(48, 128, 256, subtile=(48, 256)), id="one step"),
    pytest.param((70, 256, 520), config(32, 256, 256, subtile=(32, 256)), id="tiles, ragged"),
    pytest.param((70, 700, 250), config(64, 512, 128, subtile=(64, 128)), id="parts, ragged"),
    pytest.param((30, 300, 190), config(16, 128, 256, subtile=(16, 256)), id="one tile of the vocabulary"),
]


@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize(("sizes", "tiles"), CASES)
def test_statistics(sizes: tuple[int, int, int], tiles: KernelConfig, soft_cap: float | None) -> None:
    x, w, labels = operands(*sizes)
    lse, picked, total = statistics_by_pallas(loss(tiles, soft_cap), False, x, w, labels)
    reference = Reference.of(x, w, labels, soft_cap)
    assert_near(lse, reference.lse, reference.lse_error)
    assert_near(picked, reference.picked, reference.at_label(reference.logit_error))
    sums = sizes[2] * UNIT * np.abs(reference.logits).sum(1) + reference.logit_error.sum(1)
    assert_near(total, reference.logits.sum(1), sums)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("soft_cap", "name"), [(None, "v6e"), (5.0, "v6e"), (None, "v5p")])
@pytest.mark.parametrize(("sizes", "tiles"), GRADIENTS)
def test_gradients(sizes: tuple[int, int, int], tiles: KernelConfig, soft_cap: float | None, name: str) -> None:
    x, w, labels = operands(*sizes)
    reference = Reference.of(x, w, labels, soft_cap)
    random = np.random.default_rng(1)
    cotangents: Any = tuple(jnp.asarray(random.normal(size=sizes[0]), jnp.float32) for _ in range(3))
    dx, dw = gradients_by_pallas(
        loss(tiles, soft_cap, name=name), x, w, labels, jnp.asarray(reference.lse, jnp.float32), cotangents
    )
    wanted_dx, dx_error, wanted_dw, dw_error = reference.gradients(*cotangents, unit=UNIT)
    assert_near(dx, wanted_dx, dx_error)
    assert_near(dw, wanted_dw, dw_error)


@pytest.mark.parametrize("kept", [False, True], ids=["recompute", "keep"])
@pytest.mark.parametrize("alternates", [False, True])
def test_gradients_where_rows_pass_through_vmem_in_parts(
    kept: bool, alternates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large weights on v7x do so, and long stretches of code with kept logits do not alternate."""
    made = LossSchedule.of

    def small(*given: Any) -> LossSchedule:
        return replace(made(*given), streams_x=True, alternates=alternates, adds_in_units=alternates)

    monkeypatch.setattr(LossSchedule, "of", small)
    x, w, labels = operands(30, 300, 190)
    logits = [jnp.asarray(np.asarray(x @ w), jnp.float32)] if kept else []
    reference = Reference.of_logits(x, w, labels, logits[0], None) if kept else Reference.of(x, w, labels, None)
    cotangents: Any = tuple(jnp.asarray(np.random.default_rng(1).normal(size=30), jnp.float32) for _ in range(3))
    tiles = config(16, 128, 128, subtile=(16, 128))
    lse = jnp.asarray(reference.lse, jnp.float32)
    dx, dw = gradients_by_pallas(loss(tiles), x, w, labels, lse, cotangents, *logits)
    wanted_dx, dx_error, wanted_dw, dw_error = reference.gradients(*cotangents, unit=UNIT)
    assert_near(dx, wanted_dx, dx_error)
    assert_near(dw, wanted_dw, dw_error)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("sizes", "tiles"), CASES)
def test_kept_logits_are_rounded_products_and_the_statistics_are_theirs(
    sizes: tuple[int, int, int], tiles: KernelConfig, dtype: str
) -> None:
    x, w, labels = operands(*sizes, dtype)
    lse, picked, _, logits = statistics_by_pallas(loss(tiles, 5.0), True, x, w, labels)
    products = Reference.of(x, w, labels)
    assert logits.dtype == dtype
    assert_near(logits, products.logits, products.kept_error(dtype))
    kept = Reference.of_logits(x, w, labels, logits, 5.0)
    assert_near(lse, kept.lse, kept.lse_error)
    assert_near(picked, kept.picked, kept.at_label(kept.logit_error))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("soft_cap", "name"), [(None, "v6e"), (5.0, "v6e"), (None, "v5p")])
@pytest.mark.parametrize(("sizes", "tiles"), GRADIENTS)
def test_gradients_from_kept_logits(
    sizes: tuple[int, int, int], tiles: KernelConfig, soft_cap: float | None, name: str
) -> None:
    x, w, labels = operands(*sizes)
    logits = jnp.asarray(np.asarray(x @ w), jnp.float32)
    reference = Reference.of_logits(x, w, labels, logits, soft_cap)
    random = np.random.default_rng(1)
    cotangents: Any = tuple(jnp.asarray(random.normal(size=sizes[0]), jnp.float32) for _ in range(3))
    lse = jnp.asarray(reference.lse, jnp.float32)
    dx, dw = gradients_by_pallas(loss(tiles, soft_cap, name=name), x, w, labels, lse, cotangents, logits)
    wanted_dx, dx_error, wanted_dw, dw_error = reference.gradients(*cotangents, unit=UNIT)
    assert_near(dx, wanted_dx, dx_error)
    assert_near(dw, wanted_dw, dw_error)


def value_and_gradients(x: Any, w: Any, labels: Any, **options: Any) -> tuple[Any, tuple[Any, Any]]:
    def total(x: Any, w: Any) -> Any:
        return systolic.linear_cross_entropy(
            x, w, labels, ignore_index=-1, reduction="sum", implementation=CAREFUL, **options
        )

    return jax.value_and_grad(total, argnums=(0, 1))(x, w)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("logits", ["recompute", "keep"])
@pytest.mark.parametrize("m", [1, 50])
def test_bfloat16(m: int, logits: Any) -> None:
    x, w, labels = operands(m, 256, 300, jnp.bfloat16)
    value, (dx, dw) = value_and_gradients(x, w, labels, logits=logits)
    reference = Reference.of(x, w, labels)
    if logits == "keep":
        reference = replace(reference, logit_error=reference.kept_error("bfloat16"))
    counted = np.asarray(labels) >= 0
    losses = np.where(counted, reference.lse - reference.picked, 0)
    error = np.where(counted, reference.lse_error + reference.at_label(reference.logit_error), 0)
    assert_near(value, losses.sum(), error.sum() + (m + 1) * UNIT * np.abs(losses).sum())
    shares = counted.astype(float)
    wanted_dx, dx_error, wanted_dw, dw_error = reference.gradients(shares, -shares, 0 * shares, unit=2.0**-8)
    assert dx.dtype == dw.dtype == jnp.bfloat16
    assert_near(dx, wanted_dx, dx_error)
    assert_near(dw, wanted_dw, dw_error)


def test_logits_of_eighty() -> None:
    """Exponentials of such logits are beyond float32 unless a maximum is subtracted."""
    x, w, labels = operands(33, 128, 400, logits=40.0)
    reference = Reference.of(x, w, labels)
    assert reference.logits.max() > 80
    assert reference.logits.min() < -80
    value, (dx, dw) = value_and_gradients(x, w, labels, precision="highest")
    counted = np.asarray(labels) >= 0
    losses = np.where(counted, reference.lse - reference.picked, 0)
    error = reference.lse_error + reference.at_label(reference.logit_error)
    assert_near(value, losses.sum(), error.sum() + 34 * UNIT * np.abs(losses).sum())
    shares = counted.astype(float)
    wanted_dx, dx_error, wanted_dw, dw_error = reference.gradients(shares, -shares, 0 * shares, unit=UNIT)
    assert_near(dx, wanted_dx, dx_error)
    assert_near(dw, wanted_dw, dw_error)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_all_labels_ignored(reduction: Any) -> None:
    x, w, _ = operands(20, 128, 130)
    labels = jnp.full(20, -100, jnp.int32)

    def total(x: Any, w: Any) -> Any:
        return systolic.linear_cross_entropy(x, w, labels, reduction=reduction, implementation=CAREFUL).sum()

    value, gradients = jax.value_and_grad(total, argnums=(0, 1))(x, w)
    assert value == 0
    assert all((np.asarray(gradient) == 0).all() for gradient in gradients)


@pytest.mark.exhaustive
def test_vmap_over_tokens_and_over_weights() -> None:
    x, w, labels = operands(24, 128, 260)
    x, labels = x.reshape(2, 12, 128), labels.reshape(2, 12)
    weights = jnp.stack([w, 2 * w])

    def value(x: Any, w: Any, labels: Any) -> Any:
        return systolic.linear_cross_entropy(
            x, w, labels, ignore_index=-1, precision="highest", implementation="interpret"
        )

    gradient = jax.grad(value, argnums=(0, 1))
    for axes, given in (((0, None, 0), (x, w, labels)), ((0, 0, 0), (x, weights, labels))):
        batched = jax.jit(jax.vmap(jax.checkpoint(gradient), axes))(*given)
        for number in range(2):
            one = [array if axis is None else array[number] for array, axis in zip(given, axes, strict=True)]
            for of_batch, alone in zip(batched, gradient(*one), strict=True):
                np.testing.assert_allclose(of_batch[number], alone, rtol=0, atol=1e-6)
