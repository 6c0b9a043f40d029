"""What a simulated run is limited by, in words, and the stretches of its timeline that are worth looking at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from systolic.explaining.explanation import LineWork, OperandTraffic, Window
from systolic.simulator import CoreRun, OpRun, SimulatedRun, Span

# Above these shares a cause is said to be what limits a run. They choose words, and no number that is reported.
_AT_ITS_LIMIT = 0.88
_WORTH_A_WORD = 0.10
_SEEN = 0.005
_WASTED_TRAFFIC = 1.15

_UNITS = {
    "store": "vector stores",
    "load": "vector loads",
    "vpu": "elementwise vector work",
    "xlu": "moves across lanes",
    "eup": "transcendental functions",
    "pop": "fetching results of the matrix and other units",
    "scalar": "scalar code",
    "spill": "stores of registers that did not fit",
    "fill": "loads of registers that did not fit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a run is limited by: a name, and a sentence with numbers."""

    cause: str
    words: str


def main_op(run: SimulatedRun) -> OpRun | None:
    """The operation with the largest share of the later core's time; None where nothing ran."""
    return max(run.later_core.ops, key=lambda op: op.cycles, default=None)


def limit_of(run: SimulatedRun, lines: Sequence[LineWork], traffic: Sequence[OperandTraffic]) -> Limit:
    """Finds what the run's longest operation is limited by."""
    op = main_op(run)
    if op is None or not op.cycles:
        return Limit(cause="nothing", words="nothing runs")
    cycles = op.cycles
    matrix = op.matrix_busy_cycles / (cycles * run.matrix_units)
    waiting = op.copy_stall_cycles / cycles
    # HBM is one for all cores, of which some may have no part in it.
    everywhere = [each for core in run.cores for each in core.ops if each.name == op.name]
    moved = sum(each.hbm_read_bytes + each.hbm_written_bytes for each in everywhere)
    crossing = moved / (run.hbm_bytes_per_cycle * cycles) if run.hbm_bytes_per_cycle else 0.0
    if matrix >= _AT_ITS_LIMIT:
        return Limit(cause="matrix unit", words=f"limited by the matrix unit, which is busy {matrix:.0%} of the time")
    if waiting >= _WORTH_A_WORD and waiting >= op.matrix_stall_cycles / cycles:
        return _copies(waiting, crossing, matrix, moved, traffic)
    if op.overhead_cycles / cycles >= 2 * _WORTH_A_WORD:
        share = op.overhead_cycles / cycles
        return Limit(
            cause="starting copies",
            words=f"limited by starting and awaiting copies one by one, {share:.0%} of the time: {op.copies:,} of them",
        )
    return _code(run, op, matrix, lines)


def _copies(waiting: float, crossing: float, matrix: float, moved: int, traffic: Sequence[OperandTraffic]) -> Limit:
    if crossing >= _AT_ITS_LIMIT - 0.08:
        worst = max(
            (each for each in traffic if each.moved_bytes and each.least_bytes),
            key=lambda each: (each.moved_bytes or 0) - each.least_bytes,
            default=None,
        )
        wasted = ""
        if worst is not None and worst.moved_bytes and worst.moved_bytes > _WASTED_TRAFFIC * worst.least_bytes:
            wasted = f"; {worst.operand} is fetched {worst.moved_bytes / worst.least_bytes:.1f} times over"
        return Limit(
            cause="HBM bandwidth",
            words=f"limited by HBM, over which {moved / 1e6:,.1f} MB cross{wasted}",
        )
    return Limit(
        cause="waits for copies",
        words=f"limited by waits for copies, {waiting:.0%} of the time, while HBM is busy {crossing:.0%} and the "
        f"matrix unit {matrix:.0%}: blocks come in bursts, or too late",
    )


def _code(run: SimulatedRun, op: OpRun, matrix: float, lines: Sequence[LineWork]) -> Limit:
    shares = {unit: op.issued.get(unit, 0) / (slots * op.cycles) for unit, slots in run.slots.items() if unit in _UNITS}
    unit = max(shares, key=lambda name: shares[name], default=None)
    stalled = op.matrix_stall_cycles / op.cycles
    if max(matrix, stalled, shares.get(unit or "", 0.0)) < _SEEN:
        return Limit(cause="nothing", words="no unit is busy for long: hardly anything runs")
    if unit is None or shares[unit] <= max(matrix, stalled):
        return Limit(
            cause="matrix results" if stalled >= _WORTH_A_WORD else "matrix unit",
            words=f"limited by the matrix unit's pipeline: busy {matrix:.0%} of the time, and {stalled:.0%} waiting "
            "for it or its results, since products in one piece of straight code are short",
        )
    line = _line_of(unit, lines)
    return Limit(
        cause=_UNITS[unit],
        words=f"limited by {_UNITS[unit]}, {shares[unit]:.0%} of their issue slots" + (f" ({line})" if line else ""),
    )


def _line_of(unit: str, lines: Sequence[LineWork]) -> str:
    """The line of source that asks most of a unit, by the traced program."""
    amounts = {
        "store": lambda line: line.stored_bytes,
        "load": lambda line: line.loaded_bytes,
        "vpu": lambda line: line.vector_elements,
    }
    amount = amounts.get(unit)
    if amount is None or not lines:
        return ""
    most = max(lines, key=lambda line: amount(line) * (line.executions or 1))
    return most.text if amount(most) else ""


# ---- the timeline ----


def windows(run: SimulatedRun) -> tuple[Window, ...]:
    """The ramp, one steady step and the end of a run, where its longest operation goes round a loop; else all of it."""
    core = run.later_core
    op = main_op(run)
    rounds = [span for span in core.spans if span.kind == "round" and op is not None and span.label == op.name]
    if op is None or not core.spans:
        return ()
    scale = 1e6 / run.clock_hz
    if len(rounds) < 4:
        return (_window("the whole run", 0, run.cycles, core, run, scale),)
    ramp_end = rounds[1].end_cycles
    kept = [span for span in rounds[2:-2] if span.end_cycles <= _kept_until(core)]
    middle = sorted(kept or rounds[2:-1] or rounds, key=lambda span: span.end_cycles - span.begin_cycles)
    steady = middle[len(middle) // 2]
    return (
        _window("the ramp", op.begin_cycles, ramp_end, core, run, scale),
        _window("one steady step", steady.begin_cycles, steady.end_cycles, core, run, scale),
        _window("the end", rounds[-2].begin_cycles, run.cycles, core, run, scale),
    )


def _kept_until(core: CoreRun) -> float:
    """The cycle up to which the timeline has kept everything.

    Of each kind it keeps as many spans from the beginning as from the end, and a round has several copies: later rounds
    may be kept whose copies are not, and would look idle.
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
    """What happens between two cycles, of what the timeline has kept."""
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
        for label, cycles in sorted(stalls.items(), key=lambda each: -each[1])
        if cycles / length >= 0.005
    ]
    parts.append("the core waits " + " and ".join(waits) if waits else "the core waits for nothing")
    first = next((span for span in inside if span.kind == "matrix" and span.amount), None)
    if first is not None and first.begin_cycles - begin > 0.2 * length:
        parts.append(f"the first product begins after {(first.begin_cycles - begin) * scale:,.2f} µs")
    return "; ".join(parts) + "."


_CAUSES = {"copy": "copies", "matrix": "the matrix unit", "semaphore": "a semaphore"}


def _length(span: Span) -> float:
    return span.end_cycles - span.begin_cycles


def _overlap(span: Span, begin: float, end: float) -> float:
    return max(0.0, min(span.end_cycles, end) - max(span.begin_cycles, begin))
