"""Times at which something is busy, in order."""

from __future__ import annotations

import bisect
from array import array

_SAME_CYCLES = 1e-6  # a pause that rounding leaves


class BusyTimes:
    """Intervals in order of time."""

    def __init__(self) -> None:
        self._begins, self._ends = array("d"), array("d")
        self._before = array("d")  # busy cycles before an interval

    def add(self, begin: float, end: float) -> None:
        if self._ends and begin <= self._ends[-1] + _SAME_CYCLES:
            self._ends[-1] = end
            return
        self._before.append(self.until(begin))
        self._begins.append(begin)
        self._ends.append(end)

    def extend(self, others: BusyTimes, time: float) -> None:
        """Add intervals that count from a time."""
        for begin, end in zip(others._begins, others._ends, strict=True):
            self.add(time + begin, time + end)

    def until(self, time: float) -> float:
        """Return the busy cycles before a time."""
        last = bisect.bisect_left(self._begins, time) - 1
        return 0.0 if last < 0 else self._before[last] + min(time, self._ends[last]) - self._begins[last]
