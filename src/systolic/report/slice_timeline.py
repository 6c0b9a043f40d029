"""The timeline of a slice made ready for drawing: a row for each class of devices, and one for each link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from systolic.report.slice_tables import devices_text, link_name
from systolic.report.timeline import MAX_BARS, Bar, View, core_bar, longest_spans, pack, size_text
from systolic.simulator import DeviceClass, LinkRun, SliceRun, Span

_MAX_CLASSES = 8  # rows of a picture for classes of devices, the slowest
_MAX_LINKS = 16  # rows of a picture for links, the busiest
_MAX_LETTERS = 10  # of the device numbers next to a row
# A row of devices shows the core's activity at every moment. Copies run concurrently, and have rows of their own in
# the timeline of one device.
_OF_A_CORE = ("matrix", "stall")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row of the picture: its spans, and how a span becomes a bar."""

    lane: str
    spans: Sequence[Span]
    bar: Callable[[Span], Bar]


def collective_spans(run: SliceRun) -> tuple[Span, ...]:
    """Make a span for each call of the slowest device's collectives that are operations of their own.

    Other collectives get one span, from the start of the first call to the end of the last one.
    """
    spans = []
    for collective in run.collectives:
        calls = [span for span in run.slowest.later_core.spans if (span.kind, span.label) == ("op", collective.name)]
        if len(calls) == collective.calls:
            sent_bytes = collective.sent_bytes // max(1, collective.calls)
            spans += [replace(span, amount=sent_bytes) for span in calls]
            continue
        spans.append(
            Span(
                kind="op",
                begin_cycles=collective.begin_cycles,
                end_cycles=collective.end_cycles,
                label=collective.name if collective.calls == 1 else f"{collective.name}, {collective.calls} calls",
                amount=collective.sent_bytes,
            )
        )
    return tuple(sorted(spans, key=lambda span: (span.begin_cycles, span.label)))


def slice_view(run: SliceRun, begin_us: float, end_us: float, *, max_bars: int = MAX_BARS) -> View:
    """Collect what the devices, collectives and links of a slice do from `begin_us` to `end_us`.

    If there are many classes or links, only the slowest or the busiest have rows. All rows have room for the same
    number of bars.
    """
    begin, end = begin_us * run.clock_hz / 1e6, end_us * run.clock_hz / 1e6
    rows = [*_device_rows(run), *_collective_rows(run), *_link_rows(run)]
    room = max(1, max_bars // max(1, len(rows)))
    lanes, bars, left_out = [], [], 0
    for row in rows:
        inside = [span for span in row.spans if span.end_cycles > begin and span.begin_cycles < end]
        chosen = sorted(longest_spans(inside, room), key=lambda span: span.begin_cycles)
        left_out += len(inside) - len(chosen)
        if chosen:
            lanes.append(row.lane)
            bars += map(row.bar, chosen)
    return View(lanes=tuple(lanes), bars=tuple(bars), left_out=left_out)


def drawn_classes(run: SliceRun) -> tuple[DeviceClass, ...]:
    """Pick the classes of devices that have a row, the slowest first."""
    return tuple(
        sorted(run.classes, key=lambda device_class: (-device_class.run.cycles, device_class.devices))[:_MAX_CLASSES]
    )


def drawn_links(run: SliceRun) -> tuple[LinkRun, ...]:
    """Pick the links that have a row: the busiest of those that carried anything, in the order of their directions."""
    used = sorted((link for link in run.links if link.sent_bytes), key=lambda link: -link.busy_cycles)
    return tuple(sorted(used[:_MAX_LINKS], key=lambda link: (link.axis, link.source)))


def _device_rows(run: SliceRun) -> Iterable[_Row]:
    for device_class in drawn_classes(run):
        lane = _devices_lane(device_class)
        yield _Row(
            lane=lane,
            spans=[span for span in device_class.run.later_core.spans if span.kind in _OF_A_CORE],
            bar=lambda span, lane=lane, run=device_class.run: core_bar(lane, span, run),
        )


def _devices_lane(device_class: DeviceClass) -> str:
    numbers = devices_text(device_class.devices)
    if len(numbers) > _MAX_LETTERS:
        return f"{len(device_class.devices)} like device {min(device_class.devices)}"
    return f"{'device' if len(device_class.devices) == 1 else 'devices'} {numbers}"


def _collective_rows(run: SliceRun) -> Iterable[_Row]:
    spans = collective_spans(run)
    by_lane: dict[int, list[Span]] = {}
    for span, lane in zip(spans, pack(spans), strict=True):
        by_lane.setdefault(lane, []).append(span)
    for number, packed in sorted(by_lane.items()):
        lane = f"collectives {number + 1}"
        yield _Row(lane=lane, spans=packed, bar=lambda span, lane=lane: _collective_bar(lane, span, run))


def _collective_bar(lane: str, span: Span, run: SliceRun) -> Bar:
    scale = 1e6 / run.clock_hz
    spent = f"{(span.end_cycles - span.begin_cycles) * scale:,.2f} µs"
    return Bar(
        lane=lane,
        activity="collective",
        begin_us=span.begin_cycles * scale,
        end_us=span.end_cycles * scale,
        what=span.label,
        detail=f"{span.label}, from its begin to its end {spent}; this device sends {size_text(span.amount)}",
    )


def _link_rows(run: SliceRun) -> Iterable[_Row]:
    for link in drawn_links(run):
        lane = f"{link_name(link)} {link.axis}"
        yield _Row(lane=lane, spans=link.spans, bar=lambda span, lane=lane: _link_bar(lane, span, run))


def _link_bar(lane: str, span: Span, run: SliceRun) -> Bar:
    scale = 1e6 / run.clock_hz
    cycles = span.end_cycles - span.begin_cycles
    rate = f", {span.amount / cycles * run.clock_hz / 1e9:,.0f} GB/s" if cycles else ""
    return Bar(
        lane=lane,
        activity="link",
        begin_us=span.begin_cycles * scale,
        end_us=span.end_cycles * scale,
        what=size_text(span.amount),
        detail=f"{span.label}, {size_text(span.amount)} over {lane}: {cycles * scale:,.3f} µs{rate}",
    )
