"""Sync flags of a SparseCore's sequencer or of one of its tiles."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from systolic.simulator.errors import SimulationError, check_most
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.values import MASK, Unknown
from systolic.simulator.schedule import Schedule, Waited

_SIGN = 1 << 31
_MAX_UNDER_WAY = 1 << 18
_MAX_UNREAD = 1 << 10  # of which the time is kept, while no program has read the flag


@dataclass(slots=True)
class _Flag(Waited):
    count: int = 0
    landing: list[tuple[float, int]] = field(default_factory=list)  # (time, amount), in order of time
    is_read: bool = False  # a program has waited for it, or asked for its count
    decides: bool = False  # and has done so since the state was last compared; see `rounds`

    @property
    def total(self) -> int:
        """Return the count when all has landed."""
        return self.count + sum(amount for _, amount in self.landing)

    @total.setter
    def total(self, total: int) -> None:
        self.count += total - self.total


class SparseFlags:
    """Flags by number, each with the amounts under way to it.

    Args:
      first: returns the amount that counts where the devices that this one represents have different ones.
    """

    def __init__(self, schedule: Schedule, first: Callable[[Sequence[Any]], Any]) -> None:
        self._first = first
        self._flags: dict[int, _Flag] = {}
        self._schedule = schedule

    def land(self, flag: int | Unknown, time: float, amount: int) -> None:
        state = self._flag(flag)
        bisect.insort(state.landing, (time, amount))
        if not state.is_read and len(state.landing) > _MAX_UNREAD:
            self._landed(self._schedule.now, flag)
        check_most(len(state.landing), _MAX_UNDER_WAY, "signals under way to one flag")
        self._schedule.changed(state)

    def wait(self, time: float, flag: int | Unknown, amount: int, equal: bool) -> float | None:
        """Return when the flag counts `amount`, or more unless `equal`; None if nothing under way raises it to that."""
        state = self._flag(flag)
        state.is_read = state.decides = True
        target = self._signed(amount)
        landing = state.landing
        landed = 0
        count, now = state.count, time
        while landed < len(landing) and (
            landing[landed][0] <= time or not (count == target if equal else count >= target)
        ):
            now = max(now, landing[landed][0])
            count += landing[landed][1]
            landed += 1
        if not (count == target if equal else count >= target):
            self._schedule.wait_for(state)
            return None
        state.count = count
        del landing[:landed]
        return now

    def add(self, time: float, flag: int | Unknown, amount: int) -> None:
        """Add a 32-bit two's complement number to a flag."""
        state = self._landed(time, flag)
        state.count += self._signed(amount)
        self._schedule.changed(state)

    def count(self, time: float, flag: int | Unknown) -> int:
        """Return a flag's count as a 32-bit word."""
        state = self._landed(time, flag)
        state.is_read = state.decides = True
        return state.count & MASK

    def put(self, flag: int | Unknown, value: int) -> None:
        state = self._flag(flag)
        state.count = self._signed(value)
        self._schedule.changed(state)

    def _landed(self, time: float, flag: int | Unknown) -> _Flag:
        state = self._flag(flag)
        while state.landing and state.landing[0][0] <= time:
            state.count += state.landing.pop(0)[1]
        return state

    def _flag(self, flag: int | Unknown) -> _Flag:
        state = self._flags.get(flag)  # type: ignore[arg-type] -- none is known by an unknown number
        if state is None:
            if isinstance(flag, Unknown):
                raise SimulationError(f"which sync flag is meant depends on {flag.why}")
            state = self._flags[flag] = _Flag()
        return state

    def _signed(self, word: Any) -> int:
        if type(word) is Lanes:
            word = self._first(word.values)
        return ((word & MASK) ^ _SIGN) - _SIGN
