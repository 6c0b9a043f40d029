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
