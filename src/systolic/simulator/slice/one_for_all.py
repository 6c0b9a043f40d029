"""One device that represents all of a slice: what it sends to another comes back to it.

It is executed with words that differ between devices as `Lanes`, so that one execution finds every device's target.
That all of them take the same time is checked at every send: all devices send, to a different device each, over routes
that take equally long; and with all that is under way at that time, every device's share of its links is the same. If a
check fails, or devices branch differently, one device cannot represent all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from systolic.simulator.hardware.lanes import DivergedError, Lanes, lanes_in
from systolic.simulator.hardware.words import joined, lane
from systolic.simulator.other_devices import RemoteTarget, Represented
from systolic.simulator.reading.barriers import Barrier, EarlySignal
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.addresses import Addresses
from systolic.simulator.slice.barrier_times import Groups, barrier_end_cycles
from systolic.simulator.slice.fair_shares import fair_rates
from systolic.simulator.slice.network import Ended, Network, Pipes, Stream
from systolic.simulator.slice.routes import Link, Route, Routes
from systolic.simulator.slice.surroundings import SliceDevice

_MAX_KEPT = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class Pattern(Route):
    """A send permutation of all devices, timed by the route of the first device."""

    routes: tuple[Route, ...]  # of every device
    to_first: int  # the device that sends to the first one
    differ: bool  # the routes take differently long


@dataclass(slots=True, kw_only=True)
class OneForAll:
    """A slice with one simulated device."""

    schedule: Schedule
    clock_hz: float
    routes: Routes
    network: PatternNetwork
    addresses: Addresses
    count: int  # of devices
    groups: Mapping[str, Groups] = field(default_factory=dict)  # of devices, by collective
    slowest_counts: bool = False  # whether all are as slow as the slowest where they differ
    differed: bool = False  # whether they did
    _targets: dict[tuple[object, ...], RemoteTarget] = field(default_factory=dict)
    _patterns: list[Pattern] = field(default_factory=list)
    _known: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def represents(self) -> Represented:
        return "the slowest" if self.slowest_counts else "all"

    def is_idle_from(self, time: float) -> bool:
        """True if nothing is under way on the links from a time on."""
        return self.network.is_idle_from(time)

    def alone(self, schedule: Schedule) -> OneForAll:
        """Return the same slice, with nothing under way, for an operation that is executed alone."""
        return replace(self, schedule=schedule, network=self.network.alone(schedule), differed=False)

    def repeat(self, alone: OneForAll) -> None:
        """Count again what an operation did that was executed alone."""
        self.differed |= alone.differed or alone.network.differed
        self.network.repeat(alone.network)

    def name(self, device: SliceDevice) -> str:
        return "every device"

    def ids(self, number: int) -> Any:
        """Return the ids of all devices, as lanes."""
        return joined(range(self.count))

    def copy_target(self, sender: int, word: Any, flag: Any) -> RemoteTarget:
        """Return the targets, on every device, of a copy that signals a flag there."""
        return self._target(self.addresses.of_copy, word, flag)

    def signal_target(self, sender: int, address: Any) -> RemoteTarget:
        """Return every device's target of a signal."""
        return self._target(self.addresses.of_signal, address)

    def chip_target(self, sender: int, chip: Any) -> RemoteTarget:
        return self._target(self.addresses.of_chip, chip)

    def sparse_copy_target(self, sender: int, word: Any, flag: Any) -> RemoteTarget:
        return self._target(self.addresses.of_sparse_copy, word, flag)

    def sparse_signal_target(self, sender: int, address: Any) -> RemoteTarget:
        return self._target(self.addresses.of_sparse_signal, address)

    def _target(self, read: Callable[..., RemoteTarget], *words: Any) -> RemoteTarget:
        if not lanes_in(words) and self.addresses.routes is None:
            targets = read(0, *words)
            if targets.remote:
                raise DivergedError("all devices send to one")
            return targets
        key = (read.__name__, *(word.key if type(word) is Lanes else word for word in words))
        target = self._targets.get(key)
        if target is None:
            if len(self._targets) >= _MAX_KEPT:
                self._targets.clear()
            target = self._targets[key] = self._read(read, words)
        return target

    def _read(self, read: Callable[..., RemoteTarget], words: tuple[Any, ...]) -> RemoteTarget:
        targets = [read(number, *(lane(word, number) for word in words)) for number in range(self.count)]
        core, remote = targets[0].core, targets[0].remote
        if any((target.core, target.remote) != (core, remote) for target in targets):
            raise DivergedError("devices send to different cores of devices")
        pattern = self._pattern(tuple(target.device for target in targets)) if remote else 0
        return RemoteTarget(pattern, core, remote, away=all(target.away for target in targets))

    def _pattern(self, devices: tuple[int, ...]) -> int:
        number = self._known.get(devices)
        if number is None:
            if len(set(devices)) < len(devices):
                raise DivergedError("two devices send to one")
            routes = tuple(self.routes.between(sender, target) for sender, target in enumerate(devices))
            differ = len({(len(route.links), route.latency_s) for route in routes}) > 1
            if differ:
                self._as_the_slowest("routes that take differently long")
            longest = max(routes, key=lambda route: (route.latency_s, len(route.links)))
            number = self._known[devices] = len(self._patterns)
            self._patterns.append(Pattern(longest.links, longest.latency_s, routes, devices.index(0), differ))
        return number

    def route(self, sender: SliceDevice, target: RemoteTarget) -> Route:
        pattern = self._patterns[target.device]
        self.differed |= pattern.differ
        return pattern

    def receiver(self, sender: SliceDevice, target: RemoteTarget) -> SliceDevice:
        """Return the receiving device: what the representative sends comes back to it."""
        return sender

    def send(self, sender: SliceDevice, time: float, route: Route, size_bytes: int, ended: Ended, pipes: Pipes) -> None:
        self.network.send(sender.number, time, route, size_bytes, ended, pipes)

    def barrier_end(self, time: int, barrier: Barrier, wait_cycles: int, name: str) -> int | None:
        """Return when the last device goes on, if all may be timed like it."""
        if not self.slowest_counts:
            return None
        self.differed = True
        if isinstance(barrier, EarlySignal):
            return time + barrier.cycles
        groups = self.groups.get(name, ()) if barrier.in_group else (range(self.count),)
        return barrier_end_cycles(barrier, time, groups, self.routes, self.clock_hz, wait_cycles)

    def back_together(self, times: Sequence[int]) -> int:
        """Return when the last device goes on, if all may be timed like it."""
        last = max(times)
        if last > min(times):
            self._as_the_slowest("a branch that devices take differently")
        return last

    def largest(self, sizes: Sequence[int]) -> int:
        """Return the largest copied size, if all may be timed like it."""
        self._as_the_slowest("copies of different sizes")
        return max(sizes)

    def first(self, words: Sequence[Any]) -> Any:
        """Return the first device's word: it may represent all if the slowest may."""
        self._as_the_slowest("something that devices do differently")
        return words[0]

    def arriving(self, target: RemoteTarget, amounts: Sequence[int]) -> int:
        """Return the amount that the first device receives."""
        return self.first(amounts[self._patterns[target.device].to_first :])

    def _as_the_slowest(self, why: str) -> None:
        if not self.slowest_counts:
            raise DivergedError(why)
        self.differed = True


class PatternNetwork(Network):
    """The links of a slice with one representative device: a stream is the sends of all devices at once.

    Rates are computed for all devices' streams together, and have to be the same on all.
    """

    def __init__(
        self, routes: Routes, schedule: Schedule, clock_hz: float, spans: int, *, slowest_counts: bool = False
    ) -> None:
        super().__init__(routes, schedule, clock_hz, spans, most_copies=sys.maxsize)
        self._slowest_counts = slowest_counts
        self.differed = False
        self._active: dict[Stream, None] = {}
        self._rates: dict[frozenset[Route], dict[Route, float]] = {}
        self._busy: dict[frozenset[Stream], float] = {}
        self._busy_before: dict[Link, float] = {}  # of sets of streams that are not kept any more
        self._since = 0.0

    def is_idle_from(self, time: float) -> bool:
        """True if nothing is under way from a time on, and nothing waits."""
        return self._since <= time and not any(stream.copies for stream in self._streams.values())

    def alone(self, schedule: Schedule) -> PatternNetwork:
        """Return the same links without any streams, for an operation that is executed alone."""
        other = PatternNetwork(self._routes, schedule, self._clock_hz, 0, slowest_counts=self._slowest_counts)
        other._rates, other._capacity = dict(self._rates), self._capacity
        return other

    def repeat(self, alone: PatternNetwork) -> None:
        """Count again what was sent over the links of an operation that was executed alone."""
        self.copies += alone.copies
        mine = {theirs: self._stream(*key) for key, theirs in alone._streams.items()}
        for theirs, stream in mine.items():
            stream.sent_bytes += theirs.sent_bytes
        for active, cycles in alone._busy.items():
            self._add_busy(frozenset(mine[stream] for stream in active), cycles)
        for link, cycles in alone._busy_before.items():
            self._busy_before[link] = self._busy_before.get(link, 0.0) + cycles

    def _join(self, time: float, stream: Stream) -> None:
        self._pass(time)
        self._active[stream] = None
        self._set(time, self._fair())

    def _leave(self, time: float, stream: Stream) -> None:
        self._pass(time)
        del self._active[stream]
        if self._active:
            self._set(time, self._fair())

    def _pass(self, time: float) -> None:
        """Account for the streams under way until now."""
        if self._active:
            self._add_busy(frozenset(self._active), time - self._since)
        self._since = time

    def _add_busy(self, active: frozenset[Stream], cycles: float) -> None:
        if len(self._busy) >= _MAX_KEPT:
            self._busy_cycles()
        self._busy[active] = self._busy.get(active, 0.0) + cycles

    def _fair(self) -> dict[Stream, float]:
        key = frozenset(stream.route for stream in self._active)
        rates = self._rates.get(key)
        if rates is None:
            if len(self._rates) >= _MAX_KEPT:
                self._rates.clear()
            fair = self._fair_on_all(tuple(self._active))
            rates = self._rates[key] = {stream.route: rate for stream, rate in fair.items()}
        return {stream: rates[stream.route] for stream in self._active}

    def _fair_on_all(self, streams: Sequence[Stream]) -> dict[Stream, float]:
        routes = {(stream, number): links for stream in streams for number, links in enumerate(_all_links(stream))}
        result: dict[Stream, float] = {}
        for (stream, _), rate in fair_rates(routes, self.capacity).items():
            if abs(result.setdefault(stream, rate) - rate) > 1e-9 * rate:
                if not self._slowest_counts:
                    raise DivergedError("devices have different shares of their links")
                self.differed = True
                result[stream] = min(result[stream], rate)
        return result

    def links_of(self, stream: Stream) -> Sequence[Link]:
        """Return the stream's links on all devices."""
        return [link for links in _all_links(stream) for link in links]

    def _busy_cycles(self) -> dict[Link, float]:
        busy = self._busy_before
        for active, cycles in self._busy.items():
            for link in {link for stream in active for link in self.links_of(stream)}:
                busy[link] = busy.get(link, 0.0) + cycles
        self._busy.clear()
        return busy


def _all_links(stream: Stream) -> list[tuple[Link, ...]]:
    route = stream.route
    assert isinstance(route, Pattern)
    return [link_route.links for link_route in route.routes]
