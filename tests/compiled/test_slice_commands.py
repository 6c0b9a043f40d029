"""`systolic explain`, `simulate` and `compare` of a function on a slice, as their user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from systolic.cli import main
from systolic.explaining import Explanation
from systolic.simulator import SliceRun

FUNCTION = f"{Path(__file__).parents[2] / 'examples' / 'sharded.py'}:feed_forward"
M, K, N = 2048, 512, 1024  # a result of two MiB: the table of devices has to lie elsewhere
DEVICES = 4
ON = ("--chip", "v6e", "--topology", "2x2", "--workers", "1", "-q")
# Weights in columns and rows over four chips: one all-reduce of the result.
ARGUMENTS = ("--arg", f"bf16[{M},{K}]@-,-", "--arg", f"bf16[{K},{N}]@-,model", "--arg", f"bf16[{N},{K}]@model,-")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("slices")
    command = ["explain", FUNCTION, *ON, "--mesh", "data=1,model=4", *ARGUMENTS, "--try-mesh", "--tries", "2"]
    assert main([*command, "--json", str(made / "explained.json"), "--out", str(made / "page.html")]) == 0
    command = ["simulate", FUNCTION, *ON, "--mesh", "data=1,model=4", *ARGUMENTS]
    assert main([*command, "--json", str(made / "run.json"), "--trace", str(made / "trace.json")]) == 0
    return made


def explained(folder: Path) -> Explanation:
    (row,) = json.loads((folder / "explained.json").read_text())["rows"]
    return Explanation.from_json(json.dumps(row))


@pytest.mark.exhaustive
def test_explain_names_exposed_communication_and_what_hides_it(folder: Path) -> None:
    found = explained(folder)
    run = found.slice_run
    assert run is not None
    assert (run.devices, run.topology, found.topology) == (DEVICES, "2x2", "2x2")
    (reduced,) = run.collectives
    assert reduced.kind == "all-reduce"
    assert run.exposed_us > 0
    assert f"exposed {run.exposed_us / run.time_us:.0%} of the time" in found.verdict
    hidden = next(each for each in found.savings if each.provenance == "modelled")
    assert hidden.time_us == pytest.approx(run.time_us - reduced.exposed_cycles / run.clock_hz * 1e6)
    # A device's share of two products.
    assert found.programs[0].flops == 2 * 2 * M * K * N / DEVICES


def test_other_meshes_are_simulated(folder: Path) -> None:
    this, *others = explained(folder).programs
    assert [each.role for each in others] == ["change", "change"]
    for each in others:
        assert each.time_us is not None, each.reason
        assert each.communication is not None
    assert any(each.time_us != this.time_us for each in others)  # on 2x2, another order of devices may be no other


def test_the_page_has_the_slice(folder: Path) -> None:
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert 'id="slice"' in page
    assert "4 devices of a 2x2 slice" in page


def test_simulate_says_the_same_and_compare_finds_no_difference(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = json.loads((folder / "run.json").read_text())["rows"]
    run, other = SliceRun.from_json(json.dumps(row["run"])), explained(folder).slice_run
    assert other is not None
    assert (run.cycles, run.collectives) == (other.cycles, other.collectives)
    assert main(["compare", str(folder / "run.json"), str(folder / "explained.json"), "--fail-above", "0"]) == 0
    assert "v6e 2x2" in capsys.readouterr().out


def test_the_trace_has_what_crosses_the_links(folder: Path) -> None:
    (row,) = json.loads((folder / "run.json").read_text())["rows"]
    trace = json.loads((folder / "trace.json").read_text())
    number = next(each["pid"] for each in trace["traceEvents"] if "links of" in str(each["args"].get("name")))
    crossed = [each for each in trace["traceEvents"] if each["pid"] == number and each["ph"] == "X"]
    sent = sum(link["sent_bytes"] for link in row["run"]["links"])
    assert trace["otherData"]["spans_left_out"] == 0
    assert sum(each["args"]["bytes"] for each in crossed) == sent > 0
