"""The links of a slice, and the copies that share them.

Copies from one device along one route follow each other in the order in which they were started. Routes that have a
link in common share it evenly, and what one cannot use for another link's sake is left to the others: max-min fairness.
Bytes pass link after link without being stored in between, so that a hop adds its latency once and no transfer time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.records import LinkRun
from systolic.simulator.slice.routes import Link, Route, Routes

_L = TypeVar("_L", bound=Hashable)
_NEARLY_NOTHING = 1e-6  # bytes that are left by rounding

Ended = Callable[[float], None]


@dataclass(slots=True, eq=False)
class Stream:
    """The copies of one device along one route: the first one's bytes are passing, the others wait for their turn."""

    links: tuple[Link, ...]
    copies: deque[tuple[float, Ended]] = field(default_factory=deque)  # bytes, and who is told of the end
    left_bytes: float = 0.0  # of the first
    rate: float = 0.0  # bytes a cycle
    since: float = 0.0  # when `left_bytes` was right
    prediction: int = 0  # of its end; earlier ones are out of date


@dataclass(slots=True)
class _Traffic:
    """What one direction of a link carries, and has carried."""

    capacity: float  # bytes a cycle
    timeline: Timeline | None
    streams: list[Stream] = field(default_factory=list)
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
        self._streams: dict[tuple[int, Route], Stream] = {}

    def send(self, sender: int, time: float, route: Route, size_bytes: int, ended: Ended) -> None:
        """Sends bytes from `time` on; `ended` is told when the last of them has left."""
        stream = self._streams.get((sender, route))
        if stream is None:
            stream = self._streams[sender, route] = Stream(route.links)
            for link in route.links:
                if link not in self._traffic:
                    timeline = Timeline(self._spans) if self._spans else None
                    self._traffic[link] = _Traffic(self._routes.bytes_per_s(link) / self._clock_hz, timeline)
        for link in route.links:
            self._traffic[link].sent_bytes += size_bytes
        self._schedule.at(time, lambda: self._begin(time, stream, float(size_bytes), ended))

    def _begin(self, time: float, stream: Stream, size_bytes: float, ended: Ended) -> None:
        stream.copies.append((size_bytes, ended))
        if len(stream.copies) > 1:
            return
        stream.left_bytes, stream.since, stream.rate = size_bytes, time, 0.0
        for link in stream.links:
            traffic = self._traffic[link]
            if not traffic.streams:
                traffic.busy_since = time
            traffic.streams.append(stream)
        self._share(time, [stream])

    def _predict(self, stream: Stream) -> None:
        stream.prediction += 1
        prediction = stream.prediction
        end = stream.since + stream.left_bytes / stream.rate
        self._schedule.at(end, lambda: self._end(end, stream, prediction))

    def _end(self, time: float, stream: Stream, prediction: int) -> None:
        if prediction != stream.prediction:
            return
        _, ended = stream.copies.popleft()
        if stream.copies:
            stream.left_bytes, stream.since = stream.copies[0][0], time
            self._predict(stream)
        else:
            self._leave(time, stream)
        ended(time)

    def _leave(self, time: float, stream: Stream) -> None:
        others: list[Stream] = []
        for link in stream.links:
            traffic = self._traffic[link]
            traffic.streams.remove(stream)
            others += traffic.streams
            if not traffic.streams:
                traffic.busy_cycles += time - traffic.busy_since
                if traffic.timeline is not None:
                    traffic.timeline.add("copy", traffic.busy_since, time, link.axis)
        if others:
            self._share(time, others)

    def _share(self, time: float, streams: Sequence[Stream]) -> None:
        """Works the rates out anew of these streams and of all that share links with them, directly or not."""
        concerned = self._connected(streams)
        if len(concerned) == 1:
            rates = {concerned[0]: min(self._traffic[link].capacity for link in concerned[0].links)}
        else:
            capacity = {link: self._traffic[link].capacity for stream in concerned for link in stream.links}
            rates = fair_rates({stream: stream.links for stream in concerned}, capacity)
        for stream, rate in rates.items():
            if rate != stream.rate:
                stream.left_bytes = max(_NEARLY_NOTHING, stream.left_bytes - stream.rate * (time - stream.since))
                stream.rate, stream.since = rate, time
                self._predict(stream)

    def _connected(self, streams: Sequence[Stream]) -> list[Stream]:
        found = dict.fromkeys(streams)
        pending = list(found)
        while pending:
            for link in pending.pop().links:
                for other in self._traffic[link].streams:
                    if other not in found:
                        found[other] = None
                        pending.append(other)
        return list(found)

    def results(self) -> tuple[LinkRun, ...]:
        """Reports what every link carried that carried anything."""
        runs = []
        for link, traffic in sorted(self._traffic.items(), key=lambda each: (each[0].source, each[0].axis)):
            timeline = traffic.timeline
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
