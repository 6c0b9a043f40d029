"""Calls of an operation by all cores of a device at about the same time, as after a barrier of its cores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Call = TypeVar("_Call")
_Outcome = TypeVar("_Outcome")

# After XLA's barrier the core that came last is a cycle later: it takes the other's message one bundle after it sent
# its own. Waiting for the other core takes no simulated time. It changes the order of acts only of an operation that
# acts on HBM within these cycles of its call; none is known, and this is an assumption.
_MAX_CYCLES_APART = 4
# Operations after a collective have no barrier before them: one core begins them by a wait or two later than the other,
# 42 or 83 cycles on v5p. From the second call on they are waited for as long as the other core took before.
_MAX_EXPECTED_CYCLES = 256


@dataclass(slots=True)
class _Arrival(Generic[_Call, _Outcome]):
    name: str
    time: int
    call: _Call | None
    decided: bool = False
    outcome: _Outcome | None = None


@dataclass(slots=True)
class Meeting(Generic[_Call, _Outcome]):
    """The cores of one device that are about to execute an operation.

    Args:
      cores: their number on the device.
    """

    cores: int
    _arrivals: dict[int, _Arrival[_Call, _Outcome]] = field(default_factory=dict)  # by core
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)  # core and time of an operation's call before
    _expected: dict[str, int] = field(default_factory=dict)  # cycles by which the cores call an operation apart

    def together(
        self,
        core: int,
        name: str,
        time: int,
        call: _Call | None,
        decide: Callable[[Sequence[_Call]], Sequence[_Outcome] | None],
    ) -> Generator[int, None, _Outcome | None]:
        """Wait until the other cores have had their turn, and return a call's outcome.

        Args:
          core: that calls.
          name: of the operation.
          time: of the call.
          call: of the core; None: it has to be executed.
          decide: outcomes of all cores' calls, the earliest first; called if all call the same operation now.

        Returns:
          None where the call has to be executed.
        """
        arrival = self._arrivals[core] = _Arrival(name, time, call)
        expected = self._expected.get(name, 0)
        self._expect(core, name, time)
        for turn in (time, time + expected + _MAX_CYCLES_APART):
            yield turn
            if arrival.decided:
                return arrival.outcome
            if self._are_together(expected):
                self._decide(core, decide)
                return arrival.outcome
        del self._arrivals[core]
        return None

    def _expect(self, core: int, name: str, time: int) -> None:
        other, before = self._before.get(name, (core, time))
        if other == core:
            self._before[name] = core, time
            return
        del self._before[name]
        if _MAX_CYCLES_APART < time - before <= _MAX_EXPECTED_CYCLES:
            self._expected[name] = max(time - before, self._expected.get(name, 0))

    def _are_together(self, expected: int) -> bool:
        arrivals = self._arrivals.values()
        times = [arrival.time for arrival in arrivals]
        return (
            len(times) == self.cores
            and len({arrival.name for arrival in arrivals}) == 1
            and max(times) - min(times) <= expected + _MAX_CYCLES_APART
        )

    def _decide(self, now: int, decide: Callable[[Sequence[_Call]], Sequence[_Outcome] | None]) -> None:
        """Decide all calls by time; of simultaneous calls, the call of the core whose turn it is now comes first."""
        arrivals = [arrival for core, arrival in sorted(self._arrivals.items(), key=lambda entry: entry[0] != now)]
        arrivals.sort(key=lambda arrival: arrival.time)
        self._arrivals.clear()
        calls = [arrival.call for arrival in arrivals if arrival.call is not None]
        outcomes = decide(calls) if len(calls) == self.cores else None
        for number, arrival in enumerate(arrivals):
            arrival.decided = True
            arrival.outcome = None if outcomes is None else outcomes[number]
