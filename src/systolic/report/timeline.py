"""A simulated timeline made ready for drawing: spans in lanes, and how busy each lane is over time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from systolic.simulator import CoreRun, SimulatedRun, Span

# Drawn activities, from above. `code` is straight code in which no matrix unit was busy.
# `collective` and `link` are of a slice: see `slice_timeline`.
Activity = Literal["op", "round", "read", "written", "moved", "matrix", "code", "wait", "collective", "link"]
TITLES: dict[Activity, str] = {
    "op": "operations",
    "round": "loop rounds",
    "read": "HBM → VMEM",
    "written": "VMEM → HBM",
    "moved": "other copies",
    "matrix": "matrix units",
    "code": "other code",
    "wait": "waiting",
    "collective": "collectives",
    "link": "links",
}
BUSY: tuple[Activity, ...] = ("read", "written", "moved", "matrix", "code", "wait")
# The most bars of one plot: a browser draws them without a pause, and the page stays small.
MAX_BARS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One span as it is drawn."""

    lane: str
    activity: Activity
    begin_us: float
    end_us: float
    what: str  # in a few words, for inside the bar
    detail: str  # in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The bars of one stretch of time and, for moving about, of the time around it."""

    lanes: tuple[str, ...]  # from above
    bars: tuple[Bar, ...]
    left_out: int  # spans in the stretch for which there was no room: the shortest of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLane:
    """Busy shares of equal pieces of time; None where the timeline was not kept."""

    activity: Activity
    shares: tuple[float | None, ...]


def pack(spans: Iterable[Span]) -> list[int]:
    """Assign lanes to spans that come in order of begin: as few as it takes for spans in one lane not to overlap."""
    ends: list[float] = []
    lanes = []
    for span in spans:
        lane = next((at for at, end in enumerate(ends) if end <= span.begin_cycles), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = span.end_cycles
        lanes.append(lane)
    return lanes


def activity(span: Span) -> Activity:
    """Return the kind of bar that draws a span."""
    if span.kind == "copy":
        source, _, destination = span.label.partition(" → ")
        if (source == "hbm") == (destination == "hbm"):
            return "moved"
        return "read" if source == "hbm" else "written"
    if span.kind == "matrix":
        return "matrix" if span.amount else "code"
    return "wait" if span.kind == "stall" else span.kind


def view(run: SimulatedRun, begin_us: float, end_us: float, *, max_bars: int = MAX_BARS) -> View:
    """Collect spans of the later core and of SparseCores from `begin_us` to `end_us`, and as long on either side."""
    core, scale = run.later_core, 1e6 / run.clock_hz
    begin, end = begin_us / scale, end_us / scale
    around = end - begin
    sparse = {id(span): f"SparseCore {core.core}" for core in run.sparse_cores for span in core.spans}
    # A single operation would fill the plot from end to end, and show nothing.
    is_one_op = len({op.name for op in core.ops}) < 2 and not sparse
    spans = [span for span in core.spans if not (is_one_op and span.kind == "op")]
    spans += [span for core in run.sparse_cores for span in core.spans if span.kind == "op"]
    inside = [span for span in spans if span.end_cycles > begin and span.begin_cycles < end]
    left_out = max(0, len(inside) - max_bars)
    if left_out:
        chosen = longest_spans(inside, max_bars)
    else:
        near = [
            span
            for span in spans
            if (begin - around < span.end_cycles <= begin or end <= span.begin_cycles < end + around)
        ]
        near.sort(key=lambda span: min(abs(span.end_cycles - begin), abs(span.begin_cycles - end)))
        chosen = inside + near[: max_bars - len(inside)]
    chosen.sort(key=lambda span: span.begin_cycles)
    copies = [span for span in chosen if span.kind == "copy"]
    lane_of = {id(span): f"copies {lane + 1}" for span, lane in zip(copies, pack(copies), strict=True)}
    bars = [
        core_bar(sparse.get(id(span)) or lane_of.get(id(span), TITLES[activity(span)]), span, run) for span in chosen
    ]
    used = {bar.lane for bar in bars}
    lanes = [
        TITLES["op"],
        *sorted(set(sparse.values())),
        TITLES["round"],
        *sorted(set(lane_of.values()), key=lambda lane: int(lane.split()[1])),
    ]
    lanes += [TITLES[kind] for kind in ("matrix", "code", "wait")]
    return View(lanes=tuple(lane for lane in lanes if lane in used), bars=tuple(bars), left_out=left_out)


def core_bar(lane: str, span: Span, run: SimulatedRun) -> Bar:
    """Make the bar of a span of a core."""
    scale = 1e6 / run.clock_hz
    return Bar(
        lane=lane,
        activity=activity(span),
        begin_us=span.begin_cycles * scale,
        end_us=span.end_cycles * scale,
        what=_what(span, run),
        detail=_detail(span, run),
    )


def longest_spans(spans: Iterable[Span], limit: int) -> list[Span]:
    """Pick the longest of each kind, the same number of each."""
    ranks: dict[str, int] = {}
    ranked = []
    for span in sorted(spans, key=lambda span: span.begin_cycles - span.end_cycles):
        ranks[span.kind] = ranks.get(span.kind, 0) + 1
        ranked.append((ranks[span.kind], span))
    return [span for _, span in sorted(ranked, key=lambda item: item[0])[:limit]]


def busy_lanes(run: SimulatedRun, begin_us: float, end_us: float, pieces: int) -> tuple[BusyLane, ...]:
    """Compute how busy each kind was in each of `pieces` equal pieces of the time; kinds that never were are left out.

    The share of `matrix` is of the units' cycles; of the other kinds, of the time in which there was any.
    """
    core, scale = run.later_core, 1e6 / run.clock_hz
    begin = begin_us / scale
    piece = max((end_us - begin_us) / scale / pieces, 1e-9)
    gaps = _gaps(core)
    lanes = []
    for kind in BUSY:
        spans = [span for span in core.spans if activity(span) == kind]
        if not spans:
            continue
        totals = [0.0] * pieces
        covered = -math.inf
        for span in spans:
            # Copies overlap each other: what one covers counts once.
            first, last = max(span.begin_cycles, covered), span.end_cycles
            covered = max(covered, last)
            weight = _busy_share(span, run) if kind == "matrix" else 1.0
            _spread(totals, (first - begin) / piece, (last - begin) / piece, weight)
        hole = gaps.get(spans[0].kind)
        shares = [
            None
            if hole is not None and hole[0] < begin + (at + 1) * piece and begin + at * piece < hole[1]
            else min(1.0, total)
            for at, total in enumerate(totals)
        ]
        lanes.append(BusyLane(activity=kind, shares=tuple(shares)))
    return tuple(lanes)


def _spread(totals: list[float], first: float, last: float, weight: float) -> None:
    """Add the share of each piece that lies between two places, which are in pieces."""
    first, last = max(0.0, first), min(float(len(totals)), last)
    for at in range(math.floor(first), math.ceil(last)):
        totals[at] += max(0.0, min(last, at + 1) - max(first, at)) * weight


def _gaps(core: CoreRun) -> dict[str, tuple[float, float]]:
    """Find where spans were left out, by kind, in cycles.

    The same number was kept from the beginning and the end, and of each kind: no kind has more spans than a kind
    from which some were left out.
    """
    if not core.spans_left_out:
        return {}
    by_kind: dict[str, list[Span]] = {}
    for span in core.spans:
        by_kind.setdefault(span.kind, []).append(span)
    longest = max(map(len, by_kind.values()), default=0)
    return {
        kind: (max(span.end_cycles for span in spans[: longest // 2]), spans[longest // 2].begin_cycles)
        for kind, spans in by_kind.items()
        if len(spans) == longest and longest > 1
    }


def _busy_share(span: Span, run: SimulatedRun) -> float:
    return min(1.0, span.amount / max(1.0, (span.end_cycles - span.begin_cycles) * run.matrix_units))


def size_text(size_bytes: int) -> str:
    """Write an amount of memory with its unit."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes} B"


def _what(span: Span, run: SimulatedRun) -> str:
    kind = activity(span)
    if span.kind == "copy":
        arrow = {"read": "↓ ", "written": "↑ "}.get(kind, "")
        return arrow + size_text(span.amount)
    if kind == "matrix":
        return f"{_busy_share(span, run):.0%} busy"
    took = f"{(span.end_cycles - span.begin_cycles) / run.clock_hz * 1e6:,.2f} µs"
    return {"op": span.label, "wait": f"{span.label} {took}", "round": took, "code": "code"}[kind]


def _detail(span: Span, run: SimulatedRun) -> str:
    cycles = span.end_cycles - span.begin_cycles
    spent = f"{cycles / run.clock_hz * 1e6:,.3f} µs, {cycles:,.0f} cycles"
    kind = activity(span)
    if span.kind == "copy":
        rate = f", {span.amount / cycles * run.clock_hz / 1e9:,.0f} GB/s" if cycles and span.amount else ""
        return f"copy {span.label}, {size_text(span.amount)}: {spent}{rate}"
    if kind == "matrix":
        note = f"; {span.label}" if span.label else ""
        return f"straight code with matrix units {_busy_share(span, run):.0%} busy: {spent}{note}"
    names = {"code": "straight code", "wait": f"waits: {span.label}", "op": "operation", "round": "a round of the loop"}
    return f"{names[kind]}: {spent}"
