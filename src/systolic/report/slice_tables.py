"""A run on a slice as tables of text, which the page and the terminal both show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from systolic.report.columns import numeric, textual
from systolic.report.explained_table import ExplainedTable, explained_table
from systolic.report.written import megabytes, percent, us
from systolic.simulator import CollectiveRun, DeviceClass, LinkRun, SliceRun

_MOST_COLLECTIVES = 20
_MOST_LINKS = 16
_MOST_CLASSES = 16
WAYS = {
    "one device for all": "one device was simulated, which stands for all: their copies go equally far, and each has "
    "an equal share of its links",
    "one device for all, as slow as the slowest": "one device was simulated, which stands for all: where their copies "
    "go differently far, or they differ at a barrier of all, it is as slow as the slowest",
    "all devices": "all devices were simulated together",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAxis:
    """All links of a slice that lead in one direction."""

    axis: str
    links: tuple[LinkRun, ...]

    @property
    def busiest(self) -> LinkRun:
        """The one that carries bytes for the longest time."""
        return max(self.links, key=lambda link: link.busy_cycles)


def link_axes(links: Iterable[LinkRun]) -> tuple[LinkAxis, ...]:
    """Groups links by the direction in which they lead."""
    by_axis: dict[str, list[LinkRun]] = {}
    for link in links:
        by_axis.setdefault(link.axis, []).append(link)
    return tuple(LinkAxis(axis=axis, links=tuple(by_axis[axis])) for axis in sorted(by_axis))


def collectives_table(run: SliceRun) -> ExplainedTable[CollectiveRun] | None:
    """Lists what the slowest device did together with others, what took longest first."""
    if not run.collectives:
        return None
    scale = 1e6 / run.clock_hz

    def exposed(each: CollectiveRun) -> float:
        return each.exposed_cycles / max(1, each.cycles)

    return explained_table(
        (
            textual("collective", lambda each: each.name, kind="code"),
            textual("kind", lambda each: each.kind, droppable=True),
            numeric("calls", lambda each: each.calls, ",", droppable=True),
            numeric("MB sent", lambda each: megabytes(each.sent_bytes)),
            textual("links", lambda each: " ".join(each.links), optional=True),
            numeric("simulated µs", lambda each: us(each.cycles * scale)),
            numeric("GB/s", lambda each: _rate(each, run), ",.0f", droppable=True),
            numeric("exposed µs", lambda each: us(each.exposed_cycles * scale)),
            numeric("hidden µs", lambda each: us(each.hidden_cycles * scale), droppable=True),
            numeric("exposed", lambda each: percent(exposed(each)), share=exposed, droppable=True),
        ),
        sorted(run.collectives, key=lambda each: (-each.cycles, each.begin_cycles)),
        most=_MOST_COLLECTIVES,
    )


def _rate(each: CollectiveRun, run: SliceRun) -> float | None:
    return each.sent_bytes / each.cycles * run.clock_hz / 1e9 if each.sent_bytes and each.cycles else None


def link_axes_table(run: SliceRun) -> ExplainedTable[LinkAxis] | None:
    """Lists how much the links of each direction carried."""
    if not run.links:
        return None
    cycles = max(1, run.cycles)

    def busiest(each: LinkAxis) -> float:
        return each.busiest.busy_cycles / cycles

    def mean(each: LinkAxis) -> float:
        return sum(link.busy_cycles for link in each.links) / len(each.links) / cycles

    return explained_table(
        (
            textual("direction", lambda each: each.axis),
            numeric("links", lambda each: len(each.links), ","),
            numeric("in use", lambda each: sum(link.sent_bytes > 0 for link in each.links), ","),
            numeric("MB in all", lambda each: megabytes(sum(link.sent_bytes for link in each.links))),
            textual("busiest", lambda each: link_name(each.busiest)),
            numeric("its MB", lambda each: megabytes(each.busiest.sent_bytes)),
            numeric("it is busy", lambda each: percent(busiest(each)), share=busiest),
            numeric("busy on average", lambda each: percent(mean(each)), share=mean, droppable=True),
        ),
        link_axes(run.links),
    )


def links_table(run: SliceRun) -> ExplainedTable[LinkRun] | None:
    """Lists the links that carried anything, the busiest first; None where all of these carried the same."""
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
        most=_MOST_LINKS,
    )


def devices_table(run: SliceRun) -> ExplainedTable[DeviceClass]:
    """Lists the classes of devices, the slowest first."""

    def share(each: DeviceClass) -> float:
        return each.run.cycles / max(1, run.cycles)

    return explained_table(
        (
            textual("devices", lambda each: devices_text(each.devices)),
            numeric("number", lambda each: len(each.devices), ","),
            numeric("simulated µs", lambda each: us(each.run.time_us)),
            numeric("of the slowest", lambda each: percent(share(each)), share=share),
            numeric("matrix units busy", lambda each: percent(each.run.matrix_busy_share)),
            numeric("HBM busy", lambda each: percent(each.run.copy_busy_share)),
            textual("waits for", lambda each: _waits(each), optional=True),
        ),
        sorted(run.classes, key=lambda each: (-each.run.cycles, each.devices)),
        most=_MOST_CLASSES,
    )


def _waits(each: DeviceClass) -> str:
    return ", ".join(f"{cause} {percent(share)}" for cause, share in each.run.stalls.items() if share >= 0.0005)


def link_name(link: LinkRun) -> str:
    """Names a link by its ends; which ids they are, its direction says: devices' for "die", else chips'."""
    return f"{link.source} → {link.target}"


def devices_text(devices: Sequence[int]) -> str:
    """Writes numbers of devices, ranges of three and more as such: "0–7", "0, 2, 4–6"."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
