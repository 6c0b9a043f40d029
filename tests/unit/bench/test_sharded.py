"""Products that are cut over a slice: what each device has of them, and what of a mesh is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from systolic.bench import sharded_peers
from systolic.bench.contests import ShardedContest
from systolic.bench.race import race
from systolic.bench.sharded import ShardedSpec, on_slice
from systolic.bench.suites import suite
from systolic.chips import SliceError, chip
from systolic.cli import main
from systolic.ops.collective import plan_across_chips
from systolic.timing import Measurement
from systolic.timing.experiment import Experiment
from systolic.timing.on_mesh import on_mesh
from systolic.timing.opponent import MORE_VMEM_FLAGS
from systolic.timing.outcome import Outcome

MESH = {"data": 2, "model": 4}


def spec(**changes: Any) -> ShardedSpec:
    values: dict[str, Any] = {"kind": "mlp", "m": 64, "k": 128, "n": 256, "dtype": "bfloat16"}
    return ShardedSpec(**{**values, "topology": "2x4", "mesh": tuple(MESH.items()), **changes})


def experiments(its: ShardedSpec) -> tuple[Experiment, Experiment]:
    """Both programs, ours first."""
    contest, v6e = ShardedContest(), chip("v6e")
    raced, mesh = contest.raced(its, v6e), contest.mesh(its)

    def sliced(fn: Any, *, explicit: bool) -> Experiment:
        whole = Experiment(fn=fn, args=raced.arguments, chip=v6e, label="x")
        return on_mesh(whole, mesh, raced.shardings, explicit=explicit)

    return sliced(raced.ours, explicit=True), sliced(raced.xla, explicit=False)


@pytest.mark.parametrize("kind", ["mlp", "columns", "rows", "gathered", "tokens"])
@pytest.mark.parametrize("mesh", [MESH, {"model": 8}, {"data": 8}, {"model": 2, "data": 4}])
def test_both_programs_take_the_same_parts_and_make_the_same(kind: str, mesh: dict[str, int]) -> None:
    its = spec(kind=kind, mesh=tuple(mesh.items()))
    mine, other = experiments(its)
    assert (mine.topology, other.topology) == ("2x4", "2x4")
    for ours, xla in zip(mine.args, other.args, strict=True):
        assert ours.shape == xla.shape
        assert ours.sharding.spec == xla.sharding.spec
        assert math.prod(ours.sharding.shard_shape(ours.shape)) * 8 >= math.prod(ours.shape)
    fns: list[Any] = [mine.fn, other.fn]
    out, wanted_out = (jax.eval_shape(fn, *one.args) for fn, one in zip(fns, (mine, other), strict=True))
    assert out.shape == wanted_out.shape
    wanted = out.sharding.spec
    assert tuple(wanted) == its.result


def test_the_devices_share_the_arithmetic() -> None:
    for case in on_slice(suite("sharded"), "2x4", MESH):
        its = case.spec
        products = 6 if its.kind == "mlp" else 1
        assert its.flops * 8 == (3 if its.backward else 1) * products * 2 * its.m * its.k * its.n, case.name


def test_gradients_are_cut_as_what_they_are_gradients_of() -> None:
    its = spec(backward=True)
    mine, _ = experiments(its)
    fn: Any = mine.fn
    out, gradients = jax.eval_shape(fn, *mine.args)
    assert tuple(out.sharding.spec) == its.result
    for gradient, argument in zip(gradients, mine.args[:-1], strict=True):
        assert (gradient.shape, gradient.sharding.spec) == (argument.shape, argument.sharding.spec)


def test_many_rows_are_summed_by_a_kernel_across_chips() -> None:
    by_kernel = {}
    for case in on_slice(suite("sharded"), "2x4", MESH):
        mine, _ = experiments(case.spec)
        fn: Any = mine.fn
        if case.spec.kind == "rows":
            choice, *of_parts = plan_across_chips(fn, *mine.args)
            by_kernel[case.spec.m] = choice.by_kernel
            assert [part.by_xla_alone for part in of_parts] == [True] * (not choice.by_kernel)
    assert by_kernel == {256: False, 2048: True, 8192: True}


def test_a_public_kernel_gathers_tokens_if_it_has_tiles_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    v6e, contest, mesh = chip("v6e"), ShardedContest(), (("model", 8),)
    (peer,) = contest.peers(spec(kind="tokens", mesh=mesh), v6e)
    assert (peer.program is None) == bool(peer.reason)
    tuned = SimpleNamespace(TUNED_BLOCK_SIZES={(6, 64, 256, 128, "bfloat16", 8): (32, 128)})
    monkeypatch.setattr(sharded_peers, "is_installed", lambda: True)
    monkeypatch.setattr(sharded_peers, "kernel_module", lambda _: tuned)
    (peer,) = contest.peers(spec(kind="tokens", mesh=mesh), v6e)
    assert (peer.reason, peer.config) == ("", "tiles 32/128, in the order of a ring")
    assert peer.arguments is not None
    x, _ = peer.arguments
    order = x.sharding.mesh.devices
    for device, following in zip(order, np.roll(order, -1), strict=True):
        assert sum(abs(np.subtract(device.coords, following.coords))) == 1
    for changes in ({"m": 128, "mesh": mesh}, {"mesh": (("data", 2), ("model", 4))}):
        (peer,) = contest.peers(spec(kind="tokens", **changes), v6e)
        assert "no tuned tiles" in peer.reason
    assert not list(contest.peers(spec(kind="columns", mesh=mesh), v6e))


class OneTime:
    """A runner that gives every program the same time, and those with more VMEM a shorter one."""

    def __init__(self, times_us: dict[bool, float]) -> None:
        self.times_us = times_us

    def run(self, experiments: Iterable[Experiment]) -> list[Outcome]:
        return [self._outcome(experiment) for experiment in experiments]

    def _outcome(self, experiment: Experiment) -> Outcome:
        time_us = self.times_us[MORE_VMEM_FLAGS.keys() <= experiment.chip.compiler_flags.keys()]
        measurement = Measurement(chip="v6e", provenance="simulated", time_us=time_us)
        return Outcome(label=experiment.label, measurement=measurement)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("times_us", "flags"), [({False: 9.0, True: 8.0}, MORE_VMEM_FLAGS), ({False: 8.0, True: 9.0}, {})]
)
def test_both_programs_are_raced_with_more_vmem(times_us: dict[bool, float], flags: dict[str, str]) -> None:
    cases = [case for case in on_slice(suite("sharded"), "2x4", MESH) if case.spec.kind == "columns"]
    runner: Any = OneTime(times_us)
    for row in race(cases, [chip("v6e")], runner, against="xla"):
        assert (row.ours.time_us, row.ours.flags) == (8.0, flags)
    for row in race(cases, [chip("v6e")], runner, against="xla", xla_default_flags=True):
        assert (row.ours.time_us, row.ours.flags) == (times_us[False], {})


def test_a_mesh_that_does_not_suit() -> None:
    with pytest.raises(SliceError, match="the mesh has rows: write --mesh data=2,model=4"):
        on_slice(suite("sharded"), "2x4", {"rows": 8})
    with pytest.raises(SliceError, match="66 does not divide among 4 devices of the axis data"):
        spec(m=66, mesh=(("data", 4),))
    with pytest.raises(SliceError, match="34 does not divide among 4 devices of the axis model"):
        spec(kind="tokens", m=68)
    with pytest.raises(SliceError, match="512³ of suite square runs on one device"):
        on_slice(suite("square"), "2x4", MESH)
    with pytest.raises(SliceError, match="a slice of one device"):
        on_slice(suite("sharded"), "1x1", {"model": 1})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--suite", "sharded"), "suite sharded is cut over a slice: give --topology 2x4 --mesh data=2,model=4"),
        (("--suite", "sharded", "--topology", "2x4"), "give --topology 2x4 --mesh data=2,model=4"),
        (("--suite", "sharded", "--mesh", "model=8"), "give --topology too"),
        (("--suite", "sharded", "--topology", "2x4", "--mesh", "model=4"), "has 4 devices"),
        (("--suite", "llm", "--topology", "2x4", "--mesh", "model=8"), "are for suite sharded"),
    ],
)
def test_calls_that_cannot_be_meant(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--chip", "v6e", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_is_tuned_is_one_device_s_product(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--suite", "sharded", "--only", "rows 256", "--chip", "v6e"]) == 2
    assert "is cut over a slice: give the product of one device" in " ".join(capsys.readouterr().err.split())
