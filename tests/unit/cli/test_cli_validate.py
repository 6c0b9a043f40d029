"""`systolic validate` and `systolic calibrate` without the compiler: in its place, times that are arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import systolic.cli.calibrate
import systolic.cli.validate
import systolic.timing.runner
import systolic.validation.predictions
from systolic.chips import Chip, MachineModel, chip
from systolic.compiler import CompilerMissing, CompilerRefusal
from systolic.simulator import DeadlockError
from systolic.timing import Measurement
from systolic.validation.errors import PublishedProgram
from systolic.validation.published import COLUMNS

Run = Callable[..., tuple[int, str, str]]

KEYS = """chip op m k n dtype_lhs dtype_rhs dtype_out tile_m tile_k tile_n timing published_us predicted_us error
dispatch_us counted reason source"""
ERRORS = ["rows", "programs", "median_error", "p90_error", "worst_error", "bias", "rank_correlation"]


def time_us(known: Chip, m: int, k: int, n: int) -> float:
    """Replace a simulation by bytes over the bandwidth, and a latency for every 128 of k."""
    copies = 2 * (m * k + k * n + m * n) / known.machine.hbm_bytes_per_s
    return (copies + k / 128 * known.machine.dma_latency_cycles / known.machine.clock_hz) * 1e6


def outcome(function: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(function())
    except Exception as error:  # noqa: BLE001 -- a future keeps any
        future.set_exception(error)
    return future


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of 64 are refused, and such of 96 wait for ever."""

    def answered(fn: object, args: Any, known: Chip) -> float:
        (m, k), n = args[0].shape, args[1].shape[1]
        if m == 64:
            raise CompilerRefusal("too small\nfor this", kind="other", where="/somewhere/kernel.py:3 in kernel")
        if m == 96:
            raise DeadlockError("waits for a copy")
        return time_us(known, m, k, n)

    def submit_simulation(_pool: object, fn: object, args: Any, known: Chip, **_: object) -> Future[Measurement]:
        def measurement() -> Measurement:
            return Measurement(chip=known.name, provenance="simulated", time_us=answered(fn, args, known))

        return outcome(measurement)

    class Prepared:
        def __init__(self, args: Any, known: Chip) -> None:
            self.args, self.chip = args, known

        def run(self, *, machine: MachineModel) -> Measurement:
            known = replace(self.chip, machine=machine)
            return Measurement(chip=known.name, provenance="simulated", time_us=answered(None, self.args, known))

    def submit_preparation(_pool: object, fn: object, args: Any, known: Chip, **_: object) -> Future[Any]:
        def prepared() -> Prepared:
            if args[0].shape[0] == 64:
                answered(fn, args, known)
            return Prepared(args, known)

        return outcome(prepared)

    monkeypatch.setattr(systolic.cli.validate, "check_available", lambda: None)
    monkeypatch.setattr(systolic.timing.runner, "submit_simulation", submit_simulation)
    monkeypatch.setattr(systolic.cli.calibrate, "check_available", lambda: None)
    monkeypatch.setattr(systolic.validation.predictions, "submit_preparation", submit_preparation)


def line(**changes: object) -> str:
    values = dict.fromkeys(COLUMNS, "")
    values |= {"source": "me", "chip": "v5e", "op": "xla", "m": 256, "k": 256, "n": 256, "time_us": 200.0}
    values |= {"dtype_lhs": "bfloat16", "dtype_rhs": "bfloat16", "dtype_out": "bfloat16", "timing": "wall_clock"}
    return ",".join(str(value) for value in (values | {"notes": ""} | changes).values())


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: str) -> Path:
        path = tmp_path / "published.csv"
        path.write_text("\n".join([",".join([*COLUMNS, "notes"]), *lines]) + "\n")
        return path

    return write


def test_every_row_is_there_with_its_error_or_its_reason(run: Run, published: Callable[..., Path]) -> None:
    device = time_us(chip("v5e"), 2048, 256, 4096)
    file = published(
        line(),
        line(op="ladder_v5", tile_m=128, tile_k=128, tile_n=128, timing="device", time_us=10),
        line(m=2048, n=4096, timing="device", time_us=device, dtype_lhs="int8", dtype_rhs="int8", dtype_out="int32"),
        line(op="flash"),
        line(chip="v9"),
        line(op="ladder_v3"),
        line(m=64),
        line(m=96),
        line(chip="v5p", notes="one core"),
        line(time_us=100),
        line(timing="guess"),
    )
    code, out, _ = run("validate", file, "--json", "-", "--dispatch-us", 100, "-q")
    document = json.loads(out)
    rows = document["rows"]
    assert (code, document["command"], len(rows)) == (0, "validate", 11)
    assert all(set(KEYS.split()) <= set(row) for row in rows)
    assert [row["counted"] for row in rows] == [True] * 3 + [False] * 8
    simulated = time_us(chip("v5e"), 256, 256, 256)
    assert rows[0]["error"] == pytest.approx(simulated / (200 - 100) - 1)
    assert (rows[0]["published_us"], rows[0]["dispatch_us"], rows[0]["reason"]) == (200, 100, "")
    assert rows[1]["error"] == pytest.approx(simulated / 10 - 1)
    assert (rows[1]["dispatch_us"], rows[1]["tile_m"], rows[0]["tile_m"]) == (0, 128, None)
    assert rows[2]["error"] == pytest.approx(0)
    reasons = ["'flash' is unknown", "'v9' is unknown", "needs tile_m", "too small", "waits for a copy", "2 cores"]
    for row, reason in zip(rows[3:], [*reasons, "nothing is left", "'guess' is unknown"], strict=True):
        assert reason in row["reason"]
        assert "\n" not in row["reason"]
        assert "/somewhere" not in row["reason"]
    assert [row["predicted_us"] is None for row in rows[3:]] == [True] * 6 + [False] * 2
    assert (rows[9]["error"], rows[10]["error"]) == (None, pytest.approx(simulated / 200 - 1))
    summary = document["summary"]
    assert list(summary) == ["v5e", "v9", "v5p"]
    assert [summary["v5e"][key] for key in ("rows", "programs")] == [3, 3]
    assert summary["v5e"]["from_2048"]["rows"] == 0  # k counts too
    for part in (summary["v5e"], summary["v9"], summary["v9"]["from_2048"]):
        assert set(ERRORS) <= set(part)
    assert summary["v9"]["median_error"] is None


def test_the_table_says_how_times_are_known_and_why_rows_are_left_out(run: Run, published: Callable[..., Path]) -> None:
    code, out, err = run("validate", published(line(), line(op="flash")))
    assert code == 0
    assert "simulated µs" in out
    assert "predicted times are simulated" in out
    assert "2 rows: 1 counted, 1 not; 115 µs of dispatch" in out
    assert "not counted, line 3 (v5e flash 256/256/256): op 'flash' is unknown" in out
    assert "1 job\n" in err


def test_nothing_that_can_be_predicted_is_exit_code_1(run: Run, published: Callable[..., Path], tmp_path: Path) -> None:
    file = published(line(op="flash"), line(m=64))
    code, out, err = run("validate", file, "--plot", tmp_path / "trust.png", "--page", tmp_path / "trust.md")
    assert code == 1
    assert "2 rows: 0 counted, 2 not" in out
    assert "no plot: no row is counted" in err
    assert not (tmp_path / "trust.png").exists()
    assert "No row could be compared." in (tmp_path / "trust.md").read_text()


def test_the_page_and_its_picture(run: Run, published: Callable[..., Path], tmp_path: Path) -> None:
    file = published(
        line(source="a | b"),
        line(m=4096, k=4096, n=4096, time_us=500),
        line(op="ladder_v5", tile_m=128, tile_k=128, tile_n=128),
        line(op="flash"),
    )
    code, _, err = run("validate", file, "--plot", tmp_path / "docs" / "p.png", "--page", tmp_path / "docs" / "p.md")
    page = (tmp_path / "docs" / "p.md").read_text()
    assert code == 0
    assert "page" in err
    assert (tmp_path / "docs" / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "![simulated over measured times](p.png)" in page
    assert "    systolic validate published.csv --dispatch-us 115 --plot p.png --page p.md" in page
    assert str(tmp_path) not in page
    assert "1 of the 3 counted rows" in page
    not_counted = (tmp_path / "docs" / "p" / "not_counted.md").read_text()
    assert "| v5e | flash | 256/256/256 | bfloat16 |  | 200.0 | op 'flash' is unknown" in not_counted
    assert "- a | b" in (tmp_path / "docs" / "p" / "rows_v5e.md").read_text()
    tables = [text for text in page.splitlines() if text.startswith("| v5e, ")]
    assert [text.split("|")[1:4] for text in tables] == [
        [" v5e, all ", " 3 ", " 3 "],
        [" v5e, from 2048 ", " 1 ", " 1 "],
    ]
    assert not [text for text in page.splitlines() if len(text) > 120 and not text.startswith(("|", "- "))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--chip", "v6e"), "has no row of v6e"),
        (("--chip", "v9"), "'v9' is unknown"),
        (("--dispatch-us", "-1"), "--dispatch-us"),
        (("--constants", "{here}/missing.json"), "missing.json"),
        (("--constants", "{here}/broken.json"), "is not JSON"),
        (
            ("--constants", "{here}/v6e.json", "--chip", "v5e"),
            "no row of this chip is selected",
        ),
        (("--constants", "{here}/v9.json"), "holds constants of v9"),
        (("--constants", "{here}/unknown.json"), "constant 'mxu_count' is unknown"),
        (("--plot", "/proc/nothing/x.png"), "cannot write /proc/nothing/x.png"),
        (("--page", "/proc/nothing/x.md"), "cannot write /proc/nothing/x.md"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    run: Run, published: Callable[..., Path], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "broken.json").write_text("{")
    for name, constants in (("v6e", {"clock_hz": 1e9}), ("v9", {"clock_hz": 1e9}), ("unknown", {"mxu_count": 1})):
        named = {"chip": "v5e" if name == "unknown" else name, "constants": constants}
        (tmp_path / f"{name}.json").write_text(json.dumps(named))
    code, out, err = run("validate", published(line()), *(text.format(here=tmp_path) for text in arguments))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_help_has_an_example(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"  systolic {command} published_times.csv" in out


def test_without_the_compiler_its_name_is_said(
    run: Run, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise CompilerMissing

    monkeypatch.setattr(systolic.cli.validate, "check_available", missing)
    code, _, err = run("validate", published(line()))
    assert code == 1
    assert "libtpu, is not installed" in err


# ---- calibrate ----

SIZES = [(128, 8192, 128), (4096, 256, 4096), (256, 16384, 256), (8192, 128, 8192), (1024, 1024, 1024)]
SIZES += [(128, 4096, 128), (2048, 512, 2048), (512, 2048, 512)]


def planted(published: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """Rows as a v5e with other constants would have made them, twice each, and those constants in a file."""
    constants = {"hbm_bytes_per_s": 0.6e12, "dma_latency_cycles": 900}
    (tmp_path / "truth.json").write_text(json.dumps({"chip": "v5e", "constants": constants}))
    truth = systolic.cli.validate.with_constants(
        chip("v5e"), systolic.cli.validate.load_constants(tmp_path / "truth.json")
    )
    rows = []
    for m, k, n in SIZES:
        device = time_us(truth, m, k, n)
        rows += [
            line(m=m, k=k, n=n, timing="device", time_us=device),
            line(m=m, k=k, n=n, timing="wall_clock", time_us=device + 115),
        ]
    return published(*rows, line(m=64), line(op="flash")), tmp_path / "truth.json"


def test_constants_travel_from_calibrate_to_validate(run: Run, published: Callable[..., Path], tmp_path: Path) -> None:
    file, truth = planted(published, tmp_path)
    out_file = tmp_path / "out" / "fitted.json"
    fit = "hbm_bytes_per_s,dma_latency_cycles"
    code, out, err = run("calibrate", file, "--chip", "v5e", "--fit", fit, "--json", "-", "--out", out_file)
    document = json.loads(out)
    summary = document["summary"]
    assert code == 0
    assert "8 programs, 4 to fit" in err
    assert summary["constants"]["hbm_bytes_per_s"]["fitted"] == pytest.approx(0.6e12, rel=0.01)
    assert summary["constants"]["dma_latency_cycles"]["fitted"] == pytest.approx(900, rel=0.01)
    assert set(summary["fitted_on"]).isdisjoint(summary["checked_on"])
    for half in ("fit", "check"):
        assert summary[half]["before"]["rows"] == 8
        assert summary[half]["before"]["median_error"] > 0.01 > summary[half]["after"]["worst_error"]
    rows = document["rows"]
    assert len(rows) == 2 * len(SIZES) + 2
    assert [row["half"] for row in rows[-2:]] == [None, None]
    for first, second in zip(rows[:-2:2], rows[1:-2:2], strict=True):
        assert first["half"] == second["half"] != None  # noqa: E711 -- a product is on one side
        assert abs(first["error"]) < abs(first["error_before"])
    written = json.loads(out_file.read_text())
    assert written["chip"] == "v5e"
    assert written["fitted_on"] == summary["fitted_on"]
    assert written["versions"]["jax"]
    for constants, in_view in ((out_file, 8), (truth, 0)):
        code, out, _ = run("validate", file, "--constants", constants, "--json", "-", "-q")
        document = json.loads(out)
        assert code == 0
        assert document["summary"]["v5e"]["worst_error"] < 0.01
        assert sum(row["in_view"] for row in document["rows"]) == in_view
    page = tmp_path / "page.md"
    run("validate", file, "--constants", out_file, "--page", page, "-q")
    assert "These are not the shipped constants" in page.read_text()


def test_the_tables_of_calibrate(run: Run, published: Callable[..., Path], tmp_path: Path) -> None:
    file, _ = planted(published, tmp_path)
    code, out, _ = run("calibrate", file, "--chip", "v5e", "--fit", "hbm_bytes_per_s,result_latency_cycles", "-q")
    assert code == 0
    assert "split: distinct programs in the order of their published times" in out
    assert "these rows do not determine it" in out
    shown = [text.split() for text in out.splitlines() if text.startswith("v5e  ")]
    assert {"fit", "check", "–"} == {cells[4] for cells in shown}
    assert "not counted, line 18 (v5e xla 64/256/256): too small" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--chip", "v5e,v6e"), "constants are fitted for one chip"),
        ((), "--chip"),
        (("--chip", "v5e", "--fit", "colour"), "'colour' is unknown; choose from clock_hz"),
        (("--chip", "v5e", "--fit", ""), "'' is unknown"),
        (("--chip", "v5e"), "v5e has 3 distinct programs with a published time"),
        (("--chip", "v5e", "--out", "/proc/nothing/c.json"), "cannot write /proc/nothing/c.json"),
    ],
)
def test_a_wrong_calibration_is_one_line_and_exit_code_2(
    run: Run, published: Callable[..., Path], arguments: tuple[str, ...], said: str
) -> None:
    rows = [line(m=size) for size in (128, 256, 512)] * 2
    code, out, err = run("calibrate", published(*rows, line(op="flash")), *arguments)
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]


def test_programs_that_fail_are_not_enough_either(run: Run, published: Callable[..., Path]) -> None:
    rows = [line(m=size) for size in (64, 96, 128, 256, 512)]
    code, _, err = run("calibrate", published(*rows), "--chip", "v5e")
    assert code == 2
    assert "v5e has 3 distinct programs" in err


def test_a_program_is_told_by_what_was_multiplied(published: Callable[..., Path]) -> None:
    from systolic.cli.published import programs_of, rows_of

    tiles = {"tile_m": 128, "tile_k": 128, "tile_n": 128}
    file = published(
        line(op="ladder_v5", **tiles),
        line(op="block_matmul_f32_scratch", **tiles),
        line(op="ladder_v4", **tiles),
        line(op="ladder_v5_relu", **tiles),
    )
    programs = [found for found in programs_of(rows_of((file,), ())) if isinstance(found, PublishedProgram)]
    assert len(programs) == 4
    assert len(set(programs)) == 3
    assert programs[0] == programs[1]
