"""The SparseCores of a device as its TensorCores see them: descriptors, signals, and flags that report their end."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.chips import Chip
from systolic.simulator.core_records import SparseCoreRun
from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.sparse_core.core import SparseCore, Start
from systolic.simulator.sparse_core.launch import Launch, programs_by_launch
from systolic.simulator.sparse_core.machine import whole
from systolic.simulator.sparse_core.translate import SparseProgram

# How a remote signal names a core: bit 16 says that it is a SparseCore, the bits from 14 on which one.
SPARSE_CORE_BIT = 16
_NUMBER_BIT = 14
_MAX_CORES = 4


class SparseCores:
    """All SparseCores of a device, as its TensorCores see them.

    Args:
      programs: programs that may be launched; `order` names them in the schedule's order.
      start: called with a program that begins to run.
    """

    def __init__(
        self,
        chip: Chip,
        programs: Sequence[SparseProgram],
        order: Sequence[str],
        dma: DmaEngine,
        start: Start,
        iterations: IterationBudget,
        spans: int,
    ) -> None:
        count = chip.sparse_core.cores_per_device if chip.sparse_core is not None else 0
        self._dma = dma
        names = {program.name for program in programs}
        self._programs = programs_by_launch(programs, [name for name in order if name in names])
        self._cores = [
            SparseCore(number, chip, dma, start, self._route, iterations, Timeline(spans) if spans else None)
            for number in range(count)
        ]
        self._descriptors: dict[int, Sequence[int | Unknown]] = {}
        self._watched: dict[
            int, list[tuple[str, int]]
        ] = {}  # by TensorCore: flags on which SparseCores say that they are done
        self._to_launch: dict[int, set[int]] = {}  # by TensorCore: SparseCores whose queue has something new
        self._early: list[tuple[int, int, int, int]] = []

    @property
    def changes(self) -> int:
        """Number of changes that others may have waited for."""
        return sum(core.changes + core.flags.changes for core in self._cores)

    def describe(self, core: int, words: Sequence[int | Unknown], *, launches: bool) -> None:
        """Record the descriptor that a TensorCore has queued; unless that `launches`, a signal does."""
        self._descriptors[core] = words
        self._to_launch[core] = set() if launches else set(range(len(self._cores)))

    def offer(self, core: int, time: int, number: int) -> None:
        """Launch the TensorCore's last descriptor on a SparseCore."""
        launch = Launch.read(self._descriptors.get(core, ()))
        self._core(number).launch(time, self._programs(launch), launch)

    def signal(self, core: int, time: int, address: int, amount: int) -> None:
        """Add to a flag of a SparseCore's sequencer: the first signal after a descriptor launches it."""
        number, flag = _named(address)
        if number in self._to_launch.get(core, ()):
            self._to_launch[core].remove(number)
            self.offer(core, time, number)
        else:
            self._core(number).flags.land(flag, time, amount)

    def _route(self, number: int, time: float, address: int, amount: int) -> None:
        other, flag = _named(address)
        if address >> SPARSE_CORE_BIT & 1:
            self._core(other).flags.land(flag, time, amount)
        else:
            self._ended(other & 1, number, whole(time), amount)

    def watch(self, core: int, program: str, flag: int) -> None:
        """Record that a TensorCore waits on `flag` for a SparseCore: the first flag is the first core's, and so on."""
        flags = self._watched.setdefault(core, [])
        if (program, flag) not in flags:
            flags.append((program, flag))
            early, self._early = self._early, []
            for copy in early:
                self._ended(*copy)

    def _ended(self, tensor_core: int, sparse_core: int, time: int, amount: int) -> None:
        flags = self._watched.get(tensor_core, [])
        if sparse_core < len(flags):
            self._dma.land(tensor_core, *flags[sparse_core], time, amount)
        else:
            self._early.append((tensor_core, sparse_core, time, amount))

    def _core(self, number: int) -> SparseCore:
        if number >= len(self._cores):
            raise SimulationError(f"SparseCore {number} is meant, of {len(self._cores)} that the device has")
        return self._cores[number]

    def results(self) -> tuple[SparseCoreRun, ...]:
        """Return the records of all cores that did anything."""
        return tuple(core.result() for core in self._cores) if any(core.changes for core in self._cores) else ()


def _named(address: int) -> tuple[int, int]:
    """Split the address of a remote signal into core and flag."""
    return address >> _NUMBER_BIT & _MAX_CORES - 1, address & (1 << _NUMBER_BIT) - 1
