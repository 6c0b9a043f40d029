"""Published times: read with suspicion, compared with predictions, counted by chip; constants fitted and kept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from systolic.cli.main import main
from systolic.lessons.published_ops import published_program
from systolic.validation.errors import compared, program_or_reason, statistics_by_chip
from systolic.validation.published import COLUMNS, PublishedFileError, PublishedRow, read_published

ROW = PublishedRow(
    line=2,
    source="somebody",
    chip="v5e",
    op="ladder_v5",
    m=256,
    k=512,
    n=384,
    dtype_lhs="bfloat16",
    dtype_rhs="bfloat16",
    dtype_out="float32",
    tile_m=128,
    tile_k=128,
    tile_n=128,
    published_us=200.0,
    timing="wall_clock",
)


def write_csv(path: Path, *rows: str) -> Path:
    path.write_text(",".join([*COLUMNS, "notes"]) + "\n" + "".join(row + "\n" for row in rows))
    return path


LINE = "me,v5e,xla,8,16,32,bfloat16,bfloat16,float32,,,,12.5,device,"


def test_reading(tmp_path: Path) -> None:
    (row,) = read_published(write_csv(tmp_path / "t.csv", LINE))
    assert (row.chip, row.m, row.k, row.n, row.tile_m, row.published_us) == ("v5e", 8, 16, 32, None, 12.5)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (LINE.replace(",8,", ",-8,"), "line 2: m='-8'"),
        (LINE.replace("12.5", "fast"), "line 2: time_us='fast'"),
        (LINE.replace("12.5", "nan"), "time_us='nan'"),
        (LINE + ",more", "line 2 has 16 values"),
        (LINE.replace("12.5", "1e999"), "line 2: time_us='1e999'"),
        (LINE.replace("12.5", "-0.0"), "line 2: time_us='-0.0'"),
        (LINE.replace(",8,", f",{2**31},"), "line 2: m='2147483648' is not an integer"),
        (LINE.replace(",8,", "," + "9" * 5000 + ","), "line 2: m='9999.*… is not an integer"),
        (LINE.replace(",8,", ",٣,"), "line 2: m=.* is not an integer"),
        (LINE + "\0", "line 2 has a control character"),
        (LINE + "\x1b[2J", r"line 2 has a control character: 'me,.*"),
        (LINE + '\n"' + "x" * 100_000, "line 3 has 100,000 characters or more"),
        (LINE + "\n" + '"x', "line 3: unexpected end of data"),
    ],
)
def test_a_wrong_file_names_line_and_value(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(PublishedFileError, match=says):
        read_published(write_csv(tmp_path / "t.csv", line))


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (LINE.encode() + b"\n\xff\xfe,x\n", r"line 3 is not UTF-8 text"),
        (LINE.encode() + b"\xed\xa0\x80\n", r"line 2 is not UTF-8 text"),
        (b"\0" * 200_000, "line 2 has 100,000 characters"),
    ],
)
def test_bytes_that_are_no_text_name_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], held: bytes, says: str
) -> None:
    file = write_csv(tmp_path / "t\x1b.csv")
    file.write_bytes(file.read_bytes() + held)
    with pytest.raises(PublishedFileError, match=says):
        read_published(file)
    for command in (["validate"], ["calibrate", "--out", str(tmp_path / "out" / "v5e.json")]):
        assert main([*command, str(file), "--chip", "v5e", "--json", str(tmp_path / "found.json")]) == 2
        said = capsys.readouterr().err
        assert re.search(says, said)
        assert said[:-1].isprintable()
    assert not [path for path in tmp_path.rglob("*.json") if path.is_file()]


def test_brackets_in_a_cell_are_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("systolic.cli.validate.check_available", lambda: None)
    odd = [LINE.replace("v5e", "[/bold]"), LINE.replace("xla", "[/bold]").replace("device", "[/bold]")]
    assert main(["validate", str(write_csv(tmp_path / "t.csv", *odd)), "-q"]) == 1  # none has a program
    assert "op '[/bold]' is unknown" in capsys.readouterr().out


def test_a_missing_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("chip,op\n")
    with pytest.raises(PublishedFileError, match="no column source"):
        read_published(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"op": "magic"}, "magic"),
        ({"chip": "v99"}, "v99"),
        ({"tile_m": None}, "tile"),
        ({"dtype_lhs": "float64"}, "float64"),
        ({"chip": "v5p", "notes": "one of the two cores only"}, "one of the device's 2 cores"),
    ],
)
def test_rows_without_a_program_have_a_reason(change: dict, says: str) -> None:
    reason = program_or_reason(replace(ROW, **change), published_program)
    assert isinstance(reason, str)
    assert says in reason


def test_dispatch_is_taken_off_the_error_only() -> None:
    program = program_or_reason(ROW, published_program)
    row = compared(ROW, program, 102.0, dispatch_us=100.0)
    assert (row.published_us, row.predicted_us, row.counted) == (200.0, 102.0, True)
    assert row.error == pytest.approx(0.02)
    device = compared(replace(ROW, timing="device"), program, 202.0, dispatch_us=100.0)
    assert device.error == pytest.approx(0.01)
    lost = compared(replace(ROW, published_us=90.0), program, 1.0, dispatch_us=100.0)
    assert (lost.counted, lost.error) == (False, None)
    assert "nothing is left" in lost.reason


def test_statistics_by_hand() -> None:
    program = program_or_reason(ROW, published_program)
    times = [(100, 101), (200, 190), (400, 480), (800, 800)]
    rows = [
        compared(replace(ROW, timing="device", published_us=a, m=size, k=size, n=size), program, b, dispatch_us=0)
        for (a, b), size in zip(times, (512, 2048, 4096, 8192), strict=True)
    ]
    found = statistics_by_chip(rows)["v5e"].record()
    assert found["median_error"] == pytest.approx(0.03)
    assert found["worst_error"] == pytest.approx(0.2)
    assert found["bias"] == pytest.approx(0.005)
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert found["from_2048"]["rows"] == 3
    assert found["from_2048"]["median_error"] == pytest.approx(0.05)


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_wrong_calls(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = write_csv(tmp_path / "t.csv", LINE.replace("12.5", "fast"))
    assert main([command, str(broken), "--chip", "v5e"]) == 2
    assert "line 2: time_us='fast'" in capsys.readouterr().err
    assert main([command, str(tmp_path / "gone.csv"), "--chip", "v5e"]) == 2
