"""Profiles of tiles: what is shipped, and what the plan makes of them."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from pathlib import Path

import pytest

import systolic
from systolic.chips import chip
from systolic.cli import main
from systolic.cost import (
    Kind,
    MadeWith,
    ProfiledTile,
    Profiles,
    StepCost,
    profiled_configs,
    timed_config,
)
from systolic.kernels import KERNEL_VERSION
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.simulator import SimulatedRun
from systolic.simulator.core_records import CoreRun
from systolic.simulator.hardware.timeline import Span
from systolic.spec import Epilogue, FusedOperand, MatmulSpec
from systolic.store import Subject, Trial, TrialStore
from systolic.support.untrusted import UntrustedError
from systolic.tuning.profiling import step_cost, without_copies

SHIPPED = sorted(Path(str(resources.files("systolic.cost") / "profiles")).glob("*.json"))
SQUARE = MatmulSpec.of(4096, 4096, 4096, "bfloat16")


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_profiles(file: Path) -> None:
    text = file.read_text()
    read = Profiles.from_json(text)
    assert read.as_json() == text, "sorted, and as the command writes them"
    assert read.file_name == file.name
    assert read.kernel_version == KERNEL_VERSION, "the kernels have changed: make the profiles anew by their command"
    assert len(read.profiles) >= 100
    assert all(one.cost.step > 0 and one.cost.first > 0 and one.cost.call > 0 for one in read.profiles)
    for one in read.profiles:  # a matrix unit cannot be faster than its peak
        machine = chip(read.kind.chip).machine
        tiles = one.tile.tiles
        rates = {"float32": "f32", "bfloat16": "bf16", "int8": "s8"}
        rate = machine.mxu_rows_per_cycle.get(rates.get(read.kind.dtype_lhs, "f8"), machine.mxu_rows_per_cycle["bf16"])
        least = tiles.tile_m * tiles.tile_k * tiles.tile_n / machine.mxu_rows / machine.mxu_columns / rate
        assert one.cost.step >= least / machine.mxu_count * 0.999, one


def test_there_are_profiles_of_each_chip() -> None:
    names = {file.stem for file in SHIPPED}
    assert {f"{name}_bfloat16" for name in ("v5e", "v5p", "v6e", "v7x")} <= names
    assert {f"{name}_float32" for name in ("v5e", "v5p", "v6e", "v7x")} <= names
    assert {"v5e_int8_int32", "v5p_int8_int32", "v6e_int8_int32", "v7x_float8_e4m3fn"} <= names


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": {}}', '{"versions": 3}'])
def test_what_is_no_profiles_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not profiles" if text else "Expecting value"):
        Profiles.from_json(text)


def test_profiles_of_another_schema_are_refused() -> None:
    text = SHIPPED[0].read_text()
    assert Profiles.from_json(text).as_json() == text
    with pytest.raises(ValueError, match="schema 1, here it is 2; make them anew with systolic table profile"):
        Profiles.from_json(text.replace('"schema": 2', '"schema": 1'))


def test_what_is_fused_or_turned_has_no_profiles() -> None:
    v6e, small = chip("v6e"), MatmulSpec.of(512, 512, 512, "bfloat16")
    assert Kind.of(small, v6e) is not None
    bias = Epilogue(bias=FusedOperand(dtype="float32", rows=False, columns=True))
    for other in (
        dataclasses.replace(small, transpose_rhs=True),
        dataclasses.replace(small, batch=2, batch_lhs=2),
        dataclasses.replace(small, epilogue=bias),
    ):
        assert Kind.of(other, v6e) is None
        assert profiled_configs(other, v6e).configs == []
        assert systolic.plan(other, "v6e").provenance == "modelled"


@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e", "v7x"])
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (16, 4096, 14336), (2048, 7168, 2048), (512, 512, 512)])
def test_ranked_tiles_are_legal_divide_the_sizes_and_come_best_first(name: str, sizes: tuple[int, int, int]) -> None:
    spec, its = MatmulSpec.of(*sizes, "bfloat16"), chip(name)
    configs, considered, least_us = profiled_configs(spec, its, 10)
    assert considered >= len(configs) >= 5
    assert least_us <= configs[0].modelled.time_us
    times = [one.modelled.time_us for one in configs]
    assert times == sorted(times)
    for one in configs:
        assert all(getattr(spec, side) % getattr(one.config.tiles, f"tile_{side}") == 0 for side in "mkn")
        again = timed_config(spec, one.config, its)  # raises where it breaks a rule
        assert again == one
    assert profiled_configs(spec, its).configs[0].modelled.time_us == pytest.approx(times[0], rel=0.003)


def test_a_tile_without_a_profile_says_so() -> None:
    odd = KernelConfig(tiles=Tiles(tile_m=128, tile_k=128, tile_n=128), subtile_m=128, subtile_n=128, pipeline="manual")
    assert ProfiledTile.of(SQUARE, odd).whole_k is False
    assert timed_config(SQUARE, odd, chip("v6e")).provenance == "modelled"
    assert systolic.plan(SQUARE, "v6e", tiles=odd).provenance == "modelled"
    assert systolic.plan(SQUARE, "v6e").provenance == "profiled"
    assert systolic.plan(MatmulSpec.of(4097, 4099, 4096, "bfloat16"), "v6e").provenance == "modelled"


@pytest.mark.exhaustive
def test_a_plan_says_what_its_profile_was_made_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = systolic.plan(SQUARE, "v6e").profiles
    assert made == MadeWith(jax="0.10.2", libtpu="0.0.42.1")
    turned = dataclasses.replace(SQUARE, transpose_rhs=True)
    assert systolic.plan(turned, "v6e").profiles is None

    def printed(jax: str, libtpu: str | None) -> list[str]:
        monkeypatch.setattr("systolic.cli.plan.versions", lambda: {"jax": jax, "libtpu": libtpu})
        assert main(["plan", "4096,4096,4096", "--chip", "v6e"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("profile ")]

    assert printed("0.10.2", "0.0.42.1") == []
    assert printed("0.10.2", None) == []
    start = "profile  made with jax 0.10.2 and libtpu 0.0.42.1; here is "
    assert printed("0.12.0.1", "0.0.42.1") == [f"{start}jax 0.12.0.1, whose programs may take another time"]
    both = "jax 0.12.0.1 and libtpu 0.0.50.1"
    assert printed("0.12.0.1", "0.0.50.1") == [f"{start}{both}, whose programs may take another time"]
    assert main(["plan", "4096,4096,4096", "--chip", "v6e", "--json", "-"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["profiles"] == {"jax": "0.10.2", "libtpu": "0.0.42.1"}


def test_a_winner_in_the_store_comes_first(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    with systolic.use(store=store) as planner:
        before = systolic.plan(SQUARE, "v6e")
        tiles = Tiles(tile_m=512, tile_k=512, tile_n=512)
        config = KernelConfig(tiles=tiles, subtile_m=512, subtile_n=512, pipeline="manual")
        # Counts of operations are no part of a trial's subject.
        tuned = dataclasses.replace(before.computed, epilogue=Epilogue(op_count=1))
        subject = Subject.here(tuned, "v6e")
        store.keep(subject, Trial(config=config, status="ok", simulated_us=323.4))
        store.keep(subject, Trial(config=None, status="ok", simulated_us=1.0))  # XLA's is no kernel
        store.keep(subject, Trial(config=dataclasses.replace(config, fill_chunks=2), status="failed", reason="no"))
        assert systolic.plan(SQUARE, "v6e") == before, "a planner keeps its plans"
        planner.forget()
        made = systolic.plan(SQUARE, "v6e")
        assert (made.config, made.time_us, made.provenance) == (config, 323.4, "simulated")
        assert "winner of systolic tune" in made.reason
        assert systolic.plan(SQUARE, "v5e").provenance == "profiled"
        illegal = dataclasses.replace(config, tiles=Tiles(tile_m=4096, tile_k=4096, tile_n=4096), subtile_m=4096)
        with pytest.raises(UntrustedError, match="VMEM"):  # nor does a row that is there already win
            store.keep(subject, Trial(config=illegal, status="ok", simulated_us=500.0))
        changed = dataclasses.replace(chip("v6e"), vmem_bytes_per_core=64 * 2**20)
        assert systolic.plan(SQUARE, changed).provenance != "simulated", "tuned for another chip"


def run_of(rounds: list[float], cycles: int) -> SimulatedRun:
    at, spans = 100.0, []
    for length in rounds:
        spans.append(Span(kind="round", begin_cycles=at, end_cycles=at + length, label="kernel", amount=0))
        at += length
    core = CoreRun(
        core=0, cycles=cycles, ops=(), copy_stall_cycles=0, copy_overhead_cycles=0, matrix_stall_cycles=0,
        matrix_busy_cycles=0, hbm_read_bytes=0, hbm_written_bytes=0, copies=0, spans=tuple(spans),
    )  # fmt: skip
    return SimulatedRun(chip="v6e", clock_hz=1e9, cores=(core,), prefetch_cycles=0, matrix_units=2, bundles=10)


def test_what_steps_cost_is_read_off_the_rounds() -> None:
    tile = ProfiledTile(
        tiles=Tiles(tile_m=512, tile_k=512, tile_n=512),
        subtile_m=512,
        subtile_n=512,
        whole_k=False,
        pipeline="manual",
        fill_chunks=2,
    )
    runs = [1300.0, 1000, 1040] + [1000.0, 1000, 1040] * 3
    cost = step_cost(run_of(runs, 100 + int(sum(runs)) + 60), tile)
    assert cost == StepCost(call=160, first=1300, step=1000, end=1040)
    # Pallas' own pipeline has a round ahead of the steps, which starts copies.
    auto = dataclasses.replace(tile, pipeline="auto", fill_chunks=1)
    cost = step_cost(run_of([90.0, *runs], 100 + 90 + int(sum(runs)) + 60), auto)
    assert cost == StepCost(call=250, first=1300, step=1000, end=1040)
    whole = dataclasses.replace(tile, whole_k=True)
    cost = step_cost(run_of([1300.0] + [1000.0] * 11, 100 + 12300 + 60), whole)
    assert cost == StepCost(call=160, first=1300, step=1000, end=1000)
    with pytest.raises(ValueError, match="3 rounds in place of 12 steps"):
        step_cost(run_of([1.0, 1, 1], 103), whole)


def test_a_chip_without_copies_differs_in_nothing_else() -> None:
    free = without_copies(chip("v6e"))
    assert free.machine.dma_latency_cycles == 0
    assert dataclasses.replace(free, machine=chip("v6e").machine) == chip("v6e")


def test_rows_are_one_tile_a_line() -> None:
    lines = SHIPPED[0].read_text().splitlines()
    rows = [line for line in lines if line.startswith("  [")]
    assert len(rows) == len(json.loads(SHIPPED[0].read_text())["rows"])


def test_a_config_with_a_profile_still_has_to_be_legal() -> None:
    tiles = Tiles(tile_m=64, tile_k=512, tile_n=32768)
    too_much = KernelConfig(tiles=tiles, subtile_m=64, subtile_n=8192, pipeline="manual", num_stages=3, fill_chunks=2)
    with pytest.raises(IllegalTilesError, match="VMEM"):
        systolic.plan(MatmulSpec.of(128, 512, 65536, "bfloat16"), "v6e", tiles=too_much)
    best = profiled_configs(SQUARE, chip("v5p")).configs[0].config
    with pytest.raises(IllegalTilesError, match="leave a core idle"):
        systolic.plan(SQUARE, "v5p", tiles=dataclasses.replace(best, pipeline="emit", num_stages=3))
