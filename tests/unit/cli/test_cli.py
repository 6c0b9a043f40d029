"""The command line: what it says, where it says it, and its exit codes. Nothing here needs the compiler."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import systolic.cli.ladder
from systolic.cli.output import write_json
from systolic.compiler import CompilerMissing
from systolic.lessons import LESSONS

Run = Callable[..., tuple[int, str, str]]

MESSAGE = "libtpu, is not installed"


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CompilerMissing

    monkeypatch.setattr(systolic.cli.ladder, "check_available", missing)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ladder", "--sizes", "0"), "'0' is not a size"),
        (("ladder", "--sizes", "512,5x"), "'5x' is not a size"),
        (("ladder", "--sizes", ""), "is not a size"),
        (("ladder", "--chip", "v9"), "'v9' is unknown; choose from v4, v5e, v5p, v6e, v7x"),
        (("ladder", "--tiles", "1,2"), "'1,2' is not a tile"),
        (("ladder", "--tiles", "0,128,128"), "tile_m=0"),
        (("ladder", "--dtype", "float16"), "float16"),
        (("ladder", "v9"), "rung 'v9' is unknown; choose from v1"),
        (("ladder", "--splits", "0"), "--splits"),
        (("ladder", "--sweep", "--tiles", "128,128,128"), "give one of the two"),
        (("ladder", "v1", "v2", "--tiles", "128,128,128"), "v1, v2 takes none"),
        (("ladder", "v3", "--sweep"), "v3 has no tiles to find"),
        (("ladder", "--json", "/proc/nothing/ladder.json"), "cannot write /proc/nothing/ladder.json"),
        (("ladder", "--plot", "/proc/nothing"), "cannot write /proc/nothing"),
        (("lessons", "v9"), "lesson 'v9' is unknown; choose from"),
        (("chips", "v9"), "'v9' is unknown"),
        (("explian",), "command 'explian' is unknown; did you mean explain? choose from plan"),
        (("table", "exprot", "x"), "did you mean export? choose from"),
        (("chips", "--jsom", "x"), "--json"),  # click's suggestion
        (("chips", "--json", "/proc/nothing/chips.json"), "cannot write /proc/nothing/chips.json"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("v3", "--tiles", "100,100,100", "--sizes", "512"), "tile_m=100 is not a multiple of 8"),
        (("v3", "--sizes", "1000"), "the last 104 of m would be lost"),
        (("v4", "--tiles", "1024,128,128", "--sizes", "512"), "tile_m=1024 is above m=512"),
        (("v2", "--splits", "3", "--sizes", "512"), "512"),
        (("all", "--dtype", "int8", "--chip", "v4", "--sizes", "512,1024"), "v4 has no matrix multiplication of int8"),
        (("v5", "--sweep", "--sizes", "3000"), "pad to 3072"),
    ],
)
@pytest.mark.usefixtures("without_compiler")
def test_what_is_illegal_is_one_line_and_exit_code_1(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, _ = run("ladder", *arguments, "-q")
    assert code == 1
    assert said in out
    assert "illegal" in out
    assert len(out.splitlines()) == 1


@pytest.mark.usefixtures("without_compiler")
def test_without_libtpu_results_are_checked_and_the_way_out_is_named(run: Run) -> None:
    code, out, err = run("ladder", "v3", "v5", "--sizes", "256", "--json", "-", "-q")
    assert code == 1
    assert MESSAGE in err
    rows = json.loads(out)["rows"]
    assert [(row["rung"], row["check"], row["status"], row["time_us"]) for row in rows] == [
        ("v3", "right", "ok", None),
        ("v5", "right", "ok", None),
    ]


@pytest.mark.usefixtures("without_compiler")
def test_json_holds_what_was_promised(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "ladder.json"
    run("ladder", "v1", "--sizes", "128,100", "--dtype", "int8", "--json", str(target), "-q")
    document = json.loads(target.read_text())
    assert set(document) == {"command", "schema", "versions", "rows", "summary"}
    assert document["command"] == "ladder"
    assert {"jax", "libtpu", "systolic", "python"} <= set(document["versions"])
    keys = "rung chip m k n dtype tile_m tile_k tile_n status reason time_us provenance tflops percent_of_peak"
    keys += " xla_time_us ratio_to_xla max_abs_error tolerance jax libtpu"
    for row in document["rows"]:
        assert set(keys.split()) <= set(row)
    assert document["summary"]["rows"] == 2
    assert [path.name for path in target.parent.iterdir()] == ["ladder.json"]


def test_a_json_file_has_the_usual_permissions_and_no_nan(tmp_path: Path) -> None:
    target = tmp_path / "new.json"
    write_json(str(target), "x", [{"error": math.nan, "of": [math.inf, 1.5]}], {})
    (tmp_path / "usual").touch()
    assert target.stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert json.loads(target.read_text())["rows"] == [{"error": None, "of": [None, 1.5]}]


def test_a_json_file_that_fails_half_way_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "kept.json"
    target.write_text("before")

    def fail(path: Path, contents: bytes) -> None:
        path.write_text(contents.decode()[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(click.UsageError, match="No space"):
        write_json(str(target), "x", [], {})
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


@pytest.mark.usefixtures("without_compiler")
def test_what_is_to_be_done_is_told_on_stderr_unless_quiet(run: Run) -> None:
    _, out, err = run("ladder", "v3", "--sizes", "128,256")
    assert "2 without a time" in out
    assert err.splitlines()[0] == "2 jobs"
    _, _, err = run("ladder", "v3", "--sizes", "128", "-q")
    assert "jobs" not in err


def test_a_json_file_that_cannot_be_written_leaves_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    code, _, err = run("chips", "--json", str(tmp_path / "taken"))
    assert code == 2
    assert "cannot write" in err
    assert [path.name for path in tmp_path.rglob("*")] == ["taken"]


def test_chips_shows_every_number_with_its_source(run: Run) -> None:
    code, out, _ = run("chips", "v5e", "v7x")
    assert code == 0
    for words in ("TPU v5 lite", "819", "machine.dma_latency_cycles", "Google Cloud", "TPU7x", "(as bfloat16)"):
        assert words in out


def test_chips_without_a_name_fit_a_screen_and_say_how_to_see_more(run: Run) -> None:
    code, out, _ = run("chips")
    assert code == 0
    assert len(out.splitlines()) < 24
    assert "systolic chips v5e\n" in out


def test_chips_as_json(run: Run) -> None:
    code, out, _ = run("chips", "--json", "-")
    document = json.loads(out)
    assert code == 0
    assert [row["name"] for row in document["rows"]] == ["v4", "v5e", "v5p", "v6e", "v7x", "8i", "8t"]
    for row in document["rows"][:5]:
        assert set(row["machine"]) <= {name.removeprefix("machine.") for name in row["sources"]}


def test_lessons_are_listed_and_run(run: Run) -> None:
    code, out, _ = run("lessons")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(LESSONS)
    code, out, _ = run("lessons", "roofline", "-q")
    assert code == 0
    assert "2,147,483,648" in out
    code, out, _ = run("lessons", "roofline", "--json", "-", "-q")
    assert json.loads(out)["summary"] == {"roofline": True}


@pytest.mark.parametrize("command", [(), ("ladder",), ("lessons",), ("chips",)])
def test_help_has_an_example(run: Run, command: tuple[str, ...]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "Example" in out
    assert "  systolic " in out


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "systolic", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("systolic, version 0.")


@pytest.mark.usefixtures("without_compiler")
def test_a_plot_that_cannot_be_drawn_is_refused_before_the_work(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(extra: str) -> list[str]:
        return ["altair", "vl_convert"]

    monkeypatch.setattr("systolic.support.extras.missing", missing)
    for command in (
        ["ladder", "v3", "--plot", str(tmp_path)],
        ["bench", "--suite", "moe", "--plot", str(tmp_path / "x")],
    ):
        code, out, err = run(*command)
        assert (code, out) == (1, "")
        assert "altair and vl_convert" in err
        assert "python -m pip install" in err
