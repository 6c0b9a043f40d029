"""Output that cannot be written, and text that a terminal would obey."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from explanations import a_run
from rich.console import Console

from systolic.cli import main
from systolic.cli.output import note, printable
from systolic.cli.tables import console, show_table
from systolic.report import RatePoint, rates_plot, save_png
from systolic.report.columns import numeric, textual
from systolic.support.whole_file import whole_file

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")

COMMANDS = [
    ["plan", "512,512,512"],
    ["plan", "512,512,512", "--json", "-"],
    ["lessons"],
    ["--help"],
]


def started(arguments: list[str], **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "systolic", *arguments], stderr=subprocess.PIPE, text=True, **how)


@needs_full
@pytest.mark.parametrize(("redirected", "says"), [(">&-", "is closed"), ("1</dev/null", "Bad file descriptor")])
def test_a_closed_standard_output_is_one_line(redirected: str, says: str) -> None:
    command = f'"{sys.executable}" -m systolic chips {redirected}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert says in done.stderr


def test_a_closed_standard_error_is_no_error() -> None:
    done = subprocess.run(["sh", "-c", f'"{sys.executable}" -m systolic chips 2>&-'], capture_output=True, check=False)
    assert done.returncode == 0
    assert b"v5e" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_standard_output_is_one_line(arguments: list[str]) -> None:
    with FULL.open("w") as full, started(arguments, stdout=full) as process:
        _, err = process.communicate()
    assert process.returncode == 1
    assert err == "systolic: cannot write standard output: No space left on device\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with started(arguments, stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate()
    assert err == ""
    assert process.returncode == 1


@needs_full
def test_a_device_is_written_to_and_not_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["chips", "--json", str(FULL)]) == 2
    assert capfd.readouterr().err.startswith("systolic chips: cannot write /dev/full: No space left on device")
    assert stat.S_ISCHR(FULL.stat().st_mode)
    assert not list(Path("/dev").glob("full.*"))


LIMITED = """
import resource, sys
from systolic.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the least that a disk can be full
sys.exit(main(sys.argv[1:]))
"""


def test_a_file_that_the_disk_has_no_room_for_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "chips.json"
    file.write_text("old")
    command = [sys.executable, "-c", LIMITED, "chips", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"systolic chips: cannot write {file}: File too large (see systolic chips --help)\n"
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_plot_that_the_disk_has_no_room_for_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    file.symlink_to(FULL)
    if not FULL.exists():
        pytest.skip("this system has no /dev/full")
    points = [RatePoint(size=512, tflops=1.0, status="ok")]
    plot = rates_plot(points, title="t", kernel="k", provenance="simulated", peak_tflops=2.0, xla_tflops={})
    with pytest.raises(OSError, match="No space left"):
        save_png(plot, file)
    assert file.is_symlink()
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_goes_on_to_lead_where_it_led(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("old")
    link.symlink_to(there)
    with whole_file(link) as partial:
        partial.write_text("new")
        assert there.read_text() == "old"
    assert link.is_symlink()
    assert there.read_text() == "new"
    with pytest.raises(FileNotFoundError), whole_file(link) as partial:  # noqa: PT012 -- the block is what fails
        partial.write_text("half")
        (tmp_path / "none").read_text()
    assert there.read_text() == "new"
    assert sorted(tmp_path.iterdir()) == [link, there]


ESCAPES = "\x1b]0;title\x07\x1b[31m[/bold][red]\r\u202e\udcff\x9b2J"
SHOWN = r"\x1b]0;title\x07\x1b[31m[/bold][red]\r\u202e\udcff\x9b2J"


def test_what_a_terminal_obeys_is_written_out() -> None:
    assert printable(ESCAPES) == SHOWN
    assert printable("µs × 2 – a\tb\nc", keep="\n\t") == "µs × 2 – a\tb\nc"


def test_errors_and_notes_hold_no_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    note(ESCAPES, quiet=False)
    assert main(["simulate", f"{ESCAPES}.py:f"]) == 2
    assert main(["lessons", ESCAPES]) == 2
    err = capfd.readouterr().err
    assert err.count(r"\x1b") >= 6
    assert "\x1b" not in err


def test_tables_show_cells_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(console(), (textual("name", str), numeric(f"a {ESCAPES}", len)), [ESCAPES])
    console().print(ESCAPES, markup=False)
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 3
    assert isinstance(console(), Console)


def simulated(chip: str, function: str) -> dict[str, Any]:
    return {"function": function, "chip": chip, "status": "x", "reason": "[/red] no \x1b[2J"}


def test_labels_from_a_file_neither_crash_nor_style(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = dataclasses.replace(a_run(), chip="[/bold]")
    row = {"function": "[bold]\x1b[2Jmine", "chip": "[/bold]", "run": json.loads(run.to_json())}
    (tmp_path / "a.json").write_text(json.dumps({"command": "simulate", "rows": [row, simulated("v5e", "[/]")]}))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    out = capfd.readouterr().out
    assert r"[/bold] [bold]\x1b[2Jmine" in out
    assert "\x1b" not in out


EXPLAINED = "this takes the result of `systolic explain --json FILE`, `systolic simulate --json FILE` or "
EXPLAINED += "`systolic step --json FILE`"
BENCHED = "this takes the result of `systolic bench --json FILE`"
KINDS = {
    '{"command": "simulate", "rows": [{"a": 1}]}': "is the result of `systolic simulate`",
    '{"command": "plan", "rows": [{"chip": "v5e"}]}': "is the result of `systolic plan`",
    '{"chip": "v5e", "constants": {}}': "is a file of constants",
    '{"a": 1, "b": 2}': "is a JSON object that no command wrote, with a, b",
    "{}": "with nothing in it",
    "[1]": "is a JSON list",
    '"text"': "is a JSON string",
    "5": "is a JSON number",
    "null": "is JSON's null",
    "{": "is not JSON: ",
    "[" * 100_000: "nested too deep",
}


@pytest.mark.parametrize(("text", "found"), KINDS.items(), ids=range(len(KINDS)))
@pytest.mark.parametrize(
    ("command", "wanted"), [(["bench", "--from"], BENCHED), (["compare"], EXPLAINED)], ids=["bench", "compare"]
)
def test_a_result_of_another_kind_is_named_with_what_was_wanted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str], wanted: str, text: str, found: str
) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    assert main([*command, *[str(file)] * (2 if command == ["compare"] else 1)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert str(file) in err
    assert found in err
    assert wanted in err


@pytest.mark.parametrize("text", [*list(KINDS)[:2], "[" * 100_000])
def test_constants_of_another_kind_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    assert main(["simulate", "jax.numpy:sin", "--arg", "f32[128]", "--constants", str(file)]) == 2
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1
    assert ("is not JSON" if text.startswith("[") else "`systolic calibrate --out` writes but is the result of") in err


HUGE = "9" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "999999999999,999999999999,999999999999"],
        ["plan", f"{HUGE},1,1"],
        ["plan", "0,1,1"],
        ["plan", "1,1"],
        ["plan", "1,1,1,1"],
        ["plan", "1,1,", "--chip", "v5e"],
        ["plan", "4,4,4", "--batch", "99999999999"],
        ["plan", "4,4,4", "--tiles", f"{HUGE},1,1"],
        ["ladder", "v1", "--sizes", f"512,{HUGE}"],
        ["ladder", "v1", "--sizes", "2147483648"],
        ["tune", "512,512,512", "--time-budget", "nan"],
        ["simulate", "jax.numpy:sin", "--time-limit", "inf"],
        ["simulate", "jax.numpy:sin", "--memory-limit", "0GiB"],
        ["simulate", "jax.numpy:sin", "--memory-limit", "12"],
        ["simulate", "jax.numpy:sin", "--arg", f"f32[{HUGE}]"],
        ["simulate", "jax.numpy:sin", "--arg", "f32[2147483648]"],
        ["simulate", "jax.numpy:sin", "--arg", "f32[2147483647]=0"],
        ["check", "jax.numpy:sin", "--arg", "f32[8]", "--seeds", "99999999999"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_odd_numbers_are_one_line(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if not line.endswith(("job", "jobs"))] == err.splitlines()[-1:]
    assert err.startswith("systolic")


@pytest.mark.exhaustive
def test_the_largest_sizes_are_planned(capfd: pytest.CaptureFixture[str]) -> None:
    size = str(2**31 - 1)
    assert main(["plan", ",".join([size] * 3), "--batch", size]) == 0
    assert "MB" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("width", "dropped"), [(80, []), (40, ["second figure"]), (20, ["first figure", "second figure"])]
)
def test_a_narrow_terminal_gets_fewer_columns_and_is_told_which(width: int, dropped: list[str]) -> None:
    shown = io.StringIO()
    columns = (
        textual("name", lambda row: str(row)),
        numeric("first figure", lambda _: 1_234_567, droppable=True),
        numeric("second figure", lambda _: 1_234_567, droppable=True),
        numeric("needed", lambda _: 7),
    )
    show_table(Console(file=shown, width=width, force_terminal=True, color_system=None), columns, ["mine"])
    heading, row, *told = shown.getvalue().splitlines()
    assert [title for title in ("first figure", "second figure") if title not in heading] == dropped
    assert row.split() == ["mine", *["1234567"] * (2 - len(dropped)), "7"]
    assert all(title in " ".join(" ".join(told).split()) for title in dropped)
    assert bool(told) == bool(dropped)
    # Where nobody looks at it, nothing is left out.
    whole = io.StringIO()
    show_table(Console(file=whole, width=200), columns, ["mine"])
    assert whole.getvalue().count("1234567") == 2
