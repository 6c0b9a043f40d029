"""Plain records of a simulated slice, which serialize to JSON and back.

Cycles are of the TensorCore's clock and count from the program's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from systolic.accuracy.time_error import NOT_SAID, ProgramTraits, TimeError
from systolic.simulator.hardware.timeline import Span
from systolic.simulator.records import SimulatedRun
from systolic.simulator.traits import traits_of
from systolic.support.ranges import Count, Hertz, Rate
from systolic.support.saved import SavedResult
from systolic.support.summary import Summary

Way = Literal["one device for all", "one device for all, as slow as the slowest", "all devices"]
CollectiveKind = Literal[
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "pallas", "barrier"
]

FORMAT = 1  # of JSON text; a change that older versions cannot read makes it another


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that behaved alike, and the record of one of them."""

    devices: tuple[Count, ...]
    run: SimulatedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRun:
    """One direction of one link.

    `axis` is "x+" for the link to the next chip along the first axis, "x-" for the one back, and so on; `source` and
    `target` are then numbers of chips. It is "die" for the link between the devices of one chip, and they are devices.
    """

    source: Count
    target: Count
    axis: str
    sent_bytes: Count
    busy_cycles: Count  # in which bytes crossed it
    spans: tuple[Span, ...] = ()
    spans_left_out: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRun:
    """One communication of the program on one device, over all its calls.

    `cycles` go from the first copy's start to the end of the last wait, all calls added up; `exposed_cycles` are those
    of them in which the device waited for it or started its copies, and did nothing else.
    """

    name: str  # of the operation, as in the HLO
    kind: CollectiveKind
    calls: Count
    sent_bytes: Count  # by this device
    begin_cycles: Count  # of the first call
    end_cycles: Count  # of the last
    cycles: Count
    exposed_cycles: Count
    links: tuple[str, ...]  # axes, as `LinkRun.axis` names them

    def check_saved(self) -> None:
        """Raise `ValueError` for a saved communication with negative hidden time."""
        if self.exposed_cycles > self.cycles:
            raise ValueError(f"exposed_cycles={self.exposed_cycles} are more than cycles={self.cycles}")

    @property
    def hidden_cycles(self) -> int:
        """Cycles in which the device did other work meanwhile."""
        return self.cycles - self.exposed_cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRun(SavedResult):
    """A program on all devices of a slice. Times are of the device that ends last.

    `way` says how it was simulated: all devices; or one for all, that were shown to behave alike. `why_all` says why
    one could not represent all, if that was tried.
    """

    saved_name: ClassVar = "simulated run of a slice"

    chip: str  # after an @, its clock state if not the default
    topology: str  # "2x4"
    clock_hz: Hertz
    assignment: tuple[Count, ...]  # device ids in the flat order of the mesh
    way: Way
    classes: tuple[DeviceClass, ...]
    links: tuple[LinkRun, ...]
    collectives: tuple[CollectiveRun, ...]  # of the slowest device
    link_bytes_per_s: Rate  # that one link carries in one direction
    why_all: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)  # that it was compiled with
    assumptions: tuple[str, ...] = ()  # that the time rests on
    error: TimeError = NOT_SAID  # how far the time may be off
    format: int = FORMAT  # of `to_json`

    def check_saved(self) -> None:
        """Raise `ValueError` for a saved run without devices."""
        if not all(group.devices for group in self.classes) or not self.classes:
            raise ValueError("classes: there is none, or one without devices")

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return sum(len(device_class.devices) for device_class in self.classes)

    @property
    def slowest_class(self) -> DeviceClass:
        """The devices that end last."""
        return max(self.classes, key=lambda device_class: device_class.run.cycles)

    @property
    def slowest(self) -> SimulatedRun:
        """Return the run of the device that ends last."""
        return self.slowest_class.run

    @property
    def cycles(self) -> int:
        """Cycles of the device that ends last."""
        return self.slowest.cycles

    @property
    def time_us(self) -> float:
        """Simulated time of the device that ends last."""
        return self.cycles / self.clock_hz * 1e6

    @property
    def prefetch_us(self) -> float:
        """See `SimulatedRun.prefetch_us`."""
        return self.slowest.prefetch_us

    @property
    def skew_us(self) -> float:
        """Time by which the first device ends before the last."""
        return (self.cycles - min(device_class.run.cycles for device_class in self.classes)) / self.clock_hz * 1e6

    @property
    def provenance(self) -> Literal["simulated", "modelled"]:
        """See `SimulatedRun.provenance`."""
        return self.slowest.provenance

    @property
    def error_percent(self) -> float | None:
        """See `SimulatedRun.error_percent`."""
        return self.error.percent

    @property
    def exposed_us(self) -> float:
        """Time in which the slowest device waited for communication and did nothing else."""
        return sum(collective.exposed_cycles for collective in self.collectives) / self.clock_hz * 1e6

    @property
    def hidden_us(self) -> float:
        """Time of communication in which the slowest device did other work."""
        return sum(collective.hidden_cycles for collective in self.collectives) / self.clock_hz * 1e6

    @property
    def traits(self) -> ProgramTraits:
        """Traits of the slowest device, with the share of its time in which it waits for links alone."""
        return traits_of(self.slowest, sum(collective.exposed_cycles for collective in self.collectives))

    @property
    def sent_bytes(self) -> int:
        """Bytes that the slowest device sent to others."""
        return sum(collective.sent_bytes for collective in self.collectives)

    @property
    def link_busy_share(self) -> float:
        """Share of the time in which bytes crossed the busiest direction of a link."""
        return max(self.link_busy_shares.values(), default=0.0)

    @property
    def link_busy_shares(self) -> dict[tuple[int, int, str], float]:
        """Return the busy share of each link, by source, target and axis."""
        cycles = max(1, self.cycles)
        return {(link.source, link.target, link.axis): link.busy_cycles / cycles for link in self.links}

    def summary(self) -> Summary:
        """Return the time and the share of communication, with a row for each collective."""
        us = 1e6 / self.clock_hz
        return Summary(
            heading=f"{self.time_us:,.1f} µs {self.error.words} on {self.devices} × {self.chip}, {self.topology} "
            f"({self.provenance})",
            facts={
                "communication": f"{self.exposed_us:,.1f} µs exposed, {self.hidden_us:,.1f} µs hidden",
                "busiest link": f"busy {self.link_busy_share:.0%}",
                "skew": f"{self.skew_us:,.1f} µs",
                "simulated": f"{self.way} ({self.why_all})" if self.why_all else self.way,
                "flags": ", ".join(f"{name}={value}" for name, value in self.flags.items()),
                "assumed": "; ".join(self.assumptions),
            },
            columns=("collective", "kind", "calls", "MB sent", "µs", "µs exposed"),
            rows=tuple(
                (
                    collective.name,
                    collective.kind,
                    collective.calls,
                    collective.sent_bytes / 1e6,
                    collective.cycles * us,
                    collective.exposed_cycles * us,
                )
                for collective in sorted(self.collectives, key=lambda collective: -collective.cycles)
            ),
        )
