"""One core's transfers to and from other devices, by communication.

A communication has a label: the operation that it is in. A permutation of the top-level program begins with a signal to
the device that sends to this one, and ends with the waits for both copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from systolic.simulator.slice.routes import Route


@dataclass(slots=True)
class Tally:
    """The totals of one communication over all its calls."""

    calls: int = 0
    copies: int = 0
    sent_bytes: int = 0
    begin: int = 0  # of the first call
    end: int = 0  # of the last
    cycles: int = 0  # from each call's first act to the end of its last wait
    waited_cycles: int = 0
    issued_cycles: int = 0  # in which the core started copies, and could do nothing else
    axes: set[str] = field(default_factory=set)
    called: int = 0  # when the last call began
    waits: bool = False  # whether it has waited since


class Communications:
    """A tally for each label of one core's communications."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}

    def sent(self, label: str, time: int, size_bytes: int, route: Route, issued_cycles: int = 0) -> None:
        tally = self._tally(label, time)
        tally.issued_cycles += issued_cycles
        tally.copies += 1
        tally.sent_bytes += size_bytes
        tally.axes |= route.axes

    def signalled(self, label: str, time: int) -> None:
        tally = self._tally(label, time)
        if tally.waits and tally.copies >= tally.calls:
            tally.cycles += tally.end - tally.called
            tally.calls, tally.called, tally.waits = tally.calls + 1, time, False

    def waited(self, label: str, begin: int, end: int) -> None:
        """Count a wait for a copy's departure or arrival, or for a signal."""
        tally = self.tallies.get(label)
        if tally is not None:
            tally.end, tally.waits = max(tally.end, end), True
            tally.waited_cycles += end - begin

    def repeat(self, time: int, recorded: RecordedCommunications) -> None:
        """Count recorded acts again, which happen so much later."""
        for label, stretches in recorded.stretches.items():
            for stretch in stretches:
                if stretch.signalled:
                    self.signalled(label, time + stretch.begin)
                if stretch.copies:
                    tally = self._tally(label, time + stretch.begin)
                    tally.copies += stretch.copies
                    tally.sent_bytes += stretch.sent_bytes
                    tally.issued_cycles += stretch.issued_cycles
                    tally.axes |= stretch.axes
                if stretch.waited_until is not None:
                    end = time + stretch.waited_until
                    self.waited(label, end - stretch.waited_cycles, end)

    def finished(self) -> dict[str, Tally]:
        for tally in self.tallies.values():
            tally.cycles += max(0, tally.end - tally.called)
            tally.called = tally.end
        return self.tallies

    def _tally(self, label: str, time: int) -> Tally:
        tally = self.tallies.get(label)
        if tally is None:
            tally = self.tallies[label] = Tally(calls=1, begin=time, called=time)
        return tally


@dataclass(slots=True)
class _Stretch:
    """The acts of one communication from one signal to the next."""

    begin: int  # of the first signal or copy
    signalled: bool = False  # begins with a signal
    copies: int = 0
    sent_bytes: int = 0
    issued_cycles: int = 0
    axes: set[str] = field(default_factory=set)
    waited_until: int | None = None
    waited_cycles: int = 0


class RecordedCommunications(Communications):
    """The acts of one core's communications, to be repeated: when a call is over depends on the calls before."""

    def __init__(self) -> None:
        super().__init__()
        self.stretches: dict[str, list[_Stretch]] = {}

    def sent(self, label: str, time: int, size_bytes: int, route: Route, issued_cycles: int = 0) -> None:
        stretches = self.stretches.setdefault(label, [])
        # A wait before all other acts may belong to no communication yet.
        if not stretches or not (stretches[-1].signalled or stretches[-1].copies):
            stretches.append(_Stretch(time))
        stretch = stretches[-1]
        stretch.copies += 1
        stretch.sent_bytes += size_bytes
        stretch.issued_cycles += issued_cycles
        stretch.axes |= route.axes

    def signalled(self, label: str, time: int) -> None:
        self.stretches.setdefault(label, []).append(_Stretch(time, signalled=True))

    def waited(self, label: str, begin: int, end: int) -> None:
        stretches = self.stretches.setdefault(label, [])
        if not stretches:
            stretches.append(_Stretch(begin))
        stretch = stretches[-1]
        stretch.waited_until = max(stretch.waited_until or 0, end)
        stretch.waited_cycles += end - begin
