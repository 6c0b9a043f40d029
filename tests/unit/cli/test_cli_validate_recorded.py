"""`systolic validate` of recorded operations, without the compiler: planted runs in place of simulations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import systolic.cli.validate
import systolic.timing.runner
from systolic.accuracy.kind_errors import KindErrorsTable
from systolic.accuracy.time_error import TimeErrors
from systolic.chips import Chip, chip
from systolic.compiler import CompilerRefusal, CompilerTimeout
from systolic.simulator import CoreRun, SimulatedRun, SliceRun
from systolic.simulator.slice.records import DeviceClass
from systolic.timing import Measurement
from systolic.validation.errors import PublishedProgram
from systolic.validation.kept_results import KeptResults

Run = Callable[..., tuple[int, str, str]]
ROWS = 12
SLOWER = 1.1  # published over simulated time, of every row


def planted_run(known: Chip, rows: int) -> SimulatedRun:
    cycles = rows * 1000
    core = CoreRun(
        core=0,
        cycles=cycles,
        ops=(),
        copy_stall_cycles=0,
        copy_overhead_cycles=0,
        matrix_stall_cycles=0,
        matrix_busy_cycles=cycles,
        hbm_read_bytes=0,
        hbm_written_bytes=0,
        copies=1,
    )
    return SimulatedRun(
        chip=known.name,
        clock_hz=1e9,
        cores=(core,),
        prefetch_cycles=0,
        matrix_units=1,
        bundles=1,
        hbm_bytes_per_cycle=10.0,
    )


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each simulated operation, in order. 7 rows are refused, 8 take too long."""
    done: list[int] = []

    def submit(_pool: object, fn: object, args: Any, known: Chip, **_: object) -> Future[Measurement]:
        rows = args[0].shape[0]
        done.append(rows)
        future: Future[Measurement] = Future()
        if rows == 7:
            future.set_exception(CompilerRefusal("too odd", kind="other", where=None))
        elif rows == 8:
            future.set_exception(CompilerTimeout(label="8 rows", limit_s=600.0))
        else:
            run = planted_run(known, rows)
            future.set_result(Measurement(chip=known.name, provenance="simulated", time_us=run.time_us, run=run))
        return future

    monkeypatch.setattr(systolic.cli.validate, "check_available", lambda: None)
    monkeypatch.setattr(systolic.timing.runner, "submit_simulation", submit)
    return done


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    file = tmp_path / "times.jsonl"
    activation = "jax._src.nn.functions.silu"
    lines = []
    for rows in range(1, ROWS + 1):
        arguments = {"x": f"f32[{rows},128]", "weights": "f32[128,2,256]", "activation": activation}
        record = {"op": "gated_linear_unit", "chip": "v6e", "arguments": arguments, "config": {}}
        lines.append(json.dumps({**record, "time_us": rows * SLOWER, "spread": 0.0, "samples": 5}))
    lines.append(json.dumps({**json.loads(lines[0]), "op": "fused_moe", "chip": "v5p"}))
    file.write_text("\n".join(lines) + "\n")
    return file


def test_errors_by_kind_and_half(run: Run, recorded: Path, simulations: list[int], tmp_path: Path) -> None:
    kinds_file = tmp_path / "kinds.json"
    code, out, _ = run("validate", recorded, "--json", tmp_path / "all.json", "--kinds", kinds_file, "-q")
    document = json.loads((tmp_path / "all.json").read_text())
    kinds = document["summary"]["kinds"]
    assert code == 0
    assert sorted(simulations) == list(range(1, ROWS + 1))
    of_kind = {(kind["chip"], kind["in_view"]): kind for kind in kinds if kind["kind"] == "gated_linear_unit"}
    assert sum(kind["rows"] for kind in of_kind.values()) == ROWS - 2
    assert sum(kind["refused"] for kind in of_kind.values()) == 2
    for kind in of_kind.values():
        assert kind["bias_percent"] == pytest.approx(100 * (1 / SLOWER - 1), abs=0.01)
        assert kind["median_percent"] == pytest.approx(100 * (1 - 1 / SLOWER), abs=0.01)
    rows = [row for row in document["rows"] if row["op"] == "gated_linear_unit"]
    assert {row["in_view"] for row in rows} == {True, False}
    assert next(kind for kind in kinds if kind["kind"] == "fused_moe")["rows"] == 0
    assert "held out" in out
    assert "op 'fused_moe' is not known" in out
    table = KindErrorsTable.from_json(kinds_file.read_text())
    assert [kind.chip for kind in table.kinds] == [kind["chip"] for kind in kinds]
    assert table.command.startswith("systolic validate times.jsonl ")


def test_a_sample_of_one_kind(run: Run, recorded: Path, simulations: list[int], tmp_path: Path) -> None:
    command = ("validate", recorded, "--only", "gated_linear_unit", "--sample", 4, "-q", "--json")
    assert run(*command, tmp_path / "first.json")[0] == 0
    first = list(simulations)
    assert len(first) == 4
    assert run(*command, tmp_path / "second.json")[0] == 0
    assert simulations[4:] == first
    code, _, err = run("validate", recorded, "--only", "normalization")
    assert code == 2
    assert "no row is of this kind; choose from gated_linear_unit, fused_moe" in err


def test_a_stopped_comparison_goes_on_where_it_was(
    run: Run, recorded: Path, simulations: list[int], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.jsonl"
    command = ("validate", recorded, "--resume", kept, "-q", "--json")
    run(*command, tmp_path / "first.json", "--sample", 5)
    with kept.open("a") as file:
        file.write('{"key": "a process was ki')
    before = set(simulations)
    simulations.clear()
    run(*command, tmp_path / "second.json")
    assert set(simulations) == set(range(1, ROWS + 1)) - (before - {8})  # what took too long may not next time
    simulations.clear()
    run(*command, tmp_path / "third.json")
    assert simulations == [8]
    second, third = (json.loads((tmp_path / name).read_text()) for name in ("second.json", "third.json"))
    for name in ("predicted_us", "error", "reason"):
        assert [row[name] for row in second["rows"]] == [row[name] for row in third["rows"]]


def test_intervals_of_the_kept_rows_alone(run: Run, recorded: Path, simulations: list[int], tmp_path: Path) -> None:
    kept, intervals = tmp_path / "kept.jsonl", tmp_path / "intervals.json"
    resume = ("validate", recorded, "--resume", kept, "-q")
    run(*resume, "--json", tmp_path / "first.json", "--only", "gated_linear_unit", "--sample", 11)
    drawn = {row for row in simulations if row != 8}  # what took too long is not kept
    simulations.clear()
    run(*resume, "--kept", "--intervals", intervals, "--json", tmp_path / "second.json")
    document = json.loads((tmp_path / "second.json").read_text())
    assert simulations == []
    assert {int(row["published_us"] / SLOWER + 0.5) for row in document["rows"]} == drawn
    errors = TimeErrors.from_json(intervals.read_text())
    assert errors.command.endswith("--kept --resume kept.jsonl --dispatch-us 115 --intervals intervals.json")
    (narrow,) = (kind for kind in errors.kinds if kind.generation and kind.kind.startswith("XLA"))
    rows = [row for row in document["rows"] if row["counted"]]
    assert narrow.programs == sum(row["in_view"] for row in rows)
    assert narrow.held_out == narrow.covered == sum(not row["in_view"] for row in rows)
    assert narrow.error_percent is not None
    assert {row["time_error"]["percent"] for row in rows} == {narrow.error_percent}  # that of this comparison
    assert run("validate", recorded, "--kept")[0] == 2


def test_a_kept_slice_comes_back(tmp_path: Path) -> None:
    known = chip("v6e")
    run = planted_run(known, 5)
    program = PublishedProgram(chip="v6e", what="psum", topology="2x4", function=print, arguments=())
    slice_run = SliceRun(
        chip="v6e",
        topology="2x4",
        clock_hz=run.clock_hz,
        assignment=(0, 1),
        way="all devices",
        classes=(DeviceClass(devices=(0, 1), run=run),),
        links=(),
        collectives=(),
        link_bytes_per_s=1e9,
    )
    result = Measurement(chip="v6e", provenance="simulated", time_us=run.time_us, run=run, slice_run=slice_run)
    KeptResults(tmp_path / "kept.jsonl", {"jax": "1"}).keep(program, known, result)
    kept = KeptResults(tmp_path / "kept.jsonl", {"jax": "1"}).result(program, known)
    assert isinstance(kept, Measurement)
    assert kept.slice_run is not None
    assert (kept.time_us, kept.slice_run.classes[0].devices) == (run.time_us, (0, 1))


def test_a_kept_time_is_of_one_chip_record(tmp_path: Path) -> None:
    program = PublishedProgram(chip="v6e", what="copy", function=print, arguments=())
    known = chip("v6e")
    changed = replace(known, machine=replace(known.machine, dma_issue_cycles=1))
    run = planted_run(known, 5)
    result = Measurement(chip="v6e", provenance="simulated", time_us=run.time_us, run=run)
    KeptResults(tmp_path / "kept.jsonl", {"jax": "1"}).keep(program, known, result)
    again = KeptResults(tmp_path / "kept.jsonl", {"jax": "1"})
    kept = again.result(program, known)
    assert isinstance(kept, Measurement)
    assert kept.run is not None
    assert (kept.time_us, kept.run.cores) == (result.time_us, run.cores)
    assert again.result(program, changed) is None
    assert again.result(replace(program, what="another"), known) is None
    assert KeptResults(tmp_path / "kept.jsonl", {"jax": "2"}).result(program, known) is None


def test_another_process_uses_a_kept_result(tmp_path: Path) -> None:
    """Records hold sets, whose order differs from process to process."""
    code = """if True:
        import sys
        from pathlib import Path
        from systolic.chips import chip
        from systolic.validation.errors import PublishedProgram
        from systolic.validation.kept_results import KeptResults

        program = PublishedProgram(chip="v6e", what="copy", function=print, arguments=())
        kept = KeptResults(Path(sys.argv[1]), {"jax": "1"})
        print(kept.result(program, chip("v6e")))
        kept.keep(program, chip("v6e"), "no time")
    """
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, tmp_path / "kept.jsonl"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert outputs == ["None", "no time"]
