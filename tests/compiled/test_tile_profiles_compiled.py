"""Profiles of tiles against the compiler and the simulator that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from systolic.chips import chip
from systolic.cli.main import main
from systolic.compiler import WorkerPool
from systolic.cost import Kind, ProfiledTile, Profiles, profiled_configs, shipped_profiles
from systolic.ops.matmul.programs import programs_of
from systolic.schedule import Tiles
from systolic.spec import MatmulSpec
from systolic.store import Subject
from systolic.timing import submit_simulation
from systolic.timing.runner import Runner
from systolic.tuning import profiling
from systolic.tuning.profiling import profile_experiment, step_cost

CHIPS = ("v5e", "v5p", "v6e", "v7x")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CHIPS)
def test_a_shipped_profile_can_be_made_again(name: str) -> None:
    its = chip(name)
    kind = Kind.of(MatmulSpec.of(512, 512, 512, "bfloat16"), its)
    assert kind is not None
    shipped = shipped_profiles(kind)
    assert shipped is not None
    here = Subject.here(MatmulSpec.of(512, 512, 512, "bfloat16"), name)
    if (shipped.jax, shipped.libtpu) != (here.jax, here.libtpu):
        pytest.skip(f"made with jax {shipped.jax}, libtpu {shipped.libtpu}; here are {here.jax} and {here.libtpu}")
    short = min(shipped.profiles, key=lambda one: (one.bundles, one.tile))
    with WorkerPool(max_workers=1) as pool:
        run = Runner(pool).start(profile_experiment("bfloat16", its, short.tile)).outcome().required()
    assert run is not None
    assert step_cost(run, short.tile) == short.cost
    assert run.bundles == short.bundles


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CHIPS)
def test_the_time_of_a_shape_that_was_not_profiled(name: str) -> None:
    its, spec = chip(name), MatmulSpec.of(1024, 3072, 1536, "bfloat16")
    choice = profiled_configs(spec, its).configs[0]
    programs = programs_of(spec, its)
    fn = programs.kernel(choice.config)
    with WorkerPool(max_workers=1) as pool:
        simulated_us = submit_simulation(pool, fn, programs.arguments, its, label=name).result().time_us
    assert choice.modelled.time_us == pytest.approx(simulated_us, rel=0.02)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def tile(k: int, n: int) -> ProfiledTile:
        tiles = Tiles(tile_m=128, tile_k=k, tile_n=n)
        return ProfiledTile(tiles=tiles, subtile_m=128, subtile_n=256, whole_k=False, pipeline="manual", fill_chunks=1)

    tiles = [tile(256, 256), tile(256, 512)]
    monkeypatch.setattr(profiling, "worth_profiling", lambda *_: [*tiles, tile(8192, 32768)])
    assert main(["table", "profile", "--chip", "v6e", "--dtype", "bfloat16", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "no profile of 128/8192/32768" in said
    assert "2 tiles of v6e" in said
    made = Profiles.from_json((tmp_path / "v6e_bfloat16.json").read_text())
    assert [one.tile for one in made.profiles] == tiles
    assert made.profiles[0].cost.step < made.profiles[1].cost.step
    assert main(["table", "profile", "--chip", "v7x", "--dtype", "int4", "--out", str(tmp_path)]) == 2
