"""The pipe to a device's HBM: when it has carried the bytes of a copy.

It carries copies one after the other, in the order in which they are handed over. Where a write follows a read without
a pause, or a read a write, memory serves both in turns, which costs it time. On some chips a period in which it
was busy for more than a share of the time is followed by one that begins slowly; periods count from the program's
begin.

What links read and write passes beside that order, at the links' rate, and leaves the pipe the rest of its rate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

from systolic.chips import MachineModel
from systolic.simulator.hardware.busy_times import BusyTimes

# Of the rate, that links leave at least: on every chip all links together need less than half.
_MIN_LEFT_SHARE = 0.1
_ROUNDING = 1e-9  # of the rate: what sums of rates leave over
# By which times differ through rounding: they are sums of many fractions, after seconds each to a millionth of a cycle.
SAME_CYCLES = 0.01
_SURELY = 0.98  # of the load of a period before one that begins slowly: surely less


class HbmPipe:
    """The pipe of one device.

    Args:
      machine: the model of the chip.
      free: when it has carried what was started before cycle 0.
      rate: the share of the full rate at which it always carries; None: the chip's periods set it.
      last: the last copy's direction and cycles.
    """

    def __init__(
        self, machine: MachineModel, free: float = 0.0, rate: float | None = None, last: tuple[str, float] = ("", 0.0)
    ) -> None:
        self.bytes_per_cycle = machine.hbm_bytes_per_s / machine.clock_hz
        self.free = free
        self.busy_cycles = 0.0  # in the period of `free`, before it; with a constant rate, in all
        # Whole cycles: a multiple of the period is then exact, and belongs to the period that it begins.
        self._period_cycles = round(machine.hbm_slow_period_s * machine.clock_hz)
        self._constant_rate = 1.0 if rate is None and not self._period_cycles else rate
        self._slow_cycles = round(machine.hbm_slow_s * machine.clock_hz)
        self._slow_rate = machine.hbm_slow_share
        self._most_busy_cycles = machine.hbm_slow_load * self._period_cycles
        self._turn_cost = machine.hbm_turn_cost
        self.last = last
        self._period = 0  # of `free`
        self._slow = False  # begins slowly
        self._busy_from = 0.0  # from then to `free` without a pause
        self._links_bytes_per_cycle = 0.0  # that links read and write now
        self.left = 1.0  # the share of the rate that they leave
        self.links_changed: Callable[[float, float], None] | None = None  # called with the time and the new `left`
        self._origin = 0.0  # when the first period begins
        # With a constant rate on a chip that has periods: to find out whether one would begin slowly.
        self._busy_times = BusyTimes() if rate is not None and self._period_cycles else None
        self._round: tuple[float, BusyTimes] | None = None  # of a loop: `free` when it began, and busy times since

    def carry(self, time: float, cycles: float, direction: str = "") -> float:
        """Carry what takes `cycles` at the full rate, from `time` on at the earliest; return when it begins.

        `direction` is "read", "write", or "" where it costs nothing to change it.
        """
        begin = at = max(self.free, time)
        if time > self.free:
            self._busy_from = time
        last, last_cycles = self.last
        self.last = direction, cycles
        if time < self.free and direction and last and direction != last:
            cycles += self._turn_cost * min(cycles, last_cycles)
        while True:
            rate, until = self.rate(at)
            end = at + cycles / rate
            self._pass(at, min(end, until), min(end, until) - at)
            if end <= until:
                return begin
            cycles -= (until - at) * rate
            at = until

    def rate(self, time: float) -> tuple[float, float]:
        """Return the share of the full rate at a time not before `free`, and until when it is known to last."""
        rate, until = self.rate_without_links(time)
        return rate * self.left, until

    def rate_without_links(self, time: float) -> tuple[float, float]:
        """Return what `rate` does if links leave all of it."""
        if self._constant_rate is not None:
            return self._constant_rate, math.inf
        period, slow = self._at(time)
        begun = period * self._period_cycles + self._origin
        if slow and time < begun + self._slow_cycles:
            return self._slow_rate, begun + self._slow_cycles
        return 1.0, begun + self._period_cycles

    def serve_links(self, time: float, bytes_per_cycle: float) -> None:
        """Let links read and write so much more than before, or less, from `time` on.

        What the pipe has not carried by then takes longer, or less long. Copies whose landing is known land as they
        would have: the next one bears the difference. So does what follows a call that was looked up without later
        changes, see `repeated_calls`.
        """
        self._links_bytes_per_cycle += bytes_per_cycle
        taken = self._links_bytes_per_cycle / self.bytes_per_cycle
        if taken < _ROUNDING:
            taken = self._links_bytes_per_cycle = 0.0
        self.leave(time, max(_MIN_LEFT_SHARE, 1.0 - taken))
        if self.links_changed is not None:
            self.links_changed(time, self.left)

    def leave(self, time: float, left: float) -> None:
        """Let links leave another share of the rate from `time` on."""
        before, self.left = self.left, left
        since = max(time, self._busy_from)
        if self.free > since:
            self.free = since + (self.free - since) * before / left

    def from_time(self, time: float) -> HbmPipe:
        """Return a copy that counts time from `time` on."""
        pipe = copy.copy(self)
        pipe.free, pipe._busy_from, pipe._origin = self.free - time, self._busy_from - time, self._origin - time
        pipe.links_changed = pipe._round = None
        return pipe

    # ---- rounds of loops that are skipped; see `rounds` ----

    def record(self, *, ends: bool = False) -> None:
        """Record, or no longer, when the pipe is busy, on a chip with periods."""
        self._round = (self.free, BusyTimes()) if self._constant_rate is None and not ends else None

    def rounds_later(self, round_cycles: int, rounds: int) -> tuple[int, float] | None:
        """Return the period and the busy cycles in it after some more rounds like the recorded one.

        None: a period begins slowly, or nearly so, or did in that round.
        """
        if self._constant_rate is not None:
            return self._period, self.busy_cycles
        if self._round is None or self._slow:
            return None
        begin, busy_times = self._round
        if begin == self.free:
            return self._period, self.busy_cycles
        if abs(self.free - begin - round_cycles) > SAME_CYCLES:
            return None
        whole = busy_times.until(self.free)

        def until(time: float) -> float:
            number, rest = divmod(time - begin, round_cycles)
            return number * whole + busy_times.until(begin + rest)

        end = self.free + rounds * round_cycles
        period, busy_cycles, counted = self._period, self.busy_cycles, until(self.free)
        while (next_period := (period + 1) * self._period_cycles + self._origin) < end:
            busy_cycles += until(next_period) - counted
            if busy_cycles > _SURELY * self._most_busy_cycles:
                return None
            period, busy_cycles, counted = period + 1, 0.0, until(next_period)
        return period, busy_cycles + until(end) - counted

    def skip(self, cycles: int, period: tuple[int, float]) -> None:
        """Go on as if so many cycles had passed, in the period that `rounds_later` has returned."""
        self._period, self.busy_cycles = period
        self._origin -= cycles

    def can_repeat(self, time: float, alone: HbmPipe, *, across_periods: bool) -> bool:
        """True if this pipe has the constant rate of another one until that has carried everything.

        With `across_periods` also if further periods begin meanwhile, but none of them slowly.
        """
        rate, until = self.rate_without_links(max(self.free, time))
        if rate != self.rate_without_links(time)[0]:
            return False
        return time + alone.free <= until or (across_periods and self._period_after(time, alone) is not None)

    def _period_after(self, time: float, alone: HbmPipe) -> tuple[int, float] | None:
        """Return the period in which another pipe has carried everything, with the busy cycles in it.

        None: this pipe is slow, or becomes slow before.
        """
        assert alone._busy_times is not None
        begin, end = max(self.free, time), time + alone.free
        period, _ = self._at(begin)
        busy_cycles = self.busy_cycles if period == self._period else 0.0
        counted = 0.0
        if self.rate_without_links(begin)[0] < 1.0:
            until = self.rate_without_links(begin)[1]
            return (period, busy_cycles + alone.busy_cycles) if end <= until else None
        while (next_period := (period + 1) * self._period_cycles + self._origin) < end:
            so_far = alone._busy_times.until(next_period - time)
            if busy_cycles + so_far - counted > self._most_busy_cycles:
                return None
            period, busy_cycles, counted = period + 1, 0.0, so_far
        return period, busy_cycles + alone.busy_cycles - counted

    def repeat(self, time: float, alone: HbmPipe) -> None:
        """Carry again, from `time` on, what another pipe has carried from its begin on.

        That has carried it at a constant rate, for which `can_repeat` is true, or is a copy of this one.
        """
        if alone._constant_rate is None:
            self._period, self._slow, self.busy_cycles = alone._period, alone._slow, alone.busy_cycles
        elif self._constant_rate is not None:
            self.busy_cycles += alone.busy_cycles
        elif (after := self._period_after(time, alone)) is not None:
            period, busy_cycles = after
            if period != self._period:
                slow = period == self._at(max(self.free, time))[0] and self._at(max(self.free, time))[1]
                self._period, self._slow = period, slow
            self.busy_cycles = busy_cycles
        if self._round is not None:
            if alone._busy_times is None or self._slow:
                self._round = None
            else:
                self._round[1].extend(alone._busy_times, time)
        self.free = time + alone.free
        self.last, self._busy_from = alone.last, self.free

    def _pass(self, begin: float, end: float, busy_cycles: float) -> None:
        """Be busy for a time between `begin` and `end`, which are of one period; `end` may be the period's."""
        if self._constant_rate is None:
            period, slow = self._at(begin)
            if period != self._period:
                self._period, self._slow, self.busy_cycles = period, slow, 0.0
        self.busy_cycles += busy_cycles
        self.free = end
        if self._busy_times is not None:
            self._busy_times.add(begin, end)
        if self._round is not None:
            self._round[1].add(begin, end)
            if self._slow:
                self._round = None

    def _at(self, time: float) -> tuple[int, bool]:
        """Return the period of a time, and whether it begins slowly."""
        period = int((time - self._origin) // self._period_cycles)
        if period == self._period:
            return period, self._slow
        return period, period == self._period + 1 and self.busy_cycles > self._most_busy_cycles
