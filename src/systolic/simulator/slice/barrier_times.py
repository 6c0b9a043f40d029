"""Times of barriers that one device passes in place of all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from systolic.simulator.hardware.lanes import DivergedError
from systolic.simulator.reading.barriers import CentralBarrier
from systolic.simulator.slice.routes import Routes

Groups = Sequence[Sequence[int]]  # devices that wait for each other, each group in its order


def barrier_end_cycles(
    barrier: CentralBarrier, time: float, groups: Groups, routes: Routes, clock_hz: float, wait_cycles: int
) -> int:
    """Return when the last device leaves a barrier to which all come at one time.

    Every device is timed like the last; others leave microseconds earlier, and wait for the last when they next need
    its data.

    Raises:
      DivergedError: the barrier is not one of these groups.
    """
    sizes = {len(group) for group in groups}
    if sizes != {barrier.others + 1}:
        raise DivergedError(f"a barrier of {barrier.others + 1} devices, where groups have {sorted(sizes)}")
    last = max(_all_told(barrier, time, group, routes, clock_hz, wait_cycles) for group in groups)
    return math.ceil(last) + wait_cycles + barrier.after_cycles


def _all_told(
    barrier: CentralBarrier, time: float, group: Sequence[int], routes: Routes, clock_hz: float, wait_cycles: int
) -> float:
    """Return when the signal of a group's first device has reached all others."""
    first, *others = group
    out = [routes.between(first, device).latency_s * clock_hz for device in others]
    back = max(routes.between(device, first).latency_s * clock_hz for device in others)
    signalled = time if barrier.has_signalled else time + barrier.before_cycles + back
    all_known = signalled + wait_cycles + barrier.between_cycles
    return max(all_known + number * barrier.each_cycles + latency for number, latency in enumerate(out))
