"""A run as a record: its shares, its JSON, and the picture made of its timeline."""

from __future__ import annotations

import dataclasses
import json

import pytest

from systolic.report import chrome_trace
from systolic.report.timeline import view
from systolic.simulator import CopySize, CoreRun, OpRun, SimulatedRun, Span, SparseCoreRun, SparseOpRun, VmemBuffer
from systolic.simulator.hardware.loop_timer import LoopTime


def a_run(*, cores: int = 1) -> SimulatedRun:
    op = OpRun(
        name="mine.1",
        scope="jit(f)/mine",
        calls=2,
        begin_cycles=10,
        end_cycles=900,
        cycles=800,
        matrix_busy_cycles=500,
        issued={"load": 600, "scalar": 100},
        loop=LoopTime(rounds=10, first_cycles=100, steady_cycles=600, last_cycles=100),
    )
    spans = (
        Span(kind="copy", begin_cycles=0.0, end_cycles=50.5, label="hbm → vmem", amount=4096),
        Span(kind="copy", begin_cycles=20.0, end_cycles=60.0, label="hbm → vmem", amount=4096),
        Span(kind="stall", begin_cycles=5.0, end_cycles=15.0, label="copy", amount=0),
        Span(kind="copy", begin_cycles=55.0, end_cycles=70.0, label="vmem → hbm", amount=512),
    )
    core = CoreRun(
        core=0,
        cycles=1000,
        ops=(op,),
        copy_stall_cycles=100,
        copy_overhead_cycles=20,
        matrix_stall_cycles=50,
        semaphore_stall_cycles=30,
        matrix_busy_cycles=500,
        hbm_read_bytes=3000,
        hbm_written_bytes=1000,
        copies=3,
        copy_sizes=(CopySize(source="hbm", destination="vmem", size_bytes=4096, run_bytes=None, count=2),),
        spans=spans,
        spans_left_out=7,
    )
    return SimulatedRun(
        chip="v5e",
        clock_hz=1e9,
        cores=(core,) * cores,
        prefetch_cycles=250,
        matrix_units=4,
        bundles=77,
        hbm_bytes_per_cycle=8.0,
        slots={"mxu": 4, "load": 3, "scalar": 2},
        vmem=(
            VmemBuffer(op="mine.1", kind="SCOPED", size_bytes=300, is_spill=False, what="window"),
            VmemBuffer(op="mine.1", kind="SCOPED", size_bytes=200, is_spill=True, what="SPILL"),
            VmemBuffer(op="other", kind="SCOPED", size_bytes=450, is_spill=False, what="window"),
        ),
        assumptions=("fusion.3: what x computes counts as zero",),
    )


def test_shares() -> None:
    run = a_run()
    assert (run.time_us, run.prefetch_us) == (1.0, 0.25)
    assert run.stalls == {"copy": 0.1, "overhead": 0.02, "matrix": 0.05, "semaphore": 0.03}
    assert run.stall_share == pytest.approx(0.2)
    assert run.busy == {"mxu": 500 / 4000, "load": 600 / 3000, "scalar": 100 / 2000, "dma": 4000 / 8 / 1000}
    assert (run.vmem_bytes, run.spill_bytes) == (500, 200)
    assert run.cores[0].ops[0].loop is not None
    assert run.cores[0].ops[0].loop.steady_round_cycles == pytest.approx(600 / 7)


def test_two_cores_share_the_device() -> None:
    run = a_run(cores=2)
    assert run.busy["load"] == pytest.approx(1200 / 6000)
    assert run.hbm_read_bytes == 6000


def test_json_gives_the_same_run() -> None:
    run = a_run(cores=2)
    assert SimulatedRun.from_json(run.to_json()) == run


def test_json_has_a_format() -> None:
    document = json.loads(a_run().to_json())
    with pytest.raises(ValueError, match="format 1 is read here, and not that of 2"):
        SimulatedRun.from_json(json.dumps({**document, "format": 2}))
    del document["format"]  # as it was written before
    assert SimulatedRun.from_json(json.dumps(document)) == a_run()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"chip": 3}', "not JSON", a_run().to_json()[:-9]])
def test_another_text_is_no_run(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- JSON's own error is one as well
        SimulatedRun.from_json(text)


def test_chrome_trace() -> None:
    trace = chrome_trace(a_run(), title="mine")
    text = json.dumps(trace, allow_nan=False)
    events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert {event["ph"] for event in trace["traceEvents"]} == {"X", "M"}
    copies = [event for event in events if event["cat"] == "copy"]
    assert [(event["ts"], event["dur"]) for event in copies] == [(0.0, 0.0505), (0.02, 0.04), (0.055, 0.015)]
    first, second, third = (event["tid"] for event in copies)
    assert first != second  # they overlap
    assert third == first  # its row is free again
    (stall,) = (event for event in events if event["cat"] == "stall")
    assert stall["name"] == "waits: copy"
    assert trace["otherData"]["spans_left_out"] == 7
    named = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {event["tid"] for event in events} <= named


def test_sparse_cores_are_named_and_make_a_time_modelled() -> None:
    alone = a_run()
    gathers = Span(kind="op", begin_cycles=100, end_cycles=900, label="gather", amount=0)
    stream = Span(kind="copy", begin_cycles=200, end_cycles=400, label="hbm → tilespmem", amount=512)
    op = SparseOpRun(name="gather", begin_cycles=100, end_cycles=900)
    core = SparseCoreRun(
        core=1,
        ops=(op,),
        hbm_read_bytes=512,
        hbm_written_bytes=64,
        streams=1,
        indices=1,
        tile_stall_cycles=3,
        spans=(gathers, stream),
    )
    run = dataclasses.replace(alone, sparse_cores=(core,))
    assert (alone.provenance, run.provenance) == ("simulated", "modelled")
    assert run.hbm_read_bytes - alone.hbm_read_bytes == 512
    assert run.hbm_written_bytes - alone.hbm_written_bytes == 64
    assert SimulatedRun.from_json(run.to_json()) == run
    trace = chrome_trace(run, title="mine")
    assert trace["otherData"]["provenance"] == "modelled"
    (process,) = {event["pid"] for event in trace["traceEvents"] if event["name"] == "gather"}
    named = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert "SparseCore 1" in named[process]
    assert "TensorCore 0" in named[0]
    seen = view(run, 0, run.time_us)
    assert [bar.what for bar in seen.bars if bar.lane == "SparseCore 1"] == ["gather"]
    assert "SparseCore 1" in seen.lanes
