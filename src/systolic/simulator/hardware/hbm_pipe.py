"""The pipe to a device's HBM: when it has carried the bytes of a copy.

It carries copies one after the other, in the order in which they are handed over. On some chips a period in which it
was busy for more than a share of the time is followed by one that begins slowly; periods count from the program's
begin.
"""

from __future__ import annotations

import math

from systolic.chips import MachineModel


class HbmPipe:
    """The pipe of one device.

    Args:
      machine: the model of the chip.
      free: when it has carried what was started before cycle 0.
      rate: the share of the full rate at which it carries all of the time; None: that of the chip's periods.
    """

    def __init__(self, machine: MachineModel, free: float = 0.0, rate: float | None = None) -> None:
        self.bytes_per_cycle = machine.hbm_bytes_per_s / machine.clock_hz
        self.free = free
        self.busy_cycles = 0.0  # in the period of `free`, before it; with a constant rate, in all
        # Whole cycles: a multiple of the period is then exact, and belongs to the period that it begins.
        self._period_cycles = round(machine.hbm_slow_period_s * machine.clock_hz)
        self._constant_rate = 1.0 if rate is None and not self._period_cycles else rate
        self._slow_cycles = round(machine.hbm_slow_s * machine.clock_hz)
        self._slow_rate = machine.hbm_slow_share
        self._most_busy_cycles = machine.hbm_slow_load * self._period_cycles
        self._period = 0  # of `free`
        self._slow = False  # begins slowly

    def carry(self, time: float, cycles: float) -> float:
        """Carry what takes `cycles` at the full rate, from `time` on at the earliest; return when it begins."""
        begin = at = max(self.free, time)
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
        if self._constant_rate is not None:
            return self._constant_rate, math.inf
        period, slow = self._at(time)
        begun = period * self._period_cycles
        if slow and time < begun + self._slow_cycles:
            return self._slow_rate, begun + self._slow_cycles
        return 1.0, begun + self._period_cycles

    def repeat(self, time: float, alone: HbmPipe) -> None:
        """Carry again, from `time` on, what another pipe has carried at a constant rate from its begin on."""
        self._pass(max(self.free, time), time + alone.free, alone.busy_cycles)

    def _pass(self, begin: float, end: float, busy_cycles: float) -> None:
        """Be busy for a time between `begin` and `end`, which are of one period; `end` may be the period's."""
        if self._constant_rate is None:
            period, slow = self._at(begin)
            if period != self._period:
                self._period, self._slow, self.busy_cycles = period, slow, 0.0
        self.busy_cycles += busy_cycles
        self.free = end

    def _at(self, time: float) -> tuple[int, bool]:
        """Return the period of a time, and whether it begins slowly."""
        period = int(time // self._period_cycles)
        if period == self._period:
            return period, self._slow
        return period, period == self._period + 1 and self.busy_cycles > self._most_busy_cycles
