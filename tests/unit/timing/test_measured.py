"""Times of a device: read out of a profile; without a device an error that says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from systolic.chips import chip
from systolic.cli.main import main
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import MatmulSpec
from systolic.store import Trial, TrialStore, best_first
from systolic.timing import NoDeviceError, measure
from systolic.timing.measured import module_times_us
from systolic.tuning import TuningResult, tune


def line(name: str, *durations_ns: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, events=[SimpleNamespace(duration_ns=one) for one in durations_ns])


def test_only_whole_programs_of_the_device_count() -> None:
    planes = [
        SimpleNamespace(name="/host:CPU", lines=[line("XLA Modules", 9e9)]),
        SimpleNamespace(
            name="/device:TPU:0", lines=[line("XLA Ops", 1000.0, 2000.0), line("XLA Modules", 3000.0, 5000)]
        ),
        SimpleNamespace(name="/device:TPU:1", lines=[line("XLA Modules", 7000.0)]),
    ]
    assert module_times_us(SimpleNamespace(planes=planes), 0) == [3.0, 5.0]
    assert module_times_us(SimpleNamespace(planes=planes), 2) == []


def test_a_profile_of_this_machine_can_be_read(tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(jnp.ones((64, 64)) @ jnp.ones((64, 64)))
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert module_times_us(jax.profiler.ProfileData.from_file(str(file)), 0) == []


@pytest.mark.skipif(jax.default_backend() == "tpu", reason="a TPU is attached")
def test_without_a_device_it_says_so_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoDeviceError, match="TPU v6 lite is attached, only cpu"):
        measure(lambda x: x, [jnp.ones(4)], chip("v6e"))
    with pytest.raises(NoDeviceError):
        tune(MatmulSpec.of(512, 512, 512, "bfloat16"), "v6e", measured=2)
    assert main(["tune", "512,512,512", "--chip", "v6e", "--measure", "2", "--store", str(tmp_path / "t.sqlite")]) == 2
    assert "is attached" in capsys.readouterr().err
    assert TrialStore(tmp_path / "t.sqlite").subjects() == []


def test_what_was_measured_wins_over_what_was_only_simulated() -> None:
    tiles = Tiles(tile_m=128, tile_k=128, tile_n=128)
    auto = KernelConfig(tiles=tiles, subtile_m=128, subtile_n=128)
    emit = replace(auto, pipeline="emit", num_stages=3)
    manual = replace(auto, pipeline="manual", num_stages=3)
    first, second, third = (
        Trial(config=config, status="ok", simulated_us=simulated, measured_us=measured)
        for config, simulated, measured in ((auto, 10.0, None), (emit, 11.0, 14.0), (manual, 12.0, 13.0))
    )
    trials = best_first([first, second, third])
    assert trials == [third, second, first]
    spec = MatmulSpec.of(512, 512, 512, "bfloat16")
    xla = Trial(config=None, status="ok", simulated_us=20.0)

    def result(xla: Trial) -> TuningResult:
        return TuningResult(
            spec=spec, computed=spec, chip="v6e", trials=tuple(trials), xla=xla, xla_us=xla.time_us,
            considered=3, compiled=3, seconds=1.0, end="all",
        )  # fmt: skip

    assert result(xla).winner == third
    assert result(xla).ratio_to_xla is None, "measured over simulated"
    measured = Trial(config=None, status="ok", simulated_us=20.0, measured_us=26.0)
    assert result(measured).ratio_to_xla == 2.0
    assert (result(measured).verdict, result(xla).verdict) == ("faster", "not known")
    assert result(measured).winner_error is None
