"""A run on a slice as tables of text, which the page and the terminal both show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from systolic.report.columns import numeric, textual
from systolic.report.explained_table import ExplainedTable, explained_table
from systolic.report.written import megabytes, percent, us
from systolic.simulator import CollectiveRun, DeviceClass, LinkRun, SliceRun

_MAX_COLLECTIVES = 20
_MAX_LINKS = 16
_MAX_CLASSES = 16
_WAYS = {
    "one device for all": "one device was simulated for all: their copies go equally far, and each has an equal share "
    "of its links",
    "one device for all, as slow as the slowest": "one device was simulated for all: where distances of "
    "copies or times at a barrier differ between devices, it is as slow as the slowest",
    "all devices": "all devices were simulated together",
}


def way_text(run: SliceRun) -> str:
    """Say how many devices were simulated, and why not one for all."""
    return _WAYS[run.way] + (f", since one could not represent them: {run.why_all}" if run.why_all else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAxis:
    """All links of a slice in one direction."""

    axis: str
    links: tuple[LinkRun, ...]

    @property
    def busiest(self) -> LinkRun:
        """The link that carries bytes for the longest time."""
        return max(self.links, key=lambda link: link.busy_cycles)


def link_axes(links: Iterable[LinkRun]) -> tuple[LinkAxis, ...]:
    """Group links by direction."""
    by_axis: dict[str, list[LinkRun]] = {}
    for link in links:
        by_axis.setdefault(link.axis, []).append(link)
    return tuple(LinkAxis(axis=axis, links=tuple(by_axis[axis])) for axis in sorted(by_axis))


def collectives_table(run: SliceRun) -> ExplainedTable[CollectiveRun] | None:
    """List the slowest device's collectives, the longest first."""
    if not run.collectives:
        return None
    scale = 1e6 / run.clock_hz

    def exposed(collective: CollectiveRun) -> float:
        return collective.exposed_cycles / max(1, collective.cycles)

    return explained_table(
        (
            textual("collective", lambda collective: collective.name, kind="code"),
            textual("kind", lambda collective: collective.kind, droppable=True),
            numeric("calls", lambda collective: collective.calls, ",", droppable=True),
            numeric("MB sent", lambda collective: megabytes(collective.sent_bytes)),
            textual("links", lambda collective: " ".join(collective.links), optional=True),
            numeric("simulated µs", lambda collective: us(collective.cycles * scale)),
            numeric("GB/s", lambda collective: _rate(collective, run), ",.0f", droppable=True),
            numeric("exposed µs", lambda collective: us(collective.exposed_cycles * scale)),
            numeric("hidden µs", lambda collective: us(collective.hidden_cycles * scale), droppable=True),
            numeric("exposed", lambda collective: percent(exposed(collective)), share=exposed, droppable=True),
        ),
        sorted(run.collectives, key=lambda collective: (-collective.cycles, collective.begin_cycles)),
        max_rows=_MAX_COLLECTIVES,
    )


def _rate(collective: CollectiveRun, run: SliceRun) -> float | None:
    return (
        collective.sent_bytes / collective.cycles * run.clock_hz / 1e9
        if collective.sent_bytes and collective.cycles
        else None
    )


def link_axes_table(run: SliceRun) -> ExplainedTable[LinkAxis] | None:
    """List how much the links of each direction carried."""
    if not run.links:
        return None
    cycles = max(1, run.cycles)

    def busiest(axis: LinkAxis) -> float:
        return axis.busiest.busy_cycles / cycles

    def mean(axis: LinkAxis) -> float:
        return sum(link.busy_cycles for link in axis.links) / len(axis.links) / cycles

    return explained_table(
        (
            textual("direction", lambda axis: axis.axis),
            numeric("links", lambda axis: len(axis.links), ","),
            numeric("in use", lambda axis: sum(link.sent_bytes > 0 for link in axis.links), ","),
            numeric("MB in all", lambda axis: megabytes(sum(link.sent_bytes for link in axis.links))),
            textual("busiest", lambda axis: link_name(axis.busiest)),
            numeric("its MB", lambda axis: megabytes(axis.busiest.sent_bytes)),
            numeric("it is busy", lambda axis: percent(busiest(axis)), share=busiest),
            numeric("busy on average", lambda axis: percent(mean(axis)), share=mean, droppable=True),
        ),
        link_axes(run.links),
    )


def links_table(run: SliceRun) -> ExplainedTable[LinkRun] | None:
    """List the links that carried anything, the busiest first; None if they all carried the same."""
    used = [link for link in run.links if link.sent_bytes]
    if len({(link.sent_bytes, link.busy_cycles) for link in used}) < 2:
        return None

    def busy(link: LinkRun) -> float:
        return link.busy_cycles / max(1, run.cycles)

    return explained_table(
        (
            textual("link", link_name),
            textual("direction", lambda link: link.axis),
            numeric("MB", lambda link: megabytes(link.sent_bytes)),
            numeric("busy µs", lambda link: us(link.busy_cycles / run.clock_hz * 1e6)),
            numeric("busy", lambda link: percent(busy(link)), share=busy),
        ),
        sorted(used, key=lambda link: -link.busy_cycles),
        max_rows=_MAX_LINKS,
    )


def devices_table(run: SliceRun) -> ExplainedTable[DeviceClass]:
    """List the classes of devices, the slowest first."""

    def share(device_class: DeviceClass) -> float:
        return device_class.run.cycles / max(1, run.cycles)

    return explained_table(
        (
            textual("devices", lambda device_class: devices_text(device_class.devices)),
            numeric("number", lambda device_class: len(device_class.devices), ","),
            numeric("simulated µs", lambda device_class: us(device_class.run.time_us)),
            numeric("of the slowest", lambda device_class: percent(share(device_class)), share=share),
            numeric("matrix units busy", lambda device_class: percent(device_class.run.matrix_busy_share)),
            numeric("HBM busy", lambda device_class: percent(device_class.run.copy_busy_share)),
            textual("waits for", lambda device_class: _waits(device_class), optional=True),
        ),
        sorted(run.classes, key=lambda device_class: (-device_class.run.cycles, device_class.devices)),
        max_rows=_MAX_CLASSES,
    )


def _waits(device_class: DeviceClass) -> str:
    return ", ".join(f"{cause} {percent(share)}" for cause, share in device_class.run.stalls.items() if share >= 0.0005)


def link_name(link: LinkRun) -> str:
    """Name a link by its ends: ids of devices for "die", else of chips."""
    return f"{link.source} → {link.target}"


def devices_text(devices: Sequence[int]) -> str:
    """Write device numbers, three or more in a row as a range: "0–7", "0, 2, 4–6"."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
