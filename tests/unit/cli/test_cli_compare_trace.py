"""`systolic compare RESULT.json TRACE`: tables, JSON, CSV, exit codes and refusals."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import cattrs
import pytest
from explanations import a_run
from traces import Execution, a_profile, fusion

from systolic.cli import compare_trace
from systolic.cli.results import RESULT_SCHEMA
from systolic.cli.trace_option import write_trace
from systolic.simulator import SimulatedRun
from systolic.timing.traced_modules import read_modules

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read traces in this process: a worker takes seconds to start, and test_device_trace.py starts some."""
    monkeypatch.setattr(compare_trace, "read_trace", read_modules)


def _mlp(chip: str = "v6e") -> SimulatedRun:
    """A run of two fusions of 200 and 100 µs."""
    run = a_run()
    core, (op,) = run.cores[0], run.cores[0].ops
    us = round(run.clock_hz / 1e6)
    ops = tuple(
        dataclasses.replace(
            op,
            name=name,
            category="convolution fusion",
            begin_cycles=begin * us,
            end_cycles=(begin + time) * us,
            cycles=time * us,
        )
        for name, begin, time in (("fusion.2", 0, 200), ("fusion.5", 200, 100))
    )
    core = dataclasses.replace(core, ops=ops, cycles=300 * us)
    return dataclasses.replace(run, chip=chip, module="jit_mlp", cores=(core,))


def _saved(folder: Path, *runs: SimulatedRun) -> Path:
    rows = [{"function": "mlp.py:mlp", "chip": run.chip, "reason": "", "run": cattrs.unstructure(run)} for run in runs]
    file = folder / "run.json"
    file.write_text(json.dumps({"command": "simulate", "schema": RESULT_SCHEMA, "rows": rows, "summary": {}}))
    return file


def _traced(folder: Path, names: tuple[str, str] = ("fusion.2", "fusion.5"), *others: Execution) -> Path:
    """Three executions with a median of 330 µs, in which the first fusion takes 220 and the second 100."""
    times = (219.0, 110.0), (220.0, 100.0), (222.0, 99.0)
    executions = [
        Execution(module="jit_mlp(42)", calls=(fusion(names[0], first), fusion(names[1], second)))
        for first, second in times
    ]
    file = folder / "host.xplane.pb"
    file.write_bytes(a_profile([[*executions, *others]]))
    return file


def test_simulated_and_measured_times_stand_next_to_each_other(run: Run, tmp_path: Path) -> None:
    saved, trace = _saved(tmp_path, _mlp()), _traced(tmp_path)
    code, out, _ = run("compare", saved, trace)
    assert code == 0
    assert "simulated 300.0 µs, measured 322.0 µs (median of 3, 321.0 to 330.0)" in out
    assert "the simulated time is 6.8% shorter; the error of such" in out
    assert "in the trace: jit_mlp(42) on /device:TPU:0, TPU v6 Lite" in out
    assert "median error 4.5% of 2 operations in both" in out
    code, out, _ = run("compare", saved, trace, "--json", "-")
    document = json.loads(out)
    (row,), summary = document["rows"], document["summary"]
    assert (row["module"], row["device"], row["executions"]) == ("jit_mlp(42)", "/device:TPU:0", 3)
    assert (row["before_us"], row["after_us"]) == (300, pytest.approx(322))
    assert [(op["name"], round(op["simulated_us"], 6), op["measured_us"]) for op in row["operations"]] == [
        ("fusion.2", 200, 220),
        ("fusion.5", 100, 100),
    ]
    assert summary["provenance"] == {"before": "simulated", "after": "measured"}
    assert summary["median_error_percent"] == pytest.approx(100 * (0 + 1 / 11) / 2)


def test_csv_has_whole_numbers_and_all_columns(run: Run, tmp_path: Path) -> None:
    code, out, err = run("compare", _saved(tmp_path, _mlp()), _traced(tmp_path), "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["operation"] for row in rows] == ["fusion.2", "fusion.5"]
    assert float(rows[0]["simulated / measured"]) == pytest.approx(200 / 220)
    assert (rows[0]["measured calls"], rows[0]["category"]) == ("1", "convolution fusion")
    assert "median error" in err


def test_a_table_has_the_longest_operations_and_csv_all(run: Run, tmp_path: Path) -> None:
    calls = tuple(fusion(f"fusion.{number}", 1000.0 - number) for number in range(50))
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(a_profile([[Execution(module="jit_mlp(42)", calls=calls)]]))
    out = run("compare", _saved(tmp_path, _mlp()), file)[1]
    assert "fusion.39 " in out
    assert "fusion.40 " not in out
    assert "and 10 shorter operations; --format csv has all" in out
    assert "fusion.49," in run("compare", _saved(tmp_path, _mlp()), file, "--format", "csv")[1]


def test_fail_above_looks_at_how_much_longer_the_trace_takes(run: Run, tmp_path: Path) -> None:
    saved, trace = _saved(tmp_path, _mlp()), _traced(tmp_path)
    assert run("compare", saved, trace, "--fail-above", "8")[0] == 0
    code, out, _ = run("compare", saved, trace, "--fail-above", "7")
    assert code == 1
    assert "slower than simulated by more than 7%: 7.3%" in out


def test_other_names_are_paired_by_order_and_it_is_said(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("compare", _saved(tmp_path, _mlp()), _traced(tmp_path, ("fusion.8", "fusion.9")))
    assert "2 operations have other names in the trace and are paired by kind and order" in out
    assert "fusion.8" in out
    _, out, _ = run("compare", _saved(tmp_path, _mlp()), _traced(tmp_path, ("fusion.2", "dot.1")))
    assert "1 operation is only simulated: 100.0 µs" in out
    assert "1 operation is only in the trace: 100.0 µs" in out


def test_the_run_is_chosen_by_the_traces_chip_and_another_chip_is_named(run: Run, tmp_path: Path) -> None:
    trace = _traced(tmp_path)
    assert run("compare", _saved(tmp_path, _mlp("v5e"), _mlp("v6e")), trace)[1].startswith("v6e mlp.py:mlp")
    assert "another chip: the run is of v5e, TPU v5 lite" in run("compare", _saved(tmp_path, _mlp("v5e")), trace)[1]
    code, _, err = run("compare", _saved(tmp_path, _mlp(), _mlp()), trace)
    assert code == 2
    assert "several results in the first file may be meant (v6e mlp.py:mlp, v6e mlp.py:mlp)" in err


def test_a_module_is_named_where_the_trace_has_several(run: Run, tmp_path: Path) -> None:
    other = Execution(module="jit_mlp(43)", calls=(fusion("fusion.2", 7.0), fusion("fusion.5", 4.0)))
    saved, trace = _saved(tmp_path, _mlp()), _traced(tmp_path, ("fusion.2", "fusion.5"), other)
    code, _, err = run("compare", saved, trace)
    assert code == 2
    assert "choose one by --module, from jit_mlp(42) (3 × 322.0 µs), jit_mlp(43) (1 × 12.0 µs)" in err
    assert "measured 12.0 µs (median of 1)" in run("compare", saved, trace, "--module", "jit_mlp(43)")[1]


def test_wrong_calls_are_refused(run: Run, tmp_path: Path) -> None:
    saved, trace = _saved(tmp_path, _mlp()), _traced(tmp_path)
    for arguments, words in (
        ([trace, saved], "is a trace: give the result of `systolic simulate --json` first"),
        ([saved, saved, "--module", "jit_mlp"], "--module names a program in a trace, and"),
        ([tmp_path, saved], "is a trace"),
    ):
        code, _, err = run("compare", *arguments)
        assert code == 2
        assert words in " ".join(err.split())


def test_a_trace_that_systolic_wrote_is_not_called_measured(run: Run, tmp_path: Path) -> None:
    write_trace(_mlp(), tmp_path / "run.xplane.pb", title="mlp", chip="v6e", quiet=True)
    _, out, _ = run("compare", _saved(tmp_path, _mlp()), tmp_path / "run_v6e.xplane.pb")
    assert "the trace was written by systolic: nothing here is measured" in out
    assert "measured µs" not in out


def test_a_name_that_xprof_does_not_read_is_refused(run: Run, tmp_path: Path) -> None:
    code, _, err = run("simulate", "jax.numpy:sin", "--arg", "f32[8]", "--trace", tmp_path / "run.pb")
    assert code == 2
    assert "run.pb is not a name that XProf reads: call it run.xplane.pb" in " ".join(err.split())
