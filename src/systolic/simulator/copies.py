"""The copy engines and the sync flags: when a copy lands, and what waits for it.

One pipe carries everything that crosses HBM, reads and writes alike, in the order in which copies were started. A copy
lands a latency after its last byte has left, and then adds its granules to its flag.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from systolic.simulator.errors import DeadlockError

GRANULE_BYTES = 32
_SIGN = 1 << 31


@dataclass(slots=True)
class _Flag:
    count: int = 0
    landing: deque[tuple[int, int]] = field(default_factory=deque)  # (time, granules), in order of time


@dataclass(slots=True)
class CopyCounts:
    """What has crossed HBM."""

    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    copies: int = 0


class CopyEngine:
    """Copies of one device. `bytes_per_cycle` is what this core may use of HBM."""

    def __init__(self, *, bytes_per_cycle: float, latency_cycles: int, issue_cycles: int, wait_cycles: int) -> None:
        self._bytes_per_cycle = bytes_per_cycle
        self._latency = latency_cycles
        self._issue = issue_cycles
        self._wait = wait_cycles
        self._pipe_free = 0.0
        self._flags: dict[tuple[object, int], _Flag] = {}
        self.counts = CopyCounts()
        self.wait_cycles = 0  # spent waiting for copies to land
        self.overhead_cycles = 0  # spent starting copies and looking at flags

    def start(self, space: object, time: int, flag: int, granules: int, hbm_reads: int, hbm_writes: int) -> int:
        """Starts a copy that signals `flag` of the program `space`; returns when the core goes on.

        `hbm_reads` and `hbm_writes` are 1 where the source or the destination is HBM, else 0.
        """
        size = granules * GRANULE_BYTES
        time += self._issue
        self.overhead_cycles += self._issue
        self.counts.copies += 1
        crossing = size * (hbm_reads + hbm_writes)
        if crossing:
            self.counts.hbm_read_bytes += size * hbm_reads
            self.counts.hbm_written_bytes += size * hbm_writes
            self._pipe_free = max(self._pipe_free, time) + crossing / self._bytes_per_cycle
            landed = math.ceil(self._pipe_free) + self._latency
        else:
            # Copies on the chip were never seen to matter; only the latency is charged.
            landed = time + self._latency
        self._land(space, flag, landed, granules)
        return time

    def _land(self, space: object, flag: int, time: int, granules: int) -> None:
        landing = self._flag(space, flag).landing
        landing.append((time, granules))
        if len(landing) > 1 and landing[-2][0] > time:
            ordered = sorted(landing)
            landing.clear()
            landing.extend(ordered)

    def wait(self, space: object, time: int, flag: int, granules: int, where: str) -> int:
        """Waits until `flag` counts at least `granules`; returns when the core goes on.

        Raises:
          DeadlockError: all copies under way together do not bring the flag there.
        """
        state = self._flag(space, flag)
        landing = state.landing
        now = time
        while landing and (state.count < granules or landing[0][0] <= now):
            landed, amount = landing.popleft()
            state.count += amount
            now = max(now, landed)
        if state.count < granules:
            raise DeadlockError(f"{where} waits for {granules} on a flag that reaches {state.count} and no more")
        self.wait_cycles += now - time
        self.overhead_cycles += self._wait
        return now + self._wait

    def add(self, space: object, flag: int, amount: int) -> None:
        """Adds to a flag; `amount` is a 32-bit two's complement number."""
        self._flag(space, flag).count += (amount ^ _SIGN) - _SIGN

    def set(self, space: object, flag: int, value: int) -> None:
        """Sets a flag."""
        self._flag(space, flag).count = value

    def _flag(self, space: object, flag: int) -> _Flag:
        key = (space, flag)
        state = self._flags.get(key)
        if state is None:
            state = self._flags[key] = _Flag()
        return state
