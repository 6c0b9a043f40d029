"""`systolic compare`: what it matches, what it says, and when it fails."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cattrs
import pytest
from explanations import a_faster_one, a_run, an_explanation

import systolic
from systolic.accuracy.time_error import TimeError
from systolic.cli.main import main
from systolic.explaining.explanation import Explanation
from systolic.report import compare_explanations, compare_runs

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["compare", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write(path: Path, *rows: Any, command: str = "explain") -> Path:
    plain = [cattrs.unstructure(row) if isinstance(row, Explanation) else row for row in rows]
    path.write_text(json.dumps({"command": command, "versions": {}, "rows": plain, "summary": {}}))
    return path


def simulated(name: str, function: str = "k.py:f") -> dict[str, Any]:
    found = a_run(name)
    return {"function": function, "chip": found.chip, "time_us": found.time_us, "run": cattrs.unstructure(found)}


def test_what_changed() -> None:
    before, after = an_explanation(), a_faster_one()
    found = compare_explanations(before, after)
    rows = {(row.group, row.quantity): row for row in found.rows}
    assert found.rows[0].quantity == "simulated time"
    assert found.slower == pytest.approx(55_125 / 88_906 - 1)
    assert rows["time", "cycles"].after == 55_125
    assert rows["waiting", "copy"].change == pytest.approx(9_000 / 55_125 - 37_710 / 88_906)
    assert rows["memory", "HBM read"].change == pytest.approx(33_554_432 / 50_331_648 - 1)
    assert rows["memory", "VMEM"].change == 0.0
    assert rows["memory", "spilled registers"].before == before.run.spill_bytes
    assert rows["memory", "code"].unit == "bundles"
    assert rows["traffic", "rhs"].change == pytest.approx(-0.5)
    assert rows["traffic", "out"].change == 0.0
    assert rows["units", "vpu"].before == pytest.approx(before.run.busy["vpu"])
    assert ("units", "eup") not in rows  # nothing on both sides
    assert found.findings_gone == ("larger blocks of lhs",)
    assert found.findings_new == ("spills",)


def test_in_python_it_takes_two_explanations_or_two_runs_and_is_kept() -> None:
    before, after = an_explanation(), a_faster_one()
    found = systolic.compare(before, after)
    assert found == compare_explanations(before, after)
    assert systolic.Comparison.from_json(found.to_json()) == found
    assert (
        systolic.compare(before.run, after.run, names=("a", "b"))
        .summary()
        .heading.startswith("v6e a → b: 38.0% faster")
    )
    with pytest.raises(TypeError, match="cannot compare Explanation and SimulatedRun"):
        systolic.compare(before, after.run)
    with pytest.raises(ValueError, match="format"):
        systolic.Comparison.from_json(found.to_json().replace('"format": 1', '"format": 2'))


def test_it_writes_markdown_and_numbers_as_csv(run: Run, tmp_path: Path) -> None:
    files = write(tmp_path / "a.json", an_explanation()), write(tmp_path / "b.json", a_faster_one())
    _, markdown, _ = run(*files, "--format", "markdown")
    assert "| time | simulated time |" in markdown
    _, table, said = run(*files, "--format", "csv")
    (row, *_) = csv.DictReader(io.StringIO(table))
    assert (row["unit"], float(row["after"])) == ("µs", pytest.approx(a_faster_one().time_us))
    assert "faster" in said


def test_an_operand_that_only_one_side_has() -> None:
    before, after = an_explanation(), a_faster_one()
    after = dataclasses.replace(after, traffic=after.traffic[:2])
    (row,) = (row for row in compare_explanations(before, after).rows if row.quantity == "out")
    assert row.after is None
    assert row.change is None


def test_two_runs_are_compared_by_time_and_waiting() -> None:
    found = compare_runs(a_run(), a_run("xla_matmul"), names=("f", "g"))
    assert {row.group for row in found.rows} == {"time", "waiting"}
    assert found.slower == pytest.approx(found.after_us / found.before_us - 1)


def test_a_comparison_shows_itself() -> None:
    found = compare_explanations(an_explanation(), a_faster_one())
    assert "38.0% faster, simulated" in str(found).splitlines()[0]
    assert "larger blocks of lhs" in found._repr_html_()
    assert len(found.summary().rows) == len(found.rows)


def test_the_command(run: Run, tmp_path: Path) -> None:
    before, after = write(tmp_path / "a.json", an_explanation()), write(tmp_path / "b.json", a_faster_one())
    code, out, err = run(before, after)
    assert (code, err) == (0, "")
    assert "38.0% faster" in out.splitlines()[0]
    assert "finding gone: larger blocks of lhs" in out
    assert "33.55 MB" in out
    code, out, _ = run(before, after, "--json", "-")
    document = json.loads(out)
    assert document["command"] == "compare"
    assert document["summary"]["failed"] is False
    (row,) = document["rows"]
    assert row["slower_percent"] == pytest.approx(-38.0, abs=0.01)
    assert {"group", "quantity", "unit", "before", "after", "change"} == set(row["quantities"][0])


@pytest.mark.parametrize(("percent", "code"), [("0", 1), ("61.2", 1), ("61.3", 0), ("100", 0)])
def test_the_exit_code_is_one_when_it_got_slower(run: Run, tmp_path: Path, percent: str, code: int) -> None:
    before, after = write(tmp_path / "a.json", a_faster_one()), write(tmp_path / "b.json", an_explanation())
    assert run(before, after)[0] == 0
    found, out, _ = run(before, after, "--fail-above", percent)
    assert found == code
    assert ("slower by more than" in out) == bool(code)
    assert run(before, before, "--fail-above", percent)[0] == 0


@pytest.mark.parametrize(
    ("kernel", "ratio_percent", "percent", "verdict"),
    [
        ("scratch_matmul", 5.0, 70.0, "faster"),  # one kernel: the ratio is known better than either time
        ("scratch_matmul", 80.0, 70.0, "level"),
        ("another", 5.0, 70.0, "level"),
        ("another", 5.0, 40.0, "faster"),
        ("scratch_matmul", 5.0, None, "not known"),
    ],
)
def test_a_difference_inside_the_error_is_no_win(
    run: Run, tmp_path: Path, kernel: str, ratio_percent: float, percent: float | None, verdict: str
) -> None:
    error = TimeError(kind="k", percent=percent, ratio_percent=ratio_percent, reason="" if percent else "unlike")

    def of(explained: Explanation, name: str) -> Explanation:
        simulated = dataclasses.replace(explained.run, error=error)
        longest = max(simulated.later_core.ops, key=lambda op: op.cycles)
        core = dataclasses.replace(
            simulated.later_core, ops=(dataclasses.replace(longest, name=f"{name}.1", is_pallas=True),)
        )
        program = dataclasses.replace(explained.programs[0], run=dataclasses.replace(simulated, cores=(core,)))
        return dataclasses.replace(explained, programs=(program, *explained.programs[1:]))

    before = write(tmp_path / "a.json", of(an_explanation(), "scratch_matmul"))
    after = write(tmp_path / "b.json", of(a_faster_one(), kernel))
    (row,) = json.loads(run(before, after, "--json", "-")[1])["rows"]
    assert (row["verdict"], row["same_kernel"]) == (verdict, kernel == "scratch_matmul")
    assert (row["error_percent_before"], row["error_percent_after"]) == (percent, percent)
    code, out, _ = run(before, after)
    assert code == 0
    assert ("no difference that holds" in out) == (verdict == "level")


def test_rows_are_matched_by_chip_and_function(run: Run, tmp_path: Path) -> None:
    one = an_explanation()
    other = dataclasses.replace(a_faster_one(), function="kernels.py:other")
    fifth = dataclasses.replace(one, chip="v5e")
    before = write(tmp_path / "a.json", fifth, one, other)
    after = write(tmp_path / "b.json", other, one)
    code, out, _ = run(before, after)
    assert code == 0
    assert out.count("as fast as before") == 2
    assert "not compared: v5e kernels.py:scratch_matmul is only in the first file" in out
    # One function a chip on each side: a renamed one is still what it is to be compared with.
    _, out, _ = run(write(tmp_path / "c.json", one), write(tmp_path / "d.json", other))
    assert "kernels.py:scratch_matmul → kernels.py:other" in out


def test_a_chip_that_explain_failed_on_has_no_time(run: Run, tmp_path: Path) -> None:
    one = an_explanation()
    fifth = dataclasses.replace(one, chip="v5e")
    before, after = write(tmp_path / "a.json", one, fifth), write(tmp_path / "b.json", one)
    document = json.loads(after.read_text())
    document["summary"]["failed"] = {"v5e": "CompilerRefusal: too much VMEM"}
    after.write_text(json.dumps(document))
    code, out, _ = run(before, after, "--fail-above", "2")
    assert code == 1
    assert "no time in the second file: CompilerRefusal: too much VMEM" in out


def test_files_of_simulate_and_single_explanations(run: Run, tmp_path: Path) -> None:
    before = write(tmp_path / "a.json", simulated("scratch_matmul"), command="simulate")
    after = write(tmp_path / "b.json", simulated("xla_matmul"), command="simulate")
    code, out, _ = run(before, after)
    assert code == 0
    assert "43.9% faster" in out
    assert "HBM read" not in out
    bare = tmp_path / "bare.json"
    bare.write_text(an_explanation().to_json())
    assert "as fast as before" in run(bare, bare)[1]
    assert "as fast as before" in run(bare, before)[1]
    (tmp_path / "run.json").write_text(a_run().to_json())
    assert "as fast as before" in run(before, tmp_path / "run.json")[1]


def test_a_function_that_has_no_time_any_more(run: Run, tmp_path: Path) -> None:
    refused = {"function": "k.py:f", "chip": "v6e", "status": "CompilerRefusal", "reason": "no [room]", "time_us": None}
    before = write(tmp_path / "a.json", simulated("scratch_matmul"), command="simulate")
    after = write(tmp_path / "b.json", refused, command="simulate")
    code, out, _ = run(before, after)
    assert code == 0
    assert "no time in the second file: no [room]" in out
    assert run(before, after, "--fail-above", "5")[0] == 1
    code, _, err = run(after, after)
    assert code == 2
    assert "no chip in common" in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is a JSON list"),
        ("{}", "is a JSON object that no command wrote"),
        ('{"command": "bench", "rows": [{"chip": "v5e"}]}', "the result of `systolic bench`"),
        ('{"command": "explain", "rows": []}', "holds no rows"),
        ('{"programs": [], "format": 99}', "of 99"),
        ('{"clock_hz": 1}', "this is not a simulated run"),
    ],
)
def test_a_file_that_is_none(run: Run, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    code, out, err = run(path, path)
    assert (code, out) == (2, "")
    assert says in err
    assert "systolic explain --json" in err
    assert "Traceback" not in err


def test_a_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    assert run(tmp_path / "none.json", tmp_path / "none.json")[0] == 2


def test_help_has_an_example(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "--fail-above 2" in out
