"""The pipe to a device's HBM: when it has carried the bytes of a copy.

It carries copies one after the other, in the order in which they are handed over. On some chips it is slower for a
part of each period of `MachineModel.hbm_slow_period_s`, counted from the program's begin; the first period is not slow.
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
        self._constant_rate = rate
        # Whole cycles: a multiple of the period is then exact, and belongs to the period that it begins.
        self._period_cycles = round(machine.hbm_slow_period_s * machine.clock_hz)
        self._slow_cycles = round(machine.hbm_slow_s * machine.clock_hz)
        self._slow_rate = machine.hbm_slow_share

    def carry(self, time: float, cycles: float) -> float:
        """Carry what takes `cycles` at the full rate, from `time` on at the earliest; return when it begins."""
        begin = at = max(self.free, time)
        while True:
            rate, until = self.rate(at)
            if at + cycles / rate <= until:
                self.free = at + cycles / rate
                return begin
            cycles -= (until - at) * rate
            at = until

    def rate(self, time: float) -> tuple[float, float]:
        """Return the share of the full rate at a time, and until when it lasts."""
        if self._constant_rate is not None:
            return self._constant_rate, math.inf
        if not self._period_cycles or not self._slow_cycles:
            return 1.0, math.inf
        begun = time // self._period_cycles * self._period_cycles
        if begun and time < begun + self._slow_cycles:
            return self._slow_rate, begun + self._slow_cycles
        return 1.0, begun + self._period_cycles
