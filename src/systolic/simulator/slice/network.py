"""The links of a slice, and the copies that share them.

A copy holds all links of its route while its bytes pass, at the rate that the fullest of them leaves it: copies on one
link share it evenly, and what one cannot use for another link's sake is left to the others (max-min fairness). Bytes
pass link after link without being stored in between, so that a hop adds its latency once and no transfer time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.records import LinkRun
from systolic.simulator.slice.routes import Link, Route, Routes

_L = TypeVar("_L", bound=Hashable)
_NEARLY_NOTHING = 1e-6  # bytes that are left by rounding


@dataclass(slots=True, eq=False)
class Flow:
    """A copy whose bytes are passing."""

    links: tuple[Link, ...]
    left_bytes: float
    ended: Callable[[float], None]
    rate: float = 0.0  # bytes a cycle
    since: float = 0.0  # when `left_bytes` was right
    prediction: int = 0  # of its end; earlier ones are out of date


@dataclass(slots=True)
class _Traffic:
    """What one direction of a link carries, and has carried."""

    flows: list[Flow] = field(default_factory=list)
    sent_bytes: int = 0
    busy_cycles: float = 0.0
    busy_since: float = 0.0


class Network:
    """The links between the devices of a slice.

    Args:
      schedule: in which copies end.
      clock_hz: of the cycles in which time counts here.
      spans: how many spans of each link are kept from the beginning, and as many from the end.
    """

    def __init__(self, routes: Routes, schedule: Schedule, clock_hz: float, spans: int) -> None:
        self._routes = routes
        self._schedule = schedule
        self._clock_hz = clock_hz
        self._spans = spans
        self._traffic: dict[Link, _Traffic] = {}
        self._capacity: dict[Link, float] = {}
        self._timelines: dict[Link, Timeline] = {}

    def send(self, time: float, route: Route, size_bytes: int, ended: Callable[[float], None]) -> None:
        """Sends bytes from `time` on; `ended` is told when the last of them has left."""
        flow = Flow(route.links, float(size_bytes), ended)
        for link in route.links:
            self._known(link).sent_bytes += size_bytes
        self._schedule.at(time, lambda: self._join(time, flow))

    def _known(self, link: Link) -> _Traffic:
        traffic = self._traffic.get(link)
        if traffic is None:
            traffic = self._traffic[link] = _Traffic()
            self._capacity[link] = self._routes.bytes_per_s(link) / self._clock_hz
            if self._spans:
                self._timelines[link] = Timeline(self._spans)
        return traffic

    def _join(self, time: float, flow: Flow) -> None:
        flow.since = time
        alone = True
        for link in flow.links:
            traffic = self._traffic[link]
            if traffic.flows:
                alone = False
            else:
                traffic.busy_since = time
            traffic.flows.append(flow)
        if alone:
            flow.rate = min(self._capacity[link] for link in flow.links)
            self._predict(flow)
        else:
            self._share(time, [flow])

    def _predict(self, flow: Flow) -> None:
        flow.prediction += 1
        prediction = flow.prediction
        end = flow.since + flow.left_bytes / flow.rate
        self._schedule.at(end, lambda: self._end(end, flow, prediction))

    def _end(self, time: float, flow: Flow, prediction: int) -> None:
        if prediction != flow.prediction:
            return
        others: list[Flow] = []
        for link in flow.links:
            traffic = self._traffic[link]
            traffic.flows.remove(flow)
            others += traffic.flows
            if not traffic.flows:
                traffic.busy_cycles += time - traffic.busy_since
                if self._spans:
                    self._timelines[link].add("copy", traffic.busy_since, time, link.axis)
        if others:
            self._share(time, others)
        flow.ended(time)

    def _share(self, time: float, flows: Sequence[Flow]) -> None:
        """Works the rates out anew of these flows and of all that share links with them, directly or not."""
        concerned = self._connected(flows)
        for flow, rate in fair_rates({flow: flow.links for flow in concerned}, self._capacity).items():
            if rate != flow.rate:
                flow.left_bytes = max(_NEARLY_NOTHING, flow.left_bytes - flow.rate * (time - flow.since))
                flow.rate, flow.since = rate, time
                self._predict(flow)

    def _connected(self, flows: Sequence[Flow]) -> list[Flow]:
        found = dict.fromkeys(flows)
        pending = list(found)
        while pending:
            for link in pending.pop().links:
                for other in self._traffic[link].flows:
                    if other not in found:
                        found[other] = None
                        pending.append(other)
        return list(found)

    def results(self) -> tuple[LinkRun, ...]:
        """Reports what every link carried that carried anything."""
        runs = []
        for link, traffic in sorted(self._traffic.items(), key=lambda each: (each[0].source, each[0].axis)):
            timeline = self._timelines.get(link)
            runs.append(
                LinkRun(
                    source=link.source,
                    target=link.target,
                    axis=link.axis,
                    sent_bytes=traffic.sent_bytes,
                    busy_cycles=round(traffic.busy_cycles),
                    spans=timeline.spans if timeline is not None else (),
                    spans_left_out=timeline.left_out if timeline is not None else 0,
                )
            )
        return tuple(runs)


_F = TypeVar("_F", bound=Hashable)


def fair_rates(routes: Mapping[_F, Sequence[_L]], capacity: Mapping[_L, float]) -> dict[_F, float]:
    """Shares links among flows by progressive filling.

    All rates grow together; whenever a link is full, the flows on it keep the rate that they have.

    Args:
      routes: of every flow, the links that it takes.
      capacity: of every link.
    """
    on: dict[_L, list[_F]] = {}
    for flow, links in routes.items():
        for link in links:
            on.setdefault(link, []).append(flow)
    left = {link: capacity[link] for link in on}
    growing = {link: len(flows) for link, flows in on.items()}
    rates: dict[_F, float] = {}
    while len(rates) < len(routes):
        fullest = min((link for link in on if growing[link]), key=lambda link: left[link] / growing[link])
        rate = left[fullest] / growing[fullest]
        for flow in on[fullest]:
            if flow in rates:
                continue
            rates[flow] = rate
            for link in routes[flow]:
                left[link] -= rate
                growing[link] -= 1
    return rates
