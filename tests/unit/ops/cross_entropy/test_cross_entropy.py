"""`systolic.linear_cross_entropy` by XLA on a CPU: what its options mean, and what it refuses."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_reference import UNIT, Reference, assert_near

import systolic
from systolic.chips import chip
from systolic.ops.cross_entropy import xla
from systolic.ops.cross_entropy.cost import configs
from systolic.ops.cross_entropy.schedule import LossSchedule, stretch_cycles
from systolic.ops.cross_entropy.spec import CrossEntropySpec
from systolic.ops.op import op_of, read_spec, record_of
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.spec import SpecError

M, K, N = 30, 16, 50
RANDOM = np.random.default_rng(0)
X, W = (jnp.asarray(RANDOM.normal(size=shape), jnp.float32) for shape in ((M, K), (K, N)))
LABELS = np.where(RANDOM.random(M) < 0.3, -100, RANDOM.integers(0, N, M))
WEIGHTS = RANDOM.random(M).astype(np.float32)


def loss(**options: Any) -> Any:
    return systolic.linear_cross_entropy(X, W, LABELS, implementation="xla", precision="highest", **options)


def reference(smoothing: float = 0.0, z_loss: float = 0.0, soft_cap: float | None = None) -> tuple[Any, Any]:
    """Return the loss of each token, 0 if it is ignored, and its bound."""
    logits = Reference.of(X, W, np.where(LABELS < 0, -1, LABELS), soft_cap)
    lse = logits.lse
    losses = lse - (1 - smoothing) * logits.picked - smoothing * logits.logits.mean(1) + z_loss * lse**2
    error = logits.lse_error * (1 + 2 * z_loss * np.abs(lse)) + logits.logit_error.max(1)
    error = error + 8 * UNIT * (np.abs(lse) + np.abs(logits.logits).max(1) + z_loss * lse**2)
    return np.where(LABELS < 0, 0, losses), error


@pytest.mark.parametrize(
    "options",
    [{}, {"smoothing": 0.1}, {"z_loss": 1e-2}, {"soft_cap": 3.0}, {"smoothing": 0.3, "z_loss": 0.1, "soft_cap": 2.0}],
    ids=str,
)
def test_losses_of_tokens(options: dict[str, float]) -> None:
    wanted, error = reference(**options)
    keywords = {"label_smoothing" if name == "smoothing" else name: value for name, value in options.items()}
    assert_near(loss(reduction="none", **keywords), wanted, error)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_reductions(weights: Any) -> None:
    losses, error = reference()
    shares = (LABELS >= 0) * (1.0 if weights is None else weights.astype(np.float64))
    total, bound = (losses * shares).sum(), (error * shares).sum() + 2 * M * UNIT * np.abs(losses * shares).sum()
    assert_near(loss(weights=weights, reduction="sum"), np.asarray(total), bound)
    mean = total / shares.sum()
    assert_near(loss(weights=weights), np.asarray(mean), bound / shares.sum() + 2 * M * UNIT * abs(mean))


@pytest.mark.exhaustive
def test_gradients_in_chunks_are_those_of_plain_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "_CHUNK_BYTES", 4 * N * 8)  # 8 of 30 tokens at once: the last chunk is shorter
    options: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 0.01, "soft_cap": 3.0, "weights": WEIGHTS}

    def plain(x: Any, w: Any, weights: Any) -> Any:
        logits = 3.0 * jnp.tanh(jnp.matmul(x, w, precision="highest") / 3.0)
        lse = jax.nn.logsumexp(logits, axis=1)
        picked = jnp.take_along_axis(logits, jnp.maximum(LABELS, 0)[:, None], 1)[:, 0]
        shares = jnp.where(LABELS < 0, 0, weights)
        losses = lse - 0.9 * picked - 0.1 * logits.mean(1) + 0.01 * lse**2
        return (losses * shares).sum() / shares.sum()

    def ours(x: Any, w: Any, weights: Any) -> Any:
        return systolic.linear_cross_entropy(
            x, w, LABELS, implementation="xla", precision="highest", **{**options, "weights": weights}
        )

    for one, other in zip(
        jax.grad(ours, argnums=(0, 1, 2))(X, W, WEIGHTS), jax.grad(plain, argnums=(0, 1, 2))(X, W, WEIGHTS), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


def kept_shapes(logits: Any) -> list[tuple[int, ...]]:
    """Return the shapes of what the loss leaves in memory for its gradients."""
    _, pull = jax.vjp(
        lambda x, w: systolic.linear_cross_entropy(x, w, LABELS, logits=logits, implementation="xla"), X, W
    )
    return [leaf.shape for leaf in jax.tree.leaves(pull)]


def test_logits_stay_in_memory_up_to_the_bytes_that_the_caller_allows() -> None:
    size = M * N * 4
    for logits, are_kept in (("recompute", False), ("keep", True), (size - 1, False), (size, True)):
        assert ((M, N) in kept_shapes(logits)) is are_kept


@pytest.mark.exhaustive
def test_gradients_of_kept_logits_are_those_of_logits_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "_CHUNK_BYTES", 4 * N * 8)  # 8 of 30 tokens at once: the last chunk is shorter

    def value(logits: Any, x: Any, w: Any) -> Any:
        return systolic.linear_cross_entropy(
            x, w, LABELS, soft_cap=3.0, label_smoothing=0.1, logits=logits, implementation="xla", precision="highest"
        )

    # Logits of float32 are kept as they are.
    kept, again = (jax.grad(functools.partial(value, form), argnums=(0, 1))(X, W) for form in ("keep", "recompute"))
    batched = jax.vmap(jax.grad(functools.partial(value, "keep"), argnums=(0, 1)), (0, None))(jnp.stack([X, X]), W)
    for one, two, other in zip(kept, batched, again, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())
        np.testing.assert_allclose(two[1], other, rtol=0, atol=2e-6 * np.abs(other).max())


def test_tokamax_has_no_soft_cap_to_race() -> None:
    spec = CrossEntropySpec(m=8, k=128, n=256, dtype="bfloat16", soft_cap=True)
    (peer,) = op_of(spec).peers(spec, chip("v6e"))
    assert peer.program is None
    assert "soft cap" in peer.reason


def test_float8_is_multiplied_in_bfloat16() -> None:
    """Every product of two such numbers is exact, and the sums are float32."""
    x, w = (array.astype(jnp.float8_e4m3fn) for array in (X, W))
    labels = np.maximum(LABELS, 0)
    wanted = Reference.of(x.astype(jnp.float32), w.astype(jnp.float32), labels)
    losses, pull = jax.vjp(
        lambda x, w: systolic.linear_cross_entropy(x, w, labels, reduction="none", implementation="xla"), x, w
    )
    assert [gradient.dtype for gradient in pull(losses)] == [x.dtype, w.dtype]
    error = wanted.lse_error + wanted.logit_error.max(1) + 4 * UNIT * np.abs(wanted.lse)
    assert_near(losses, wanted.lse - wanted.picked, error)


def test_leading_dimensions_are_tokens() -> None:
    x, labels = X.reshape(5, 6, K), LABELS.reshape(5, 6)
    losses = systolic.linear_cross_entropy(x, W, labels, reduction="none", implementation="xla", precision="highest")
    np.testing.assert_array_equal(losses, np.asarray(loss(reduction="none")).reshape(5, 6))


@pytest.mark.parametrize("label", [-1, N, 2**31 - 1])
def test_a_label_that_is_no_column_is_nan(label: int) -> None:
    losses = systolic.linear_cross_entropy(X[:2], W, np.array([3, label]), reduction="none", implementation="xla")
    assert list(np.isnan(losses)) == [False, True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": X[:, :5]}, "has 5 features"),
        ({"w": W[0]}, "has to be a matrix"),
        ({"w": W.astype(jnp.int8)}, "w is int8"),
        ({"labels": LABELS[:3]}, r"use \[30\]"),
        ({"labels": WEIGHTS}, "labels are float32"),
        ({"weights": WEIGHTS[:3]}, "do not broadcast"),
        ({"reduction": "average"}, "reduction="),
        ({"label_smoothing": 1.5}, "a number from 0 to 1"),
        ({"label_smoothing": float("nan")}, "a number from 0 to 1"),
        ({"z_loss": -1}, "a number from 0 on"),
        ({"soft_cap": 0}, "a number above 0"),
        ({"ignore_index": 1.5}, "an integer"),
        ({"logits": "store"}, 'use "recompute" or "keep"'),
        ({"logits": True}, "bytes that they may take"),
        ({"logits": -1}, "bytes that they may take"),
        ({"implementation": "mosaic"}, "implementation="),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"x": X, "w": W, "labels": LABELS, **changes}
    with pytest.raises(SpecError, match=words):
        systolic.linear_cross_entropy(**given)


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "v7x"])
@pytest.mark.parametrize("keep_logits", [False, True], ids=["recompute", "keep"])
@pytest.mark.parametrize("kind", ["forward", "gradients"])
@pytest.mark.parametrize("sizes", [(1, 64, 10), (8192, 4096, 128_256), (1000, 2880, 201_088), (4096, 8192, 151_936)])
def test_every_planned_configuration_is_legal(
    name: str, kind: Any, keep_logits: bool, sizes: tuple[int, int, int]
) -> None:
    m, k, n = sizes
    spec = CrossEntropySpec(m=m, k=k, n=n, dtype="bfloat16", kind=kind, keep_logits=keep_logits)
    plan = systolic.plan(spec, name)
    schedule = LossSchedule.of(spec, plan.config, chip(name))
    assert schedule.grid[0] * plan.config.tiles.tile_m >= m
    assert (schedule.grid[1] - 1) * plan.config.tiles.tile_n < n <= schedule.grid[1] * plan.config.tiles.tile_n
    assert plan.vmem_limit_bytes <= chip(name).usable_vmem_bytes_per_core


def test_a_spec_survives_its_record() -> None:
    spec = CrossEntropySpec(m=8, k=16, n=128, dtype="float32", kind="gradients", soft_cap=True)
    record = record_of(spec)
    assert read_spec(record["op"], record["spec"]) == spec


@pytest.mark.parametrize(
    ("kind", "tiles", "subtile", "rule"),
    [
        ("gradients", (24, 128, 128), (24, 128), "tile-alignment"),
        ("gradients", (64, 64, 128), (64, 128), "tile-alignment"),
        ("gradients", (64, 256, 128), (64, 128), "tile-within-matrix"),
        ("forward", (64, 64, 128), (64, 128), "tile-depth"),
        ("gradients", (64, 128, 100), (64, 100), "tile-alignment"),
        ("gradients", (128, 128, 128), (128, 128), "tile-within-matrix"),
        ("gradients", (32, 128, 256), (32, 256), "dw-in-order"),
        ("gradients", (64, 128, 256), (32, 256), "one-stretch"),
    ],
)
def test_illegal_tiles(kind: Any, tiles: tuple[int, int, int], subtile: tuple[int, int], rule: str) -> None:
    spec = CrossEntropySpec(m=64, k=128, n=512, dtype="bfloat16", kind=kind)
    tile_m, tile_k, tile_n = tiles
    whole = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    config = KernelConfig(tiles=whole, subtile_m=subtile[0], subtile_n=subtile[1])
    with pytest.raises(IllegalTilesError) as raised:
        LossSchedule.of(spec, config, chip("v6e"))
    assert rule in {violation.rule for violation in raised.value.violations}


def test_the_first_configuration_is_the_fastest_by_the_model() -> None:
    spec = CrossEntropySpec(m=4096, k=4096, n=128_256, dtype="bfloat16")
    times = [candidate.modelled.time_us for candidate in configs(spec, chip("v6e"))]
    assert times == sorted(times)


def test_the_forward_kernel_needs_no_padded_weights() -> None:
    spec = CrossEntropySpec(m=2048, k=2880, n=201_088, dtype="bfloat16")  # gpt-oss: k in 22.5 registers
    assert LossSchedule.of(spec, systolic.plan(spec, "v6e").config, chip("v6e")).depth == 2880


@pytest.mark.parametrize(("k", "n"), [(4096, 151_936), (2880, 201_088), (2560, 262_144), (8192, 128_256)])
@pytest.mark.parametrize("keep_logits", [False, True])
def test_parts_of_gradients_fill_matrix_units_and_are_short_enough_to_fetch(k: int, n: int, keep_logits: bool) -> None:
    v6e = chip("v6e")
    spec = CrossEntropySpec(m=2048, k=k, n=n, dtype="bfloat16", kind="gradients", keep_logits=keep_logits)
    tiles = configs(spec, v6e)[0].config.tiles
    assert tiles.tile_k % 256 == 0
    cycles = spec.products * stretch_cycles(spec, tiles.tile_m, tiles.tile_n, tiles.tile_k, v6e)
    assert cycles <= 16_384


@pytest.mark.parametrize("keep_logits", [False, True])
@pytest.mark.parametrize("k", [2560, 2880, 4096, 8192])
def test_tiles_of_gradients_fill_matrix_units_of_v7x(k: int, keep_logits: bool) -> None:
    spec = CrossEntropySpec(m=2048, k=k, n=128_256, dtype="bfloat16", kind="gradients", keep_logits=keep_logits)
    assert configs(spec, chip("v7x"))[0].config.tiles.tile_n >= 256


def test_rows_pass_through_vmem_in_parts_where_there_is_no_room_for_their_features() -> None:
    schedules = {}
    for name in ("v6e", "v7x"):
        spec = CrossEntropySpec(m=2048, k=8192, n=128_256, dtype="bfloat16", kind="gradients")
        schedules[name] = LossSchedule.of(spec, configs(spec, chip(name))[0].config, chip(name))
    assert [schedules[name].streams_x for name in ("v6e", "v7x")] == [False, True]
    resident = replace(schedules["v7x"], streams_x=False)
    assert schedules["v7x"].hbm_bytes > resident.hbm_bytes
