"""The suite of whole layers of experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import pytest
from virtual_devices import run_on_virtual_devices

from systolic.bench import moe_layer_programs
from systolic.bench.moe_layers import layers_on_slice
from systolic.bench.race import race
from systolic.bench.suites import suite
from systolic.chips import SliceError, chip
from systolic.spec import SliceMesh
from systolic.timing import Measurement
from systolic.timing.experiment import Experiment
from systolic.timing.opponent import MORE_VMEM_FLAGS
from systolic.timing.outcome import Outcome


def test_layers_count_weights_once_and_the_products_of_every_choice() -> None:
    cases = suite("moe-layer")
    few, many = "layer of few tokens", "layer of many tokens"
    quantized = {"int8": 1, "e4m3": 1, "e4m3/128x128": 2, "int4/128": 1, "w8a8": 1}
    formats = Counter({f"{name} {group}": models * 2 for name, models in quantized.items() for group in (few, many)})
    formats.update({f"{name} {many}": 2 for name in ("int8", "e4m3/128x128")})  # with many tokens, for a slice
    assert Counter(case.group for case in cases) == {few: 14, many: 16, "layer and gradients": 2, **formats}
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


@pytest.mark.parametrize(
    ("name", "scales", "forms"),
    [
        ("mixtral-8x7b w8a8 layer 2048", (8, 1, 14336), ["scales of sums", "scales of matrices", "quantized rows"]),
        ("qwen3-235b int8 layer 1024", (128, 1, 1536), ["scales of sums", "scales of matrices"]),
        ("qwen3-235b e4m3/128x128 layer 4096", (128, 32, 12), ["scales of matrices"]),
    ],
)
def test_devices_share_quantized_experts_and_their_scales(name: str, scales: tuple[int, ...], forms: list[str]) -> None:
    (case,) = layers_on_slice([case for case in suite("moe-layer") if case.name == name], "2x4", {"expert": 8})
    raced = case.contest.raced(case.spec, chip("v6e"))
    *arrays, sizes = raced.arguments
    assert [array.dtype.name for array in arrays[2:]] == [case.spec.dtype_rhs] * 3 + ["float32"] * 3
    assert arrays[5].shape == scales
    assert len(sizes) * 8 == case.spec.experts
    assert list(raced.xla_forms) == forms[1:]
    assert raced.shardings is not None
    assert len(raced.shardings.arguments) == len(raced.arguments)
    assert not list(case.contest.peers(case.spec, chip("v6e")))


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
        ("and gradients", {"expert": 8}, "gradients 2048 runs on one device: leave --topology and --mesh out"),
    ],
)
def test_meshes_that_do_not_suit(name: str, mesh: dict[str, int], reason: str) -> None:
    cases = [case for case in suite("moe-layer") if name in case.name]
    with pytest.raises(SliceError, match=reason):
        layers_on_slice(cases, "2x4", mesh)


class TimesByLabel:
    """A runner whose programs take one time, except those with texts in their labels."""

    def __init__(self, times_us: dict[str, float]) -> None:
        self.times_us = times_us
        self.labels: list[str] = []

    def run(self, experiments: Iterable[Experiment]) -> list[Outcome]:
        return [self._outcome(experiment.label) for experiment in experiments]

    def _outcome(self, label: str) -> Outcome:
        self.labels.append(label)
        time_us = next((time for text, time in self.times_us.items() if label.endswith(text)), 9.0)
        return Outcome(label=label, measurement=Measurement(chip="v6e", provenance="simulated", time_us=time_us))


@pytest.mark.exhaustive
def test_every_form_on_a_slice_is_raced_with_more_vmem_too() -> None:
    cases = [case for case in suite("moe-layer") if case.name == "qwen3-235b int8 layer 1024"]
    form = "scales of matrices"
    runner: Any = TimesByLabel({f"flagged xla: {form}": 6.0, f"xla: {form}": 7.0})
    (row,) = race(layers_on_slice(cases, "2x4", {"expert": 8}), [chip("v6e")], runner)
    racers = ("ours", "ours, flagged", "xla", "flagged xla", f"xla: {form}", f"flagged xla: {form}")
    assert runner.labels == [f"v6e {cases[0].name} {racer}" for racer in racers]
    assert (row.xla.time_us, row.xla.without_flags_us) == (6.0, 7.0)
    assert (row.xla.form, row.xla.flags) == (form, MORE_VMEM_FLAGS)
    runner = TimesByLabel({})
    (row,) = race(cases, [chip("v6e")], runner, against="xla")
    assert runner.labels == [f"v6e {cases[0].name} {racer}" for racer in ("ours", "xla", "flagged xla", f"xla: {form}")]
    assert (row.xla.time_us, row.xla.form, row.xla.flags) == (9.0, "", {})


SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from systolic import Quantized
from systolic.bench.moe_device_programs import raced
from systolic.bench.moe_layer_programs import plain
from systolic.bench.moe_layer_spec import LayerSpec
from systolic.chips import chip

formats = {
    "float32": {},
    "int8": {"dtype_rhs": "int8"},
    "w8a8": {"dtype_rhs": "int8", "quantize_lhs": "int8"},
    "e4m3 8x8": {"dtype_rhs": "float8_e4m3fn", "rhs_block": 8, "scale_columns": 8},
}
spec = LayerSpec(m=32, k=16, n=24, experts=8, top_k=2, devices=4, dtype="float32", **formats[sys.argv[1]])
mesh = jax.make_mesh((4,), ("expert",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
random = np.random.default_rng(0)
programs = raced(spec, chip("v6e"), "xla")
x, logits, *weights = [
    random.integers(-99, 99, array.shape).astype(array.dtype) if array.dtype == "int8"
    else np.asarray(random.standard_normal(array.shape) / array.shape[1] ** 0.5, array.dtype)
    for array in programs.arguments[:5]
]
weights += [(1 + random.random(array.shape)).astype(array.dtype) / 99 for array in programs.arguments[5:-1]]
# Each expert gets as many tokens.
ids = (np.arange(spec.m)[:, None] + np.array([0, 3])) % spec.experts
np.put_along_axis(logits, ids, 2 + random.random(ids.shape).astype(np.float32), axis=1)
rows = spec.m * spec.top_k // spec.experts
whole = weights if spec.dtype_rhs is None else [
    Quantized(jnp.asarray(codes), jnp.asarray(scales)).dequantize(jnp.float32)
    for codes, scales in zip(weights[:3], weights[3:])
]
expected = plain(2, "scales of sums", x, logits, *whole, np.full(spec.experts, rows, np.int32))
# Both products round their rows, by 1/254 of a row's largest value at most.
tolerance = 0.02 if spec.quantize_lhs else 1e-5
with jax.set_mesh(mesh):
    cut = NamedSharding(mesh, PartitionSpec("expert"))
    arrays = [jax.device_put(array, cut) for array in (x, logits, *weights)]
    for program in (programs.ours, programs.xla, *programs.xla_forms.values()):
        out = jax.jit(program)(*arrays, np.full(2, rows, np.int32))
        np.testing.assert_allclose(out, expected, atol=tolerance * np.abs(expected).max())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "int8", "w8a8", "e4m3 8x8"])
def test_all_forms_over_devices_are_right(dtype: str, tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, dtype)
