"""Tables, timeline, trace and comparison of a run on a slice, made by hand with round numbers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from explanations import a_run
from rich.console import Console
from slices import BARRIER, GATHER, a_device, a_slice, us

from systolic.cli import main
from systolic.cli.slice_tables import show_slice
from systolic.report import chrome_trace, compare_runs
from systolic.report.explained_table import ExplainedTable
from systolic.report.slice_tables import (
    collectives_table,
    devices_table,
    devices_text,
    link_axes_table,
    links_table,
)
from systolic.report.slice_timeline import collective_spans, slice_view
from systolic.simulator import DeviceClass, LinkRun, SliceRun, Span


def cells(table: ExplainedTable[Any] | None) -> list[dict[str, str]]:
    assert table is not None
    return [{column.title: column.text(row) for column in table.columns} for row in table.rows]


def test_collectives_with_what_is_exposed() -> None:
    gather, barrier = cells(collectives_table(a_slice()))
    assert gather == {
        "collective": GATHER,
        "kind": "all-gather",
        "calls": "1",
        "MB sent": "3.00",
        "links": "y+ y-",
        "simulated µs": "40.00",
        "GB/s": "75",
        "exposed µs": "12.00",
        "hidden µs": "28.00",
        "exposed": "30%",
    }
    assert (barrier["collective"], barrier["GB/s"], barrier["exposed"]) == (BARRIER, "–", "100%")


def test_links_by_direction_and_the_busiest() -> None:
    rows = {row["direction"]: row for row in cells(link_axes_table(a_slice()))}
    assert (rows["y+"]["links"], rows["y+"]["in use"], rows["y+"]["MB in all"]) == ("2", "2", "6.00")
    assert (rows["y+"]["it is busy"], rows["y-"]["it is busy"], rows["x+"]["in use"]) == ("38%", "12%", "0")
    assert [row["link"] for row in cells(links_table(a_slice()))] == ["0 → 2", "2 → 4", "2 → 0"]


def test_devices_the_slowest_first() -> None:
    slow, fast = cells(devices_table(a_slice()))
    assert (slow["devices"], slow["number"], slow["simulated µs"], slow["of the slowest"]) == (
        "1–6",
        "6",
        "80.00",
        "100%",
    )
    assert (fast["devices"], fast["simulated µs"]) == ("0, 7", "78.00")


@pytest.mark.parametrize(
    ("devices", "text"),
    [((5,), "5"), ((1, 0), "0, 1"), ((4, 3, 2, 0), "0, 2–4"), (tuple(range(256)), "0–255")],
)
def test_devices_in_words(devices: tuple[int, ...], text: str) -> None:
    assert devices_text(devices) == text


def test_a_slice_that_says_nothing() -> None:
    run = dataclasses.replace(a_slice(), collectives=(), links=())
    assert collectives_table(run) is None
    assert link_axes_table(run) is None
    assert links_table(run) is None
    assert shown(run)


def shown(run: SliceRun) -> str:
    out = Console(width=200, highlight=False)
    with out.capture() as captured:
        show_slice(out, "step", run)
    return captured.get()


def test_the_terminal_says_time_skew_and_what_is_exposed() -> None:
    text = shown(a_slice())
    first = " ".join(text[: text.index("all devices were simulated")].split())
    for words in ("v6e 2x4 step", "80.0 µs", "8 devices", "2.00 µs before", "14.00 µs (18%)", "28.00 µs", "busy 38%"):
        assert words in first, words
    assert "xla_tpu_enable_async_all_gather=true" in text
    assert "scratch_matmul.1" in text  # what the slowest device does


def test_every_class_and_every_link_has_a_row() -> None:
    found = slice_view(a_slice(), 0, 80)
    assert found.lanes == ("devices 1–6", "devices 0, 7", "collectives 1", "0 → 2 y+", "2 → 4 y+", "2 → 0 y-")
    assert found.left_out == 0
    links = {bar.lane: (bar.begin_us, bar.end_us) for bar in found.bars if bar.activity == "link"}
    assert links["2 → 4 y+"] == (pytest.approx(22.0), pytest.approx(52.0))
    assert {bar.activity for bar in found.bars if bar.lane == "devices 1–6"} == {"matrix", "wait"}
    early = slice_view(a_slice(), 0, 10)
    assert early.lanes == ("devices 1–6", "devices 0, 7", "collectives 1")
    assert [bar.what for bar in early.bars if bar.activity == "collective"] == [f"{BARRIER}, 2 calls"]


def test_calls_of_a_collective_that_is_an_operation_are_drawn_one_by_one() -> None:
    run = a_slice()
    gather = dataclasses.replace(run.collectives[1], calls=2)
    calls = [
        Span(kind="op", begin_cycles=us(begin), end_cycles=us(begin + 10.0), label=GATHER, amount=0)
        for begin in (20.0, 70.0)
    ]
    slow = run.slowest_class.run
    core = dataclasses.replace(slow.cores[0], spans=(*slow.cores[0].spans, *calls))
    slow = dataclasses.replace(slow, cores=(core,))
    classes = (run.classes[0], dataclasses.replace(run.classes[1], run=slow))
    made = dataclasses.replace(run, classes=classes, collectives=(run.collectives[0], gather))
    drawn = [span for span in collective_spans(made) if span.label == GATHER]
    assert [(span.begin_cycles, span.end_cycles) for span in drawn] == [(us(20.0), us(30.0)), (us(70.0), us(80.0))]
    assert sum(span.amount for span in drawn) == gather.sent_bytes


def test_a_view_of_many_devices_and_links_draws_the_slowest_and_the_busiest() -> None:
    classes = tuple(DeviceClass(devices=(number, 20 - number), run=a_device(60.0 + number)) for number in range(10))
    used = a_slice().links[0]
    links = tuple(dataclasses.replace(used, source=at, target=at + 1, busy_cycles=at + 1) for at in range(40))
    run = dataclasses.replace(a_slice(), classes=classes, links=links)
    found = slice_view(run, 0, run.time_us)
    assert found.lanes[:2] == ("devices 9, 11", "devices 8, 12")
    assert len([lane for lane in found.lanes if "device" in lane]) == 8
    drawn = [lane for lane in found.lanes if "→" in lane]
    assert drawn[0] == "24 → 25 y+"
    assert len(drawn) == 16
    few = slice_view(run, 0, run.time_us, max_bars=25)
    assert len(few.bars) + few.left_out == len(slice_view(run, 0, run.time_us, max_bars=100_000).bars)
    assert len(few.bars) <= 25


def test_classes_with_long_lists_of_devices_have_rows_of_their_own() -> None:
    even, odd = tuple(range(0, 64, 2)), tuple(range(1, 64, 2))
    classes = (DeviceClass(devices=even, run=a_device(60.0)), DeviceClass(devices=odd, run=a_device(61.0)))
    found = slice_view(dataclasses.replace(a_slice(), classes=classes), 0, 61)
    assert found.lanes[:2] == ("32 like device 1", "32 like device 0")


def test_the_trace_has_a_process_for_each_class_and_a_row_for_each_link() -> None:
    run = a_slice()
    link = dataclasses.replace(run.links[0], spans_left_out=3)
    trace = chrome_trace(dataclasses.replace(run, links=(link, *run.links[1:])), title="step")
    events = trace["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [name.partition(" of v6e")[0] for name in processes.values()] == [
        "step, devices 0, 7, TensorCore 0",
        "step, devices 1–6, TensorCore 0",
        "step, collectives of device 1",
        "step, links",
    ]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    (gather,) = (event for event in events if event["name"] == GATHER and event["pid"] == 2)
    assert rows[2, gather["tid"]] == GATHER
    assert (gather["ts"], gather["dur"]) == (pytest.approx(20.0), pytest.approx(60.0))
    copies = {rows[3, event["tid"]]: event for event in events if event["pid"] == 3 and event["ph"] == "X"}
    assert set(copies) == {"0 → 2 (y+)", "2 → 4 (y+)", "2 → 0 (y-)"}
    assert (copies["2 → 4 (y+)"]["ts"], copies["2 → 4 (y+)"]["args"]["bytes"]) == (pytest.approx(22.0), 3_000_000)
    assert trace["otherData"]["spans_left_out"] == 3
    json.dumps(trace, allow_nan=False)


def test_copies_that_share_a_link_have_rows_of_their_own() -> None:
    run = a_slice()
    first = run.links[0]
    second = dataclasses.replace(first.spans[0], begin_cycles=first.spans[0].begin_cycles + 1)
    shared = dataclasses.replace(first, spans=(*first.spans, second))
    trace = chrome_trace(dataclasses.replace(run, links=(shared, run.links[1])), title="step")
    rows = [each["tid"] for each in trace["traceEvents"] if each["pid"] == 3 and each["ph"] == "X"]
    assert rows == [0, 1, 2]


def test_links_that_all_carry_the_same_are_not_listed() -> None:
    run = a_slice()
    assert links_table(dataclasses.replace(run, links=run.links[:2])) is None


def test_saved_and_reopened() -> None:
    run = a_slice()
    assert SliceRun.from_json(run.to_json()) == run
    with pytest.raises(ValueError, match="not a simulated run of a slice"):
        SliceRun.from_json(a_run().to_json())


def test_two_runs_of_a_slice_compared() -> None:
    made = compare_runs(a_slice(), a_slice(time_us=72.0, exposed_us=4.0), names=("a", "b"))
    rows = {(row.group, row.quantity): row for row in made.rows}
    assert made.slower == pytest.approx(-0.1)
    assert (made.topology_before, made.topology_after) == ("2x4", "2x4")
    assert rows["communication", "exposed"].before == pytest.approx(14.0)
    assert rows["communication", "exposed"].after == pytest.approx(6.0)
    assert rows["communication", "hidden"].after == pytest.approx(36.0)
    assert rows["communication", "busiest link"].change == pytest.approx(30 / 72 - 30 / 80)
    assert rows["collective", GATHER].after == pytest.approx(40.0)


def test_one_device_compared_with_a_slice() -> None:
    made = compare_runs(a_device(160.0), a_slice(), names=("a", "a"))
    rows = {(row.group, row.quantity): row for row in made.rows}
    assert made.slower == pytest.approx(-0.5)
    assert (made.topology_before, made.topology_after) == ("", "2x4")
    assert (rows["communication", "hidden"].before, rows["communication", "hidden"].change) == (None, None)


def test_compare_reads_what_simulate_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, run in (("a", a_slice()), ("b", a_slice(time_us=88.0))):
        row = {"function": "f.py:step", "chip": "v6e", "run": json.loads(run.to_json())}
        (tmp_path / f"{name}.json").write_text(json.dumps({"command": "simulate", "schema": 2, "rows": [row]}))
    (tmp_path / "whole.json").write_text(a_slice().to_json())
    first, second, whole = (str(tmp_path / f"{name}.json") for name in ("a", "b", "whole"))
    assert main(["compare", first, second, "--fail-above", "5"]) == 1
    text = capsys.readouterr().out
    assert "v6e 2x4 f.py:step: 10.0% slower" in text
    assert GATHER in text
    assert main(["compare", first, whole, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["topology_before"], row["slower_percent"]) == ("2x4", 0.0)


def test_a_link_that_carries_nothing_has_no_row() -> None:
    idle = LinkRun(source=5, target=7, axis="y+", sent_bytes=0, busy_cycles=0)
    run = dataclasses.replace(a_slice(), links=(idle,))
    assert links_table(run) is None
    assert not [lane for lane in slice_view(run, 0, 80).lanes if "→" in lane]
    assert us(1.0) == 1750
