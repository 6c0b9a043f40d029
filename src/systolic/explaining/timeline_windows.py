"""The stretches of a simulated run's timeline that are worth looking at, with what happens in them."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.explaining.bottleneck import main_op
from systolic.explaining.explanation import Window
from systolic.simulator import CoreRun, SimulatedRun, Span

_CAUSES = {"copy": "copies", "matrix": "the matrix unit", "semaphore": "a semaphore"}


def timeline_windows(run: SimulatedRun) -> tuple[Window, ...]:
    """Pick the ramp, one steady step and the end of a run whose longest operation is a loop; else the whole run."""
    core = run.later_core
    op = main_op(run)
    rounds = [span for span in core.spans if span.kind == "round" and op is not None and span.label == op.name]
    if op is None or not core.spans:
        return ()
    scale = 1e6 / run.clock_hz
    if len(rounds) < 4:
        return (_window("the whole run", 0, run.cycles, core, run, scale),)
    ramp_end = rounds[1].end_cycles
    spans = [span for span in rounds[2:-2] if span.end_cycles <= _kept_until(core)]
    middle = sorted(spans or rounds[2:-1] or rounds, key=lambda span: span.end_cycles - span.begin_cycles)
    steady = middle[len(middle) // 2]
    return (
        _window("the ramp", op.begin_cycles, ramp_end, core, run, scale),
        _window("one steady step", steady.begin_cycles, steady.end_cycles, core, run, scale),
        _window("the end", rounds[-2].begin_cycles, run.cycles, core, run, scale),
    )


def _kept_until(core: CoreRun) -> float:
    """Return the cycle up to which the timeline has kept all events.

    It keeps as many spans of each kind from the beginning as from the end, and an iteration has several copies: later
    iterations may be kept without their copies, and would look idle.
    """
    if not core.spans_left_out:
        return float("inf")
    kinds: dict[str, list[float]] = {}
    for span in core.spans:
        kinds.setdefault(span.kind, []).append(span.begin_cycles)
    return min(sorted(begins)[(len(begins) - 1) // 2] for begins in kinds.values() if len(begins) > 1)


def _window(title: str, begin: float, end: float, core: CoreRun, run: SimulatedRun, scale: float) -> Window:
    return Window(
        title=title,
        begin_us=begin * scale,
        end_us=end * scale,
        words=_words(begin, end, core.spans, run, scale),
    )


def _words(begin: float, end: float, spans: Sequence[Span], run: SimulatedRun, scale: float) -> str:
    """List the events between two cycles that the timeline has kept."""
    inside = [span for span in spans if span.end_cycles > begin and span.begin_cycles < end]
    copies = [span for span in inside if span.kind == "copy"]
    length = max(1.0, end - begin)
    moved = sum(span.amount * _overlap(span, begin, end) / max(1.0, _length(span)) for span in copies)
    busy = sum(
        span.amount * _overlap(span, begin, end) / max(1.0, _length(span)) for span in inside if span.kind == "matrix"
    )
    stalls: dict[str, float] = {}
    for span in inside:
        if span.kind == "stall":
            stalls[span.label] = stalls.get(span.label, 0.0) + _overlap(span, begin, end)
    parts = [
        f"{length * scale:,.2f} µs: the matrix unit is busy {busy / (length * run.matrix_units):.0%}",
        f"{len(copies):,} copies move {moved / 1e6:,.2f} MB ({moved / (length * scale) / 1e6:,.2f} TB/s)"
        if copies
        else "no copy is under way",
    ]
    waits = [
        f"{cycles * scale:,.2f} µs for {_CAUSES.get(label, label)}"
        for label, cycles in sorted(stalls.items(), key=lambda stall: -stall[1])
        if cycles / length >= 0.005
    ]
    parts.append("the core waits " + " and ".join(waits) if waits else "the core waits for nothing")
    first = next((span for span in inside if span.kind == "matrix" and span.amount), None)
    if first is not None and first.begin_cycles - begin > 0.2 * length:
        parts.append(f"the first product begins after {(first.begin_cycles - begin) * scale:,.2f} µs")
    return "; ".join(parts) + "."


def _length(span: Span) -> float:
    return span.end_cycles - span.begin_cycles


def _overlap(span: Span, begin: float, end: float) -> float:
    return max(0.0, min(span.end_cycles, end) - max(span.begin_cycles, begin))
