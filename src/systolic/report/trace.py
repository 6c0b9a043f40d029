"""A simulated run as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

from systolic.report.timeline import pack
from systolic.simulator import SimulatedRun, Span

# Rows of the picture, from above, by what is drawn in them. Copies overlap each other and get as many rows as it takes.
_ROWS = {"op": 0, "round": 1, "matrix": 2, "stall": 3}
_NAMES = {0: "operations", 1: "rounds of the outermost loop", 2: "straight code, matrix units", 3: "stalls"}
_FIRST_COPY_ROW = 10


def chrome_trace(run: SimulatedRun, *, title: str) -> dict[str, Any]:
    """Writes the timeline of a run in the Trace Event Format (JSON object form): times in µs, a process for each
    TensorCore, and for each SparseCore its programs, and streams and waits of its first tile.

    What the timeline left out is in the metadata: `spans_left_out`.
    """
    scale = 1e6 / run.clock_hz
    events: list[dict[str, Any]] = []
    processes = [(f"TensorCore {core.core}", "simulated", core.spans) for core in run.cores]
    processes += [(f"SparseCore {core.core}", "modelled", core.spans) for core in run.sparse_cores]
    for process, (name, provenance, spans) in enumerate(processes):
        events.append(_named("process_name", process, 0, f"{title}, {name} of {run.chip} ({provenance})"))
        events += [_named("thread_name", process, row, name) for row, name in _NAMES.items()]
        copies = [span for span in spans if span.kind == "copy"]
        lanes = dict(zip(map(id, copies), pack(copies), strict=True))
        names = {_FIRST_COPY_ROW + lane: f"copies {lane}" for lane in sorted(set(lanes.values()))}
        events += [_named("thread_name", process, row, name) for row, name in names.items()]
        for span in spans:
            row = _ROWS[span.kind] if span.kind in _ROWS else _FIRST_COPY_ROW + lanes[id(span)]
            events.append(
                {
                    "name": _label(span),
                    "cat": span.kind,
                    "ph": "X",
                    "ts": span.begin_cycles * scale,
                    "dur": (span.end_cycles - span.begin_cycles) * scale,
                    "pid": process,
                    "tid": row,
                    "args": _details(span),
                }
            )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "chip": run.chip,
            "provenance": run.provenance,
            "clock_hz": run.clock_hz,
            "spans_left_out": sum(core.spans_left_out for core in (*run.cores, *run.sparse_cores)),
        },
    }


def _named(what: str, core: int, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": core, "tid": row, "args": {"name": name}}


def _label(span: Span) -> str:
    if span.kind == "stall":
        return f"waits: {span.label}"
    if span.kind == "matrix":
        return "matrix units" if span.amount else "code"
    return span.label


def _details(span: Span) -> dict[str, Any]:
    cycles = {"begin_cycles": span.begin_cycles, "cycles": span.end_cycles - span.begin_cycles}
    if span.kind == "copy":
        return {**cycles, "bytes": span.amount}
    if span.kind == "matrix":
        return {**cycles, "matrix_busy_cycles": span.amount, "note": span.label}
    return cycles
