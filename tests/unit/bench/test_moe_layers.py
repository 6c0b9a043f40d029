"""The suite of whole layers of experts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jax
import pytest
from virtual_devices import run_on_virtual_devices

from systolic.bench import moe_layer_programs
from systolic.bench.moe_layers import layers_on_slice
from systolic.bench.suites import suite
from systolic.chips import SliceError, chip
from systolic.spec import SliceMesh


def test_layers_count_weights_once_and_the_products_of_every_choice() -> None:
    cases = suite("moe-layer")
    few, many = "layer of few tokens", "layer of many tokens"
    quantized = {"int8": 1, "e4m3": 1, "e4m3/128x128": 2, "int4/128": 1, "w8a8": 1}
    formats = {f"{name} {group}": models * 2 for name, models in quantized.items() for group in (few, many)}
    assert Counter(case.group for case in cases) == {few: 10, many: 11, "layer and gradients": 2, **formats}
    layer = next(case.spec for case in cases if case.name == "qwen3-30b layer 2048")
    assert layer.flops == 2048 * 8 * 3 * 2 * 2048 * 768
    experts, other_bytes = 3 * 128 * 2048 * 768, 2 * 2 * 2048 * 2048 + 4 * 2048 * 128
    assert layer.least_hbm_bytes == 2 * experts + other_bytes
    gradients = next(case.spec for case in cases if case.name == "qwen3-30b layer and gradients 2048")
    assert gradients.flops == 3 * layer.flops
    assert gradients.least_hbm_bytes == 3 * (2 * experts + 4 * 2048 * 128) + 5 * 2 * 2048 * 2048
    int8 = next(case.spec for case in cases if case.name == "qwen3-30b int8 layer 2048")
    assert int8.least_hbm_bytes == experts + other_bytes + 4 * 128 * (2 * 768 + 2048)
    squares = next(case.spec for case in cases if case.name == "qwen3-30b e4m3/128x128 layer 2048")
    assert squares.least_hbm_bytes == experts + other_bytes + 4 * experts // 128**2


@pytest.mark.exhaustive
def test_both_programs_return_a_row_for_each_token() -> None:
    for case in suite("moe-layer")[::4]:  # each model once
        raced = moe_layer_programs.raced(case.spec, chip("v6e"))
        assert raced.arguments[-1].sum() == case.spec.m * case.spec.top_k
        for fn in (raced.ours, raced.xla, *raced.xla_forms.values()):
            assert jax.eval_shape(fn, *raced.arguments).shape == (case.spec.m, case.spec.k)


def test_devices_share_experts_and_tokens() -> None:
    cases = [case for case in suite("moe-layer") if case.name == "qwen3-235b layer 4096"]
    (case,) = layers_on_slice(cases, "2x4", {"expert": 8})
    assert case.spec.flops * 8 == cases[0].spec.flops
    assert case.spec.least_hbm_bytes * 8 == cases[0].spec.least_hbm_bytes
    assert case.contest.mesh(case.spec) == SliceMesh.of("2x4", expert=8)
    raced = case.contest.raced(case.spec, chip("v6e"))
    assert raced.arguments[-1].shape == (16,)
    assert raced.arguments[-1].sum() >= 4096  # of the device with the most rows


def test_public_kernels_race_or_say_why_not() -> None:
    cases = [case for case in suite("moe-layer") if case.name == "qwen3-235b layer 4096"]
    (case,) = layers_on_slice(cases, "2x4", {"expert": 8})
    peers = {peer.name: peer for peer in case.contest.peers(case.spec, chip("v6e"))}
    alone = list(cases[0].contest.peers(cases[0].spec, chip("v6e")))
    assert [peer.name for peer in alone] == ["megablox", "megablox, whole k", "tokamax v2"]
    assert all((peer.program is None) == bool(peer.reason) for peer in (*alone, *peers.values()))
    # The router's logits are known: by them kernels decide what to send.
    shapes = {
        name: [*(one.shape for one in arrays), router.value.shape]
        for name, peer in peers.items()
        for *arrays, router in [list(peer.arguments or ())]
    }
    tokens, down, logits = (4096, 4096), (128, 1536, 4096), (4096, 128)
    assert shapes == {
        "tpu-inference": [tokens, (128, 2, 4096, 1536), down, logits],
        "tokamax": [tokens, (128, 4096, 3072), down, logits],
    }
    quantized = next(case for case in suite("moe-layer") if case.spec.dtype_rhs)
    assert not list(quantized.contest.peers(quantized.spec, chip("v6e")))


@pytest.mark.parametrize(
    ("name", "mesh", "reason"),
    [
        ("qwen3-30b layer", {"model": 8}, "expert, not model=8"),
        ("qwen3-30b layer", {"expert": 1}, "several devices"),
        ("qwen3-30b int8", {"expert": 8}, "runs on one device"),
        ("and gradients", {"expert": 8}, "runs on one device"),
    ],
)
def test_meshes_that_do_not_suit(name: str, mesh: dict[str, int], reason: str) -> None:
    cases = [case for case in suite("moe-layer") if name in case.name]
    with pytest.raises(SliceError, match=reason):
        layers_on_slice(cases, "2x4", mesh)


SCRIPT = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType
from systolic.bench import moe_device_programs as programs
from systolic.bench.moe_layer_programs import plain

mesh = jax.make_mesh((4,), ("expert",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
random, tokens, experts = np.random.default_rng(0), 32, 8
x = random.standard_normal((tokens, 16)).astype(np.float32)
weights = [random.standard_normal((experts, *shape)).astype(np.float32) / 4 for shape in ((16, 24), (16, 24), (24, 16))]
# Each expert gets as many tokens.
ids = (np.arange(tokens)[:, None] + np.array([0, 3])) % experts
logits = random.random((tokens, experts)).astype(np.float32)
np.put_along_axis(logits, ids, 2 + random.random(ids.shape).astype(np.float32), axis=1)
rows = tokens * 2 // experts
expected = plain(2, False, x, logits, *weights, np.full(experts, rows, np.int32))
with jax.set_mesh(mesh):
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("expert"))
    arrays = [jax.device_put(array, cut) for array in (x, logits, *weights)]
    for sums in ("gathered", "scattered"):
        layer = functools.partial(programs.plain, 2, 2 * rows, sums)
        out = jax.jit(functools.partial(programs.over_devices, layer))(*arrays, np.full(2, rows, np.int32))
        np.testing.assert_allclose(out, expected, atol=1e-4)
"""


@pytest.mark.exhaustive
def test_both_forms_over_devices_are_right(tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path)
