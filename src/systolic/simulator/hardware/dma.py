"""The DMA engine of one device: when copies land, and which cores wait for them.

One pipe carries everything that crosses the device's HBM, reads and writes of all its cores, in the order in which
copies were started. A copy lands a latency after its last byte has left, and then adds its granules to its flag.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from systolic.chips import MachineModel
from systolic.simulator.errors import check_most
from systolic.simulator.hardware.dma_counts import DmaCounts
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.round_words import present
from systolic.simulator.hardware.sync_flags import FLAG_BITS, FLAG_MASK, Flag, FlagKeys, OwnFlags, SyncFlags
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.schedule import Schedule

_SIGN = 1 << 31

# A copy to several cores at once names its flag twice: in the low half plain, in the high half with a mask of the cores
# above it. Seen in XLA's products on v5p, where one core fetches a block of rhs for both.
_HALF = 16
# Seen in listings for v4 with both cores in one device: a flag of the other core, as the end of a copy, has this bit;
# the flag of a remote addition names its core by it.
_REMOTE_CORE_BIT = 14
_OTHER_CORE = 1 << _REMOTE_CORE_BIT

_MAX_UNDER_WAY = 1 << 18
_MAX_SIZES = 1 << 18

StallCause = Literal["copy", "matrix", "semaphore"]
Relation = Literal["eq", "ne", "lt"]
_HOLDS = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt}


class DmaEngine:
    """The copies and flags of a device.

    Args:
      machine: the model of the chip.
      cores: their number on the device.
      schedule: runs programs that wait for flags; None: none wait.
      timelines: one for each core, which note copies and stalls; None: they are not noted.
      pipe: to HBM; None: an idle one.
      host_bytes_per_s: the host link's, in each direction.
    """

    def __init__(
        self,
        machine: MachineModel,
        cores: int,
        timelines: Sequence[Timeline] | None = None,
        schedule: Schedule | None = None,
        *,
        pipe: HbmPipe | None = None,
        host_bytes_per_s: float = math.inf,
    ) -> None:
        self._machine = machine
        self.pipe = HbmPipe(machine) if pipe is None else pipe
        self._host_bytes_per_cycle = host_bytes_per_s / machine.clock_hz
        self._host_free = {"to": 0.0, "from": 0.0}  # as of the pipe: of the link to the host, by direction
        self._timelines = timelines
        self._flags = SyncFlags()
        self.counts = [DmaCounts() for _ in range(cores)]
        self.schedule = schedule if schedule is not None else Schedule()
        self.waited: Callable[[int, str, int, int], None] = lambda *_: None  # told of waits for labelled flags
        # Where one device represents all, and they differ: which of their sizes counts, and whose words.
        self.largest: Callable[[Sequence[int]], int] = max
        self.first: Callable[[Sequence[int]], int] = operator.itemgetter(0)
        self.least_latency_cycles = 0.0  # from an act of any other program to its earliest landing here

    def start(
        self,
        core: int,
        program: str,
        time: int,
        flag: int,
        granules: int,
        source: str,
        destination: str,
        run_bytes: int | None,
        source_flag: int | None = None,
    ) -> int:
        """Start a copy that signals `flag`; return when the core goes on.

        Args:
          time: when the core is ready to start it.
          flag: the sync flag that counts the granules that have landed.
          granules: size of the copy.
          source, destination: memory spaces.
          run_bytes: moved in one piece before the copy strides on; 0: all of it; None: not known.
          source_flag: signalled on this core where the copy goes to the other.
        """
        granules = present(granules)
        time, landed = self.carry(core, time, granules, source, destination, run_bytes)
        if type(granules) is Lanes:
            granules = self.first(granules.values)
        if flag & _OTHER_CORE and not flag >> _HALF:
            # A copy to the other core signals there that it has landed, and here that its source is free again.
            self._land(self._flags.flag(1 - core, program, flag & FLAG_MASK), landed, granules)
            if source_flag is not None:
                self._land(self._flags.flag(core, program, source_flag & FLAG_MASK, named_by=flag), landed, granules)
            return time
        shared = flag >> _HALF
        if not shared:
            self._land(self._flags.flag(core, program, flag), landed, granules)
            return time
        for other in range(len(self.counts)):
            if shared >> FLAG_BITS >> other & 1:
                self._land(self._flags.flag(other, program, shared & FLAG_MASK, named_by=flag), landed, granules)
        return time

    def carry(
        self, core: int, time: int, granules: int, source: str, destination: str, run_bytes: int | None
    ) -> tuple[int, int]:
        """Carry a copy within the device, without a signal; return when the core goes on, and when it has landed."""
        time, size = self.issue(core, time, granules, source, destination, run_bytes)
        if destination == "hbm":
            self.counts[core].hbm_written_bytes += size
        crossings = (source == "hbm") + (destination == "hbm")
        begin = time
        landed = time + self._machine.dma_latency_cycles
        if crossings:
            pieces = size / run_bytes if run_bytes else 0
            transfer = size / self.pipe.bytes_per_cycle + pieces * self._machine.hbm_run_cycles
            direction = "" if crossings > 1 else "read" if source == "hbm" else "write"
            begin = self.pipe.carry(time, transfer * crossings, direction)
            landed = math.ceil(self.pipe.free) + self._machine.dma_latency_cycles
        if "host" in (source, destination):
            way = "to" if destination == "host" else "from"
            self._host_free[way] = max(self._host_free[way], time) + size / self._host_bytes_per_cycle
            landed = max(landed, math.ceil(self._host_free[way]) + self._machine.dma_latency_cycles)
        # Copies within the chip were never seen to matter; they are charged the latency alone.
        if self._timelines is not None:
            self._timelines[core].add("copy", begin, landed, f"{source} → {destination}", size)
        return time, landed

    def issue(
        self, core: int, time: int, granules: int, source: str, destination: str, run_bytes: int | None
    ) -> tuple[int, int]:
        """Let a core start a copy, to any place; return when the core goes on, and the copy's bytes."""
        size = granules * self._machine.granule_bytes
        if type(size) is Lanes:
            size = self.largest(size.values)
        counts = self.counts[core]
        counts.overhead_cycles += self._machine.dma_issue_cycles
        counts.copies += 1
        counts.sizes[source, destination, size, run_bytes] += 1
        if len(counts.sizes) > _MAX_SIZES:
            check_most(len(counts.sizes), _MAX_SIZES, "sizes of copies")
        if source == "hbm":
            counts.hbm_read_bytes += size
        return time + self._machine.dma_issue_cycles, size

    def cross(self, time: float, size_bytes: int) -> float:
        """Let a SparseCore's bytes cross HBM from `time` on; return when the last has crossed."""
        self.pipe.carry(time, size_bytes / self.pipe.bytes_per_cycle)
        return self.pipe.free

    def land(self, core: int, program: str, flag: int, time: int, amount: int, label: str = "") -> None:
        """Let a SparseCore or another device add to a flag that a core's program waits on.

        With a label, `waited` is called with the waiting core, and the begin and end of its wait.
        """
        self._land(self._flags.flag(core, program, flag), time, amount, label)

    def signal(self, program: str, time: int, address: int, amount: int) -> None:
        """Add to a flag of the core that `address` names, as v4's barriers do: flag below, core from bit 14 on."""
        core = address >> _REMOTE_CORE_BIT & 1
        flag = self._flags.flag(core, program, address & FLAG_MASK)
        self._land(flag, time, (amount ^ _SIGN) - _SIGN)

    # ---- calls that are not executed; see `repeated_calls` ----

    def own_flags(self, core: int, program: str, time: int) -> OwnFlags | None:
        """Return the nonzero counts of a program's own flags; None: something is under way to one."""
        return self._flags.own_flags(core, program, time)

    def shared_flags(self, program: str, cores: Collection[int], time: float) -> FlagKeys | None:
        """Return the used flags that are not the program's own; see `SyncFlags.shared_flags`."""
        return self._flags.shared_flags(program, cores, time)

    def are_zero(self, shared: FlagKeys, time: float) -> bool:
        """True if flags that programs share count zero from a time on."""
        return self._flags.are_zero(shared, time)

    def repeat(self, core: int, program: str, cycles: int, alone: DmaEngine) -> None:
        """Count a program's recorded activity again, with its own flags."""
        self.counts[core].add(alone.counts[core])
        self._flags.reset_own_flags(core, program, alone.own_flags(core, program, cycles) or ())

    def _land(self, flag: Flag, time: int, granules: int, label: str = "") -> None:
        if flag.waiting:
            self.schedule.changed(flag)
        flag.label = label
        flag.send(time, granules)
        if len(flag.landing) > _MAX_UNDER_WAY:
            check_most(len(flag.landing), _MAX_UNDER_WAY, "copies under way to one flag")

    def wait(self, core: int, program: str, time: int, flag: int, granules: int, cause: StallCause) -> int | None:
        """Wait until `flag` counts `granules`.

        Returns:
          When the core goes on; None if no copy under way raises the flag to it.
        """
        state = self._flags.landed(core, program, time, flag)
        now = time
        if state.count < granules:
            ahead = self._enough(state, operator.ge, granules)
            if ahead is None:
                return None
            now = state.land_first(ahead)
            self.stalled(core, time, now, cause)
        return self._passed(core, state, time, now)

    def _passed(self, core: int, flag: Flag, begin: int, end: int) -> int:
        """Count a wait that is over; return when the core goes on."""
        if flag.label:
            self.waited(core, flag.label, begin, end)
        self.counts[core].overhead_cycles += self._machine.dma_wait_cycles
        return end + self._machine.dma_wait_cycles

    @property
    def settled_until(self) -> float:
        """The time before which everything that lands here is known."""
        return self.schedule.settled_until + self.least_latency_cycles

    def early_wait(self, core: int, program: str, time: int, flag: int, granules: int, cause: StallCause) -> int | None:
        """Return what `wait` does if it is known before the program's turn comes; else None."""
        settled_until = self.settled_until
        if time >= settled_until:
            return None
        state = self._flags.landed(core, program, time, flag)
        now = time
        if state.count < granules:
            until = state.until(operator.ge, granules)
            if until is None or until[1] >= settled_until:
                return None
            now = state.land_first(until[0])
            self.stalled(core, time, now, cause)
        return self._passed(core, state, time, now)

    def stalled(self, core: int, begin: int, end: int, cause: StallCause) -> None:
        counts = self.counts[core]
        if cause == "copy":
            counts.copy_stall_cycles += end - begin
        else:
            counts.semaphore_stall_cycles += end - begin
        if self._timelines is not None and end > begin:
            self._timelines[core].add("stall", begin, end, cause)

    def wait_for_value(
        self, core: int, program: str, time: int, flag: int, value: int, relation: Relation
    ) -> int | None:
        """Wait until `flag`'s count is equal to `value`, different, or less.

        Returns:
          When the core goes on; None if nothing under way satisfies it.
        """
        state = self._flags.landed(core, program, time, flag)
        holds = _HOLDS[relation]
        now = time
        if not holds(state.count, value):
            ahead = self._enough(state, holds, value)
            if ahead is None:
                return None
            now = state.land_first(ahead)
            self.stalled(core, time, now, "semaphore")
        if state.label:
            self.waited(core, state.label, time, now)
        return now

    def _enough(self, flag: Flag, satisfied: Callable[[int, int], bool], value: int) -> int | None:
        """Return how much of the pending amount has to land; None if the program has to be tried again."""
        until = flag.until(satisfied, value)
        if until is not None and not (self.schedule.patient and until[1] > self.schedule.now):
            return until[0]
        self.schedule.wait_for(flag, None if until is None else until[1])
        return None

    def count(self, core: int, program: str, time: int, flag: int) -> int:
        """Return a flag's count at a time, as a 32-bit word."""
        return self._flags.landed(core, program, time, flag).count & (2 * _SIGN - 1)

    def add(self, core: int, program: str, flag: int, amount: int) -> None:
        """Add to a flag; `amount` is a 32-bit two's complement number."""
        self._flags.flag(core, program, flag).count += (amount ^ _SIGN) - _SIGN

    def set(self, core: int, program: str, flag: int, value: int) -> None:
        self._flags.flag(core, program, flag).count = value
