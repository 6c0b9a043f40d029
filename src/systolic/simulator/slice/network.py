"""The links of a slice, and the copies that share them.

Copies from one device along one route follow each other in the order in which they were started. Routes that have a
link in common share it evenly, and what one cannot use for another link's sake is left to the others: max-min fairness.
Bytes pass link after link without being stored in between, so that a hop adds its latency once and no transfer time.
While they pass, the HBM that they come from, and that they go to, has less of its rate for other copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from systolic.simulator.errors import TooManyCopiesError
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.fair_shares import changed_rates
from systolic.simulator.slice.records import LinkRun
from systolic.simulator.slice.routes import Link, Route, Routes

_NEARLY_NOTHING = 1e-3  # bytes that are left by rounding
_SAME = 1e-12  # of a rate: what comes of summing in another order
_TICKS = 1 << 10  # of a cycle: ends that differ by less are one, so that rates are computed once for them
# That all devices together may send where each is simulated: minutes of work.
MAX_COPIES = 2_000_000
# Where no device can represent the others. Executing a step of DeepSeek-V2-Lite up to 2 million took 23 minutes.
MAX_COPIES_APART = 8_000_000

Ended = Callable[[float], None]
Pipes = Sequence[HbmPipe]  # to HBM that a copy reads or writes, on the sender and on the receiver


@dataclass(slots=True, eq=False)
class Stream:
    """The copies of one device along one route: the first one's bytes may be passing, the others wait."""

    route: Route
    copies: deque[tuple[float, Pipes, Ended]] = field(default_factory=deque)  # bytes, and the callback at the end
    begins: deque[float] = field(default_factory=deque)  # when they can begin, in order
    passing: bool = False
    sent_bytes: int = 0  # in all
    left_bytes: float = 0.0  # of the first
    rate: float = 0.0  # bytes a cycle
    since: float = 0.0  # when `left_bytes` was right
    prediction: int = 0  # of its end; earlier ones are out of date

    def change_rate(self, time: float, rate: float) -> None:
        """Let the first copy pass at a rate from `time` on."""
        for pipe in self.copies[0][1]:
            pipe.serve_links(time, rate - self.rate)
        self.rate = rate


@dataclass(slots=True)
class _Traffic:
    """Traffic of one direction of a link."""

    streams: dict[Stream, None] = field(default_factory=dict)
    busy_cycles: float = 0.0
    busy_since: float = 0.0


class Network:
    """The links between the devices of a slice.

    Args:
      schedule: runs the ends of copies.
      clock_hz: of cycles, the unit of time here.
      spans: number of spans of each link to keep from the beginning, and from the end.
      most_copies: that may be sent.
    """

    def __init__(
        self, routes: Routes, schedule: Schedule, clock_hz: float, spans: int, *, most_copies: int = MAX_COPIES
    ) -> None:
        self._routes = routes
        self._schedule = schedule
        self._clock_hz = clock_hz
        self._spans = spans
        self._traffic: dict[Link, _Traffic] = {}
        self._capacity: dict[Link, float] = {}
        self._streams: dict[tuple[int, Route], Stream] = {}
        self.copies = 0  # that were sent
        self._most_copies = most_copies
        self._timelines: dict[Link, Timeline] = {}
        self._changed: dict[Stream, None] = {}  # shares to be computed after all events of this time

    def send(self, sender: int, time: float, route: Route, size_bytes: int, ended: Ended, pipes: Pipes = ()) -> None:
        """Send bytes from `time` on, call `ended` when the last has left; raise TooManyCopiesError past the limit."""
        self.copies += 1  # perhaps after rounds of loops that were skipped, which sent some too
        if self.copies > self._most_copies:
            raise too_many_copies(self.copies, self._most_copies)
        stream = self._stream(sender, route)
        stream.sent_bytes += size_bytes
        at = len(stream.begins)
        while at > stream.passing and stream.begins[at - 1] > time:
            at -= 1
        stream.begins.insert(at, time)
        stream.copies.insert(at, (float(size_bytes), pipes, ended))
        if not at:
            self._begin_at(time, stream)

    def _stream(self, sender: int, route: Route) -> Stream:
        stream = self._streams.get((sender, route))
        if stream is None:
            stream = self._streams[sender, route] = Stream(route)
        return stream

    def capacity(self, link: Link) -> float:
        """Return the bytes per cycle of a link."""
        capacity = self._capacity.get(link)
        if capacity is None:
            capacity = self._capacity[link] = self._routes.bytes_per_s(link) / self._clock_hz
        return capacity

    def _begin_at(self, time: float, stream: Stream) -> None:
        self._schedule.at(time, lambda: self._begin(time, stream))

    def _begin(self, time: float, stream: Stream) -> None:
        if not stream.passing and stream.begins[0] == time:  # else another copy has been sent that begins before
            stream.passing, stream.left_bytes, stream.since, stream.rate = True, stream.copies[0][0], time, 0.0
            self._join(time, stream)

    def _predict(self, stream: Stream) -> None:
        stream.prediction += 1
        prediction = stream.prediction
        end = max(stream.since, round((stream.since + stream.left_bytes / stream.rate) * _TICKS) / _TICKS)
        self._schedule.at(end, lambda: self._end(end, stream, prediction))

    def _end(self, time: float, stream: Stream, prediction: int) -> None:
        if prediction != stream.prediction:
            return
        begin, rate, copies = stream.since, stream.rate, stream.copies
        size_bytes, pipes, ended = copies.popleft()
        stream.begins.popleft()
        for pipe in pipes:
            pipe.serve_links(time, -rate)
        if self._spans:
            self._note(stream, begin, time, round(size_bytes))
        if copies and stream.begins[0] <= time:
            stream.left_bytes, pipes, _ = copies[0]
            for pipe in pipes:
                pipe.serve_links(time, rate)
            stream.since = time
            self._predict(stream)
        else:
            stream.passing, stream.rate = False, 0.0
            self._leave(time, stream)
            if copies:
                self._begin_at(stream.begins[0], stream)
        ended(time)

    def _note(self, stream: Stream, begin: float, end: float, size_bytes: int) -> None:
        for link in self.links_of(stream):
            timeline = self._timelines.get(link)
            if timeline is None:
                timeline = self._timelines[link] = Timeline(self._spans)
            timeline.add("copy", begin, end, link.axis, size_bytes)

    def links_of(self, stream: Stream) -> Sequence[Link]:
        return stream.route.links

    # ---- shares ----

    def _join(self, time: float, stream: Stream) -> None:
        for link in stream.route.links:
            traffic = self._traffic.setdefault(link, _Traffic())
            if not traffic.streams:
                traffic.busy_since = time
            traffic.streams[stream] = None
            self._change(time, traffic.streams)

    def _leave(self, time: float, stream: Stream) -> None:
        self._changed.pop(stream, None)
        for link in stream.route.links:
            traffic = self._traffic[link]
            del traffic.streams[stream]
            self._change(time, traffic.streams)
            if not traffic.streams:
                traffic.busy_cycles += time - traffic.busy_since

    def _change(self, time: float, streams: Iterable[Stream]) -> None:
        before = len(self._changed)
        self._changed.update(dict.fromkeys(streams))
        if not before and self._changed:
            self._schedule.at(time, lambda: self._share(time))

    def _share(self, time: float) -> None:
        """Recompute the rates that change with those streams."""
        changed, self._changed = self._changed, {}
        rates = changed_rates(
            changed,
            route=lambda stream: stream.route.links,
            flows=lambda link: self._traffic[link].streams,
            rate=lambda stream: stream.rate,
            capacity=self.capacity,
        )
        self._set(time, rates)

    def _set(self, time: float, rates: Mapping[Stream, float]) -> None:
        for stream, rate in rates.items():
            if abs(rate - stream.rate) > _SAME * rate:
                left = stream.left_bytes - stream.rate * (time - stream.since)
                stream.left_bytes = left if left > _NEARLY_NOTHING else 0.0
                stream.change_rate(time, rate)
                stream.since = time
                self._predict(stream)

    # ---- what it all came to ----

    def results(self) -> tuple[LinkRun, ...]:
        sent: dict[Link, int] = {}
        for stream in self._streams.values():
            for link in self.links_of(stream):
                sent[link] = sent.get(link, 0) + stream.sent_bytes
        busy = self._busy_cycles()
        return tuple(
            LinkRun(
                source=link.source,
                target=link.target,
                axis=link.axis,
                sent_bytes=size_bytes,
                busy_cycles=round(busy.get(link, 0.0)),
                spans=self._timelines[link].spans if link in self._timelines else (),
                spans_left_out=self._timelines[link].left_out if link in self._timelines else 0,
            )
            for link, size_bytes in sorted(sent.items(), key=lambda sent_link: (sent_link[0].source, sent_link[0].axis))
        )

    def _busy_cycles(self) -> dict[Link, float]:
        return {link: traffic.busy_cycles for link, traffic in self._traffic.items()}


def too_many_copies(sent: int, limit: int, why: str = "") -> TooManyCopiesError:
    """Return the error that all devices together send more copies than `limit`."""
    return TooManyCopiesError(
        f"the devices send each other {sent:,} copies or more, and no device's stand for all{why}; {limit:,} are "
        "the most that are simulated: take a smaller slice, or arrays of fewer bytes"
    )
