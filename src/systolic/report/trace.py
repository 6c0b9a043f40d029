"""A simulated run as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.report.slice_tables import devices_text, link_name
from systolic.report.slice_timeline import collective_spans
from systolic.report.timeline import pack
from systolic.simulator import CoreRun, SimulatedRun, SliceRun, Span, SparseCoreRun

# Rows of the picture, from above, by what is drawn in them. Copies overlap each other and get as many rows as it takes.
ROWS = {"op": 0, "round": 1, "matrix": 2, "stall": 3}
_NAMES = {0: "operations", 1: "rounds of the outermost loop", 2: "straight code, matrix units", 3: "stalls"}
_FIRST_COPY_ROW = 10


def chrome_trace(run: SimulatedRun | SliceRun, *, title: str) -> dict[str, Any]:
    """Write the timeline of a run in the Trace Event Format (JSON object form): times in µs, a process for each
    TensorCore, and for each SparseCore its programs, and streams and waits of its first tile. Of a slice, there are
    such processes for each class of devices, one of the slowest device's communication, and one with a row for each
    link.

    Numbers of spans that the timeline left out are in the metadata: `spans_left_out`.
    """
    processes = _of_a_slice(run) if isinstance(run, SliceRun) else device_processes(run)
    scale = 1e6 / run.clock_hz
    events: list[dict[str, Any]] = []
    for number, process in enumerate(processes):
        label = f"{title}, {process.name} of {run.chip} ({process.provenance})"
        events.append(_named("process_name", number, 0, label))
        events += [_named("thread_name", number, row, name) for row, name in process.rows.items()]
        for row, span in process.spans:
            events.append(
                {
                    "name": span_label(span),
                    "cat": span.kind,
                    "ph": "X",
                    "ts": span.begin_cycles * scale,
                    "dur": (span.end_cycles - span.begin_cycles) * scale,
                    "pid": number,
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
            "spans_left_out": spans_left_out(run),
            **({"topology": run.topology, "way": run.way} if isinstance(run, SliceRun) else {}),
        },
    }


def spans_left_out(run: SimulatedRun | SliceRun) -> int:
    """Return the number of spans that the timeline of a run does not have."""
    processes = _of_a_slice(run) if isinstance(run, SliceRun) else device_processes(run)
    return sum(process.left_out for process in processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of the trace: its rows by number, and their spans; `core` is None unless it is one core's."""

    name: str
    provenance: str
    rows: Mapping[int, str]
    spans: Sequence[tuple[int, Span]]
    left_out: int
    core: CoreRun | SparseCoreRun | None = None


def device_processes(run: SimulatedRun, of: str = "") -> list[Process]:
    """Make the processes of a device; `of` names the devices that it represents."""
    cores: list[tuple[str, str, CoreRun | SparseCoreRun]] = [
        *((f"{of}TensorCore {core.core}", "simulated", core) for core in run.cores),
        *((f"{of}SparseCore {core.core}", "modelled", core) for core in run.sparse_cores),
    ]
    processes = []
    for name, provenance, core in cores:
        copies = [span for span in core.spans if span.kind == "copy"]
        lanes = dict(zip(map(id, copies), pack(copies), strict=True))
        rows = [ROWS[span.kind] if span.kind in ROWS else _FIRST_COPY_ROW + lanes[id(span)] for span in core.spans]
        processes.append(
            Process(
                name=name,
                provenance=provenance,
                rows={**_NAMES, **{_FIRST_COPY_ROW + lane: f"copies {lane}" for lane in sorted(set(lanes.values()))}},
                spans=list(zip(rows, core.spans, strict=True)),
                left_out=core.spans_left_out,
                core=core,
            )
        )
    return processes


def _of_a_slice(run: SliceRun) -> list[Process]:
    processes = []
    for device_class in run.classes:
        of = f"device{'s' * (len(device_class.devices) > 1)} {devices_text(device_class.devices)}, "
        processes += device_processes(device_class.run, of)
    spans = collective_spans(run)
    rows = dict(enumerate(dict.fromkeys(span.label for span in spans)))
    places = {name: row for row, name in rows.items()}
    processes.append(
        Process(
            name=f"collectives of device {run.slowest_class.devices[0]}",
            provenance=run.provenance,
            rows=rows,
            spans=[(places[span.label], span) for span in spans],
            left_out=0,
        )
    )
    links = [link for link in run.links if link.sent_bytes]
    rows, spans = {}, []
    for link in links:  # copies that share a link overlap, and get as many rows as it takes
        first = len(rows)
        lanes = pack(link.spans)
        rows |= {first + lane: f"{link_name(link)} ({link.axis})" for lane in range(max(lanes, default=0) + 1)}
        spans += [(first + lane, span) for lane, span in zip(lanes, link.spans, strict=True)]
    processes.append(
        Process(
            name="links",
            provenance=run.provenance,
            rows=rows,
            spans=spans,
            left_out=sum(link.spans_left_out for link in links),
        )
    )
    return processes


def _named(what: str, core: int, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": core, "tid": row, "args": {"name": name}}


def span_label(span: Span) -> str:
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
