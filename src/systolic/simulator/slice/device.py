"""One device of a slice: its cores, its flags and its way to the others."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from systolic.simulator.device import DeviceModel
from systolic.simulator.device_setup import DeviceSetup
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.hardware.sync_flags import COUNTS_COPIES, FLAG_MASK
from systolic.simulator.other_devices import RemoteCopy, RemoteTarget, Represented, Shard
from systolic.simulator.reading.barriers import Barrier, EarlySignal
from systolic.simulator.rounds.repeated import RepeatedRounds
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.communication import Communications, RecordedCommunications
from systolic.simulator.slice.identity import constants_from
from systolic.simulator.slice.surroundings import SliceDevice, Surroundings
from systolic.simulator.sparse_core.outside import SparseCopy

_SIGN = 1 << 31


@dataclass(frozen=True, slots=True)
class _CoreAlone:
    """A core of a device that executes an operation alone."""

    memory: Memory
    skipped_cycles: int = 0


class Device:
    """One device of a slice, ready to run.

    Args:
      number: its id.
      words: each core's words of scalar memory that identify the device.
    """

    def __init__(
        self,
        setup: DeviceSetup,
        number: int,
        words: Sequence[Mapping[int, Any]],
        around: Surroundings,
        spans: int,
        rounds: RepeatedRounds | None = None,
    ) -> None:
        self.number = number
        ids = around.ids(number)
        self.chip, within = ids // setup.chip.devices_per_chip, ids % setup.chip.devices_per_chip
        sparse = setup.chip.sparse_core
        self.images_at = constants_from(setup.chip.machine.hbm_pointer_bytes)
        self.first_sparse_core = within * (sparse.cores_per_device if sparse is not None else 0)
        self._around = around
        self._latency = setup.chip.machine.dma_latency_cycles
        self._wait_cycles = setup.chip.machine.dma_wait_cycles
        model = DeviceModel.of(setup, around.schedule, spans, others=self, identities=words, rounds=rounds)
        self._model = model
        self.cores, self.dma, self.sparse_cores = model.cores, model.parts.dma, model.parts.sparse_cores
        self.barna_cores = model.parts.barna_cores
        self.communications = [Communications() for _ in words]
        self._connect(self.dma)
        if len(self.cores) == 1 and not setup.sparse.programs:
            self.dma.least_latency_cycles = min(self._latency, around.routes.least_latency_s * around.clock_hz)

    @property
    def iterations(self) -> int:
        return self._model.iterations

    def _connect(self, dma: DmaEngine) -> None:
        self.dma = dma
        dma.waited = self._waited
        dma.largest, dma.first = self._around.largest, self._around.first

    # ---- operations that are executed alone; see `executed_alone` ----

    @property
    def represents(self) -> Represented:
        return self._around.represents

    def is_idle_from(self, time: float) -> bool:
        return self._around.is_idle_from(time)

    def alone(self, schedule: Schedule, dma: DmaEngine, memories: Mapping[int, Memory]) -> Device:
        """Return this device with the parts of an operation that is executed alone."""
        other = copy.copy(self)
        other._around = self._around.alone(schedule)
        other.sparse_cores = cast("Any", None)  # there are none; to keep them would keep all of this device in memory
        other.cores = tuple(_CoreAlone(memory) for _, memory in sorted(memories.items()))
        other.communications = [RecordedCommunications() for _ in other.cores]
        dma.least_latency_cycles = self.dma.least_latency_cycles
        other._connect(dma)
        return other

    @property
    def has_acted(self) -> bool:
        return any(
            recorded.stretches for recorded in self.communications if isinstance(recorded, RecordedCommunications)
        )

    def repeat(self, time: int, alone: Device) -> None:
        """Count again, from a time on, what an operation did that was executed alone."""
        self._around.repeat(alone._around)
        for core, recorded in enumerate(alone.communications):
            assert isinstance(recorded, RecordedCommunications)
            self.communications[core].repeat(time + self.skipped_cycles(core), recorded)

    def start(self) -> None:
        who = self._around.name(self)
        for core in self.cores:
            self._around.schedule.start(0, core.run(), lambda core=core: f"{who}, core {core.number}: {core.waits_for}")

    def skipped_cycles(self, core: int) -> int:
        return self.cores[core].skipped_cycles

    def _waited(self, core: int, label: str, begin: int, end: int) -> None:
        later = self.cores[core].skipped_cycles
        self.communications[core].waited(label, begin + later, end + later)

    # ---- what programs ask for ----

    def target(self, word: Any, flag: Any) -> RemoteTarget:
        return self._around.copy_target(self.number, word, flag)

    def memory(self, target: RemoteTarget) -> Memory:
        return self._around.receiver(self, target).memory_of(target.core)

    def memory_of(self, core: int) -> Memory:
        return self.cores[core].memory

    def copy(self, core: int, time: int, copy: RemoteCopy) -> int:
        amount: Any = 1 if copy.source_flag & COUNTS_COPIES else copy.granules
        arriving = amount
        if type(amount) is Lanes:
            amount, arriving = self._around.first(amount.values), self._around.arriving(copy.target, amount.values)
        target = self._around.receiver(self, copy.target)
        to_core, to_flag, own_flag = copy.target.core, copy.flag & FLAG_MASK, copy.source_flag & FLAG_MASK
        route = self._around.route(self, copy.target)
        if not route.links:
            goes_on, landed = self.dma.carry(core, time, copy.granules, copy.source, copy.destination, copy.run_bytes)
            self.dma.land(to_core, copy.program, to_flag, landed, arriving)
            self.dma.land(core, copy.program, own_flag, landed, amount)
            return goes_on
        goes_on, size = self.dma.issue(core, time, copy.granules, copy.source, copy.destination, copy.run_bytes)
        if copy.destination == "hbm":
            target.dma.counts[to_core].hbm_received_bytes += size
        way = route.latency_s * self._around.clock_hz
        self.communications[core].sent(copy.label, time + self.skipped_cycles(core), size, route, goes_on - time)

        def left(end: float) -> None:
            own_time, remote_time = math.ceil(end), math.ceil(end + way)
            self.dma.land(core, copy.program, own_flag, own_time + self._latency, amount, copy.label)
            target.dma.land(to_core, copy.program, to_flag, remote_time + self._latency, arriving, copy.label)

        self._around.send(self, goes_on, route, size, left, self._pipes(target, copy.source, copy.destination))
        return goes_on

    def signal(self, core: int, program: str, time: int, address: Any, amount: int, label: str) -> None:
        target = self._around.signal_target(self.number, address)
        route = self._around.route(self, target)
        if route.links:
            self.communications[core].signalled(label, time + self.skipped_cycles(core))
        lands = math.ceil(time + route.latency_s * self._around.clock_hz)
        self._around.receiver(self, target).dma.land(
            target.core, program, address & FLAG_MASK, lands, (amount ^ _SIGN) - _SIGN, label if route.links else ""
        )

    def sparse_copy(self, core: int, label: str, copy: SparseCopy) -> bool:
        to = self._around.sparse_copy_target(self.number, copy.target, copy.flag)
        route = self._around.route(self, to)
        if not route.links:
            return False
        amount = arriving = cast("Any", copy.amount)
        if type(amount) is Lanes:
            amount, arriving = self._around.first(amount.values), self._around.arriving(to, amount.values)
        target = self._around.receiver(self, to)
        receiver = target.sparse_cores
        way = route.latency_s * self._around.clock_hz
        self.communications[0].sent(label, math.ceil(copy.launched) + self.skipped_cycles(0), copy.size_bytes, route)

        def left(end: float) -> None:
            self.sparse_cores.land(self.first_sparse_core + core, copy.source_flag, end + self._latency, amount)
            receiver.land(target.first_sparse_core + to.core, copy.flag, end + way + self._latency, arriving)

        pipes = self._pipes(target, copy.source, copy.destination)
        self._around.send(self, copy.time, route, copy.size_bytes, left, pipes)
        return True

    def pass_on(self, time: float, shard: Shard) -> None:
        to = self._around.chip_target(self.number, shard.chip)
        route = self._around.route(self, to)
        target = self._around.receiver(self, to)
        way = route.latency_s * self._around.clock_hz
        self.communications[0].sent(shard.label, math.ceil(time) + self.skipped_cycles(0), shard.size_bytes, route)

        def left(end: float) -> None:
            target.barna_cores.arrived(shard.barna_core, end + way + self._latency, is_forward=shard.forward)
            self.barna_cores.left(shard.barna_core, end)

        pipes = self._pipes(target, shard.space, shard.space)
        self._around.send(self, time, route, shard.size_bytes, left, pipes)

    def _pipes(self, target: SliceDevice, source: str, destination: str) -> tuple[HbmPipe, ...]:
        """Return the pipes to HBM that a copy to another device goes through."""
        read = (self.dma.pipe,) if source == "hbm" else ()
        return (*read, target.dma.pipe) if destination == "hbm" else read

    def sparse_signal(self, label: str, launched: float, time: float, address: int, amount: int) -> bool:
        to = self._around.sparse_signal_target(self.number, address)
        route = self._around.route(self, to)
        if not route.links:
            return False
        self.communications[0].signalled(label, math.ceil(launched) + self.skipped_cycles(0))
        lands = time + route.latency_s * self._around.clock_hz
        target = self._around.receiver(self, to)
        target.sparse_cores.land(target.first_sparse_core + to.core, address, lands, amount)
        return True

    def together(self, core: int, time: int, barrier: Barrier, label: str) -> int | None:
        end = self._around.barrier_end(time, barrier, self._wait_cycles, label)
        if end is not None:
            later = self.skipped_cycles(core)
            self.communications[core].signalled(label, time + later)
            if isinstance(barrier, EarlySignal):
                return end
            self.communications[core].waited(label, time + later, end + later)
            self.dma.stalled(core, time, end, "semaphore")
        return end

    def first(self, words: Sequence[Any]) -> Any:
        return self._around.first(words)

    def largest(self, sizes: Sequence[int]) -> int:
        return self._around.largest(sizes)

    def communications_of(self, core: int) -> Communications:
        return self.communications[core]

    def apart(self, times: Sequence[int]) -> int:
        return self._around.back_together(times)
