"""The copy engines and the sync flags of one device: when a copy lands, and what waits for it.

One pipe carries everything that crosses the device's HBM, reads and writes of all its cores, in the order in which
copies were started. A copy lands a latency after its last byte has left, and then adds its granules to its flag.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from systolic.chips import MachineModel

_SIGN = 1 << 31

# A copy to several cores at once names its flag twice: in the low half plain, in the high half with a mask of the cores
# above it. Seen in XLA's products on v5p, where one core fetches a block of rhs for both.
FLAG_BITS = 13
_HALF = 16
_REMOTE_CORE_BIT = 14  # seen in listings for v4 with both cores in one device


@dataclass(slots=True)
class _Flag:
    count: int = 0
    landing: deque[tuple[int, int]] = field(default_factory=deque)  # (time, granules), in order of time


@dataclass(slots=True)
class CopyCounts:
    """What one core has copied, and what that cost it."""

    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    copies: int = 0
    stall_cycles: int = 0  # waiting for copies to land
    overhead_cycles: int = 0  # starting copies and looking at flags


class CopyEngine:
    """Copies and flags of a device with `cores` cores. Flags are named by (core, program, number)."""

    def __init__(self, machine: MachineModel, cores: int) -> None:
        self._machine = machine
        self._bytes_per_cycle = machine.hbm_bytes_per_s / machine.clock_hz
        self._pipe_free = 0.0
        self._flags: dict[tuple[int, str, int], _Flag] = {}
        self.counts = [CopyCounts() for _ in range(cores)]

    def start(
        self, core: int, program: str, time: int, flag: int, granules: int, hbm_reads: int, hbm_writes: int
    ) -> int:
        """Starts a copy that signals `flag`; returns when the core goes on.

        `hbm_reads` and `hbm_writes` are 1 where the source or the destination is HBM, else 0.
        """
        size = granules * self._machine.granule_bytes
        time += self._machine.dma_issue_cycles
        counts = self.counts[core]
        counts.overhead_cycles += self._machine.dma_issue_cycles
        counts.copies += 1
        counts.hbm_read_bytes += size * hbm_reads
        counts.hbm_written_bytes += size * hbm_writes
        landed = time + self._machine.dma_latency_cycles
        if hbm_reads or hbm_writes:
            self._pipe_free = max(self._pipe_free, time) + size * (hbm_reads + hbm_writes) / self._bytes_per_cycle
            landed = math.ceil(self._pipe_free) + self._machine.dma_latency_cycles
        # Copies within the chip were never seen to matter; they are charged the latency alone.
        shared = flag >> _HALF
        if not shared:
            self._land(self._flag(core, program, flag), landed, granules)
            return time
        for other in range(len(self.counts)):
            if shared >> FLAG_BITS >> other & 1:
                self._land(self._flag(other, program, shared & ((1 << FLAG_BITS) - 1)), landed, granules)
        return time

    def signal(self, program: str, time: int, address: int, amount: int) -> None:
        """Adds to a flag of the core that `address` names, as v4's barriers do: flag below, core from bit 14 on."""
        core = address >> _REMOTE_CORE_BIT & 1
        self._land(self._flag(core, program, address & ((1 << FLAG_BITS) - 1)), time, amount)

    @staticmethod
    def _land(flag: _Flag, time: int, granules: int) -> None:
        landing = flag.landing
        landing.append((time, granules))
        if len(landing) > 1 and landing[-2][0] > time:
            flag.landing = deque(sorted(landing))

    def wait(self, core: int, program: str, time: int, flag: int, granules: int) -> int | None:
        """When `flag` counts at least `granules` and the core goes on; None if no copy under way brings it there."""
        state = self._flag(core, program, flag)
        landing = state.landing
        while landing and landing[0][0] <= time:
            state.count += landing.popleft()[1]
        now = time
        if state.count < granules:
            if state.count + sum(amount for _, amount in landing) < granules:
                return None
            while state.count < granules:
                now, amount = landing.popleft()
                state.count += amount
        counts = self.counts[core]
        counts.stall_cycles += now - time
        counts.overhead_cycles += self._machine.dma_wait_cycles
        return now + self._machine.dma_wait_cycles

    def add(self, core: int, program: str, flag: int, amount: int) -> None:
        """Adds to a flag; `amount` is a 32-bit two's complement number."""
        self._flag(core, program, flag).count += (amount ^ _SIGN) - _SIGN

    def set(self, core: int, program: str, flag: int, value: int) -> None:
        """Sets a flag."""
        self._flag(core, program, flag).count = value

    def _flag(self, core: int, program: str, flag: int) -> _Flag:
        key = (core, program, flag)
        state = self._flags.get(key)
        if state is None:
            state = self._flags[key] = _Flag()
        return state
