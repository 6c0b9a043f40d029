"""The SparseCores of a device as its TensorCores see them: descriptors, signals, and flags that report their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from systolic.chips import Chip
from systolic.simulator.core_records import SparseCoreRun
from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.memory import WORD_BYTES, Words
from systolic.simulator.hardware.round_words import in_round
from systolic.simulator.hardware.sync_flags import FLAG_MASK
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.hardware.words import joined
from systolic.simulator.schedule import Schedule
from systolic.simulator.sparse_core.core import SparseCore
from systolic.simulator.sparse_core.launch import Launch, programs_by_launch
from systolic.simulator.sparse_core.machine import whole
from systolic.simulator.sparse_core.outside import (
    SPARSE_CORE,
    Alone,
    Outside,
    SparseCopy,
    core_of_copy,
    core_of_signal,
)
from systolic.simulator.sparse_core.program import SparsePrograms

SPARSE_CORE_BIT = 16  # of a remote signal's address: the core is a SparseCore
_NOT_FOLLOWED = Unknown("contents of HBM that are not followed")
_NO_TABLES: Mapping[int, Words] = MappingProxyType({})


class SparseCores:
    """All SparseCores of a device, as its TensorCores see them.

    Args:
      programs: programs that may be launched.
      schedule: runs the programs.
      outside: the rest of the slice.
      tables: contents of HBM elsewhere, by pointer.
    """

    def __init__(
        self,
        chip: Chip,
        programs: SparsePrograms,
        dma: DmaEngine,
        schedule: Schedule,
        iterations: IterationBudget,
        spans: int,
        outside: Outside | None = None,
        tables: Mapping[int, Words] = _NO_TABLES,
    ) -> None:
        count = chip.sparse_core.cores_per_device if chip.sparse_core is not None else 0
        self._dma = dma
        self.outside: Outside = outside if outside is not None else Alone()
        self._images, self._tables = programs.image_words, tables
        self._tiles = count * (chip.sparse_core.tiles_per_core if chip.sparse_core is not None else 1)
        self._iterations = iterations
        self._granule_bytes = chip.machine.granule_bytes
        self._latency = chip.machine.dma_latency_cycles
        self._programs = programs_by_launch(programs.programs, programs.names)
        self._cores = [
            SparseCore(number, chip, dma, schedule, self, iterations, Timeline(spans) if spans else None)
            for number in range(count)
        ]
        self._descriptors: dict[int, Sequence[int | Unknown]] = {}
        self._watched: dict[
            int, list[tuple[str, int]]
        ] = {}  # by TensorCore: flags on which SparseCores say that they are done
        self._to_launch: dict[int, set[int]] = {}  # by TensorCore: SparseCores whose queue has something new
        self._early: list[tuple[int, int, int, int, str]] = []

    def describe(self, core: int, words: Sequence[int | Unknown], *, launches: bool) -> None:
        """Record the descriptor that a TensorCore has queued; unless that `launches`, a signal does."""
        self._descriptors[core] = words
        self._to_launch[core] = set() if launches else set(range(len(self._cores)))

    def offer(self, core: int, time: int, number: int) -> None:
        """Launch the TensorCore's last descriptor on a SparseCore, which has that number on its chip."""
        launch = Launch.read(self._descriptors.get(core, ()))
        self._core(self._own(number)).launch(time, self._programs(launch), launch)

    def signal(self, core: int, time: int, address: int, amount: int) -> None:
        """Add to a flag of a SparseCore's sequencer: the first signal after a descriptor launches it."""
        number, flag = self._own(core_of_signal(address)), address & FLAG_MASK
        if number in self._to_launch.get(core, ()):
            self._to_launch[core].remove(number)
            self.offer(core, time, core_of_signal(address) & ~SPARSE_CORE)
        else:
            self._core(number).flags.land(flag, time, amount)

    def signal_from(self, core: int, label: str, launched: float, time: float, address: int, amount: int) -> None:
        other = core_of_signal(address)
        if not other & SPARSE_CORE:
            self._ended(other % len(self._dma.counts), core, whole(time), amount, label)
        elif not self.outside.sparse_signal(label, launched, time, address, amount):
            self.land(other, address, time, amount)

    def copy_from(self, core: int, label: str, copy: SparseCopy) -> None:
        if self.outside.sparse_copy(core, label, copy):
            return
        end = copy.time
        for space in (copy.source, copy.destination):
            end = max(end, self._dma.cross(copy.time, copy.size_bytes)) if space == "hbm" else end
        amount: Any = copy.amount
        if type(amount) is Lanes:
            amount = self.outside.first(amount.values)
        self.land(core_of_copy(copy.flag), copy.flag, end + self._latency, amount)
        self._core(core).flags.land(copy.source_flag & FLAG_MASK, end + self._latency, amount)

    def table_words(self, begin: Any, count: int) -> Words:
        """Return words of a table in HBM, from a granule on; unknown words for any other place."""
        if type(begin) is Lanes:
            return [joined(words) for words in zip(*(self.table_words(at, count) for at in begin.values), strict=True)]
        for pointer, words in {self.outside.images_at: self._images, **self._tables}.items():
            first = (begin - pointer) * self._granule_bytes // WORD_BYTES
            if 0 <= first < len(words):
                return words[first : first + count]
        return (_NOT_FOLLOWED,) * count

    def land(self, core: int, flag: int, time: float, amount: int) -> None:
        """Add to a flag of the SparseCore that has that number on its chip."""
        self._core(self._own(core)).flags.land(flag & FLAG_MASK, time, amount)

    def watch(self, core: int, program: str, flag: int) -> None:
        """Record that a TensorCore waits on `flag` for a SparseCore: the first flag is the first core's, and so on."""
        flags = self._watched.setdefault(core, [])
        if (program, flag) not in flags:
            flags.append((program, flag))
            early, self._early = self._early, []
            for copy in early:
                self._ended(*copy)

    def _ended(self, tensor_core: int, sparse_core: int, time: int, amount: int, label: str) -> None:
        flags = self._watched.get(tensor_core, [])
        if sparse_core < len(flags):
            self._dma.land(tensor_core, *flags[sparse_core], time, amount, label)
        else:
            self._early.append((tensor_core, sparse_core, time, amount, label))

    def _own(self, number: int) -> int:
        """Return the device's own number of a SparseCore that has that number on its chip."""
        return (number & ~SPARSE_CORE) - self.outside.first_sparse_core

    def _core(self, number: int) -> SparseCore:
        if not 0 <= number < len(self._cores):
            raise SimulationError(f"SparseCore {number} is meant, of {len(self._cores)} that the device has")
        return self._cores[number]

    @property
    def counters(self) -> Sequence[SparseCore]:
        """All that they count; see `rounds`."""
        return self._cores

    def skip(self, rounds: int, cycles: int) -> None:
        """Record as many rounds more of a loop, each like the latest one, of so many cycles."""
        self._descriptors = {core: in_round(rounds, list(words)) for core, words in self._descriptors.items()}
        for core in self._cores:
            core.skip(rounds, cycles)

    @property
    def iterations(self) -> int:
        """Iterations of loops for each tile."""
        return -(-self._iterations.spent // max(1, self._tiles))

    def results(self) -> tuple[SparseCoreRun, ...]:
        """Return the records of all cores that did anything."""
        return tuple(core.result() for core in self._cores) if any(core.launches for core in self._cores) else ()
