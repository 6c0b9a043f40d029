"""The calls of a program that ran as if on a TPU, as a Chrome trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from systolic.report.trace import chrome_trace
from systolic.running import ScriptRun

_MAX_CALLS = 50_000  # more are too many for a viewer


def calls_trace(run: ScriptRun, *, title: str) -> dict[str, Any]:
    """Write the calls in the Trace Event Format, in µs: one after the other, without the host's time between them.

    The first process has a row of calls. Each program's own timeline follows, at the place of its first call. After
    50,000 calls the rest is left out; `calls_left_out` in the metadata says how many.
    """
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": f"{title} on {run.chip} (simulated)"}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "calls"}},
    ]
    first_us: dict[int, float] = {}
    now_us = 0.0
    for place, number in enumerate(run.sequence):
        program = run.programs[number]
        if program.time_us is None:
            continue
        first_us.setdefault(number, now_us)
        if place < _MAX_CALLS:
            details = {"arguments": program.arguments, "call": place}
            event = {"name": program.name, "cat": "call", "ph": "X", "ts": now_us, "dur": program.time_us}
            events.append({**event, "pid": 0, "tid": 0, "args": details})
        now_us += program.time_us
    processes = 1
    for number, begin_us in first_us.items():
        events += _first_call(run, number, begin_us, processes)
        processes = 1 + max(event["pid"] for event in events)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "chip": run.chip,
            "provenance": "simulated",
            "calls_left_out": max(0, len(run.sequence) - _MAX_CALLS),
        },
    }


def _first_call(run: ScriptRun, number: int, begin_us: float, first_process: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a program's own timeline, moved to its first call."""
    program = run.programs[number]
    assert program.step is not None
    for event in chrome_trace(program.step.run, title=f"first call of {program.name}")["traceEvents"]:
        moved = {"ts": event["ts"] + begin_us} if "ts" in event else {}
        yield {**event, **moved, "pid": event["pid"] + first_process}
