"""One SparseCore: the queue of its launches, and their programs and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from systolic.chips import Chip
from systolic.simulator.core_records import SparseCoreRun, SparseOpRun
from systolic.simulator.errors import SimulationError, UnknownValueError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.memory import Words
from systolic.simulator.hardware.round_words import in_round
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import MASK, Unknown
from systolic.simulator.schedule import Running, Schedule, Waited
from systolic.simulator.sparse_core.actions import TileState
from systolic.simulator.sparse_core.clock import SparseClock, SparseCounts
from systolic.simulator.sparse_core.flags import SparseFlags
from systolic.simulator.sparse_core.launch import Launch
from systolic.simulator.sparse_core.machine import SparseMachine, whole
from systolic.simulator.sparse_core.outside import Outside, SparseCopy
from systolic.simulator.sparse_core.program import SparseFunction, SparseProgram


class SparseDevice(Protocol):
    """The other cores of the device and of the slice, as one SparseCore sees them."""

    @property
    def outside(self) -> Outside:
        """The rest of the slice."""
        ...

    def signal_from(self, core: int, label: str, launched: float, time: float, address: int, amount: int) -> None:
        """Signal a flag of another core."""
        ...

    def copy_from(self, core: int, label: str, copy: SparseCopy) -> None:
        """Copy to a device, perhaps to this one."""
        ...

    def table_words(self, begin: int, count: int) -> Words:
        """Return words of a table in HBM, from a granule on."""
        ...


_NO_PROGRAM = MASK
_FIRST_ARGUMENT = 2  # before it the sequencer says where the function is, and for which cores


@dataclass(slots=True)
class _Barrier(Waited):
    arrived: dict[int, float] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)


class SparseCore:
    """One SparseCore: the queue of its launches, its sequencer and its tiles."""

    def __init__(
        self,
        number: int,
        chip: Chip,
        dma: DmaEngine,
        schedule: Schedule,
        device: SparseDevice,
        iterations: IterationBudget,
        timeline: Timeline | None,
    ) -> None:
        model = chip.sparse_core
        assert model is not None
        self.number = number
        self._clock = SparseClock.of(model, chip.machine)
        self._granule_bytes = chip.machine.granule_bytes
        self._lane_count = model.lanes
        self._dma = dma
        self._schedule = schedule
        self._device = device
        self._iterations = iterations
        self._timeline = timeline
        self._counts = SparseCounts()
        self.flags, *of_tiles = (SparseFlags(schedule, self._first) for _ in range(1 + model.tiles_per_core))
        self.tiles = [TileState(number=number, flags=flags) for number, flags in enumerate(of_tiles)]
        self._barriers: dict[int, _Barrier] = {}
        self._functions: dict[int, tuple[SparseFunction, int]] = {}  # what lies in the tiles' memory, by address
        self._program: SparseProgram | None = None
        self._code_at = 0
        self._launched = self._ended = 0
        self.sequencer_memory: dict[int, int | Unknown] = {}
        self.stored_at = 0.0
        self._free_at = self.launched = 0.0
        self._ops: list[SparseOpRun] = []
        self._skipped_ops = 0
        self._skipped_cycles = 0  # by which the times that it records are later than those that it goes by
        self._idle, self._stores = Waited(), Waited()

    def launch(self, time: float, program: SparseProgram, launch: Launch) -> None:
        """Queue a program, which runs when those before it are over."""
        number, self._launched = self._launched, self._launched + 1
        waits: list[SparseMachine] = []
        running = self._run(time, number, program, launch, waits)
        self._schedule.start(time, running, lambda: waits[0].waits_for if waits else f"the launch of {program.name}")

    def _run(
        self, time: float, number: int, program: SparseProgram, launch: Launch, waits: list[SparseMachine]
    ) -> Running:
        while self._ended < number:
            self._schedule.wait_for(self._idle)
            yield None
        self.launched = time
        begin = max(time, self._free_at)
        yield begin
        # The descriptor comes from the queue in HBM, then the program that it names: two copies, one after the other.
        begin += self._clock.latency_cycles
        yield begin
        begin = self._dma.cross(begin, launch.granules * self._granule_bytes) + self._clock.latency_cycles
        self._program, self._code_at = program, launch.code
        self._functions = _resident(program)
        self.sequencer_memory = launch.memory(self._device.outside.chip)
        machine = self._machine(None, self.sequencer_memory, {})
        waits.append(machine)
        end = yield from _located(program.scs.run(begin, machine, 0), program.scs.name)
        self._free_at = end
        self._ended += 1
        self._schedule.changed(self._idle)
        later = self._skipped_cycles
        self._ops.append(
            SparseOpRun(name=program.name, begin_cycles=whole(begin) + later, end_cycles=whole(end) + later)
        )
        if self._timeline is not None:
            self._timeline.add("op", begin, end, program.name)
        return end

    def _machine(
        self, tile: TileState | None, memory: dict[int, int | Unknown], arguments: dict[int, int | Unknown]
    ) -> SparseMachine:
        # One tile is enough to look at: the others do the same on other rows.
        timeline = self._timeline if tile is not None and tile.number == 0 else None
        return SparseMachine(
            self,
            self._device.outside.first_sparse_core + self.number,
            self._clock,
            self._dma,
            self._counts,
            self._iterations,
            timeline,
            tile=tile,
            memory=memory,
            arguments=arguments,
            granule_bytes=self._granule_bytes,
            lane_count=self._lane_count,
        )

    def _first(self, words: Sequence[Any]) -> Any:
        return self._device.outside.first(words)

    # ---- what programs ask for ----

    def code_copied(self, source: int, destination: int) -> None:
        """Record the address of a function of the tiles."""
        program = self._program
        assert program is not None
        if program.tec is not None:
            offset = source - self._code_at - program.symbols["_scs_section_size"]
            for name, block in program.tec.entries.items():
                if 2 * program.symbols[name] == offset:
                    self._functions[destination // 2] = (program.tec, block)
                    return
        raise SimulationError(f"{program.name}: tiles load code that is not in the listing")

    def start_task(self, time: float, arguments: Sequence[int | Unknown], tiles: int) -> None:
        """Start the function named by two of the arguments: a mask of cores and an address."""
        named = [argument for argument in arguments[:_FIRST_ARGUMENT] if argument != _NO_PROGRAM]
        if not named:
            return
        if len(named) > 1 or isinstance(named[0], Unknown):
            raise SimulationError("a task of tiles whose function is not known")
        passed = dict(enumerate(arguments[_FIRST_ARGUMENT:]))
        for tile in self.tiles:
            if tiles >> tile.number & 1:
                machine = self._machine(tile, tile.memory, dict(passed))
                number, tile.tasks_given = tile.tasks_given, tile.tasks_given + 1
                running = self._task(time, tile, number, named[0], machine)
                self._schedule.start(time, running, lambda machine=machine: machine.waits_for)

    def _task(self, time: float, tile: TileState, number: int, address: int, machine: SparseMachine) -> Running:
        while tile.tasks_done < number:
            self._schedule.wait_for(tile.idle)
            yield None
        if address not in self._functions:  # the task before may have loaded it
            raise SimulationError("a task of tiles whose function is not known")
        function, block = self._functions[address]
        end = yield from _located(function.run(max(time, tile.free_at), machine, block), function.name)
        tile.free_at = end
        tile.tasks_done += 1
        self._schedule.changed(tile.idle)
        return end

    def barrier(self, number: int, tile: int, time: float) -> float | None:
        """Let a tile go on when all have arrived."""
        barrier = self._barriers.setdefault(number, _Barrier())
        if tile not in barrier.left:  # else it is here again while others have yet to leave
            barrier.arrived.setdefault(tile, time)
        if tile in barrier.left or len(barrier.arrived) < len(self.tiles):
            self._schedule.wait_for(barrier)
            return None
        barrier.left.add(tile)
        end = max(barrier.arrived.values())
        if len(barrier.left) == len(self.tiles):
            del self._barriers[number]
        if len(barrier.left) in (1, len(self.tiles)):  # all have arrived, or it can be used again
            self._schedule.changed(barrier)
        return end

    def wait_for_store(self) -> None:
        self._schedule.wait_for(self._stores)

    def stored(self, time: float) -> None:
        self.stored_at = time
        self._schedule.changed(self._stores)

    def signal_outside(self, time: float, address: int | Unknown, amount: int) -> None:
        """Signal a flag of another core; raise SimulationError if the core is not known."""
        if isinstance(address, Unknown):
            raise SimulationError(f"whom a SparseCore signals depends on {address.why}")
        self._device.signal_from(self.number, self._name, self.launched, time, address, amount)

    def copy(self, copy: SparseCopy) -> None:
        size: Any = copy.size_bytes
        if type(size) is Lanes:
            copy = replace(copy, size_bytes=self._device.outside.largest(size.values))
        self._counts.hbm_read_bytes += copy.size_bytes if copy.source == "hbm" else 0
        self._device.copy_from(self.number, self._name, copy)

    def table_words(self, begin: int, count: int) -> Words:
        return self._device.table_words(begin, count)

    @property
    def _name(self) -> str:
        return self._program.name if self._program is not None else ""

    @property
    def launches(self) -> int:
        return self._launched

    @property
    def recorded_ops(self) -> int:
        return len(self._ops)

    @recorded_ops.setter
    def recorded_ops(self, count: int) -> None:
        """Note how many there are when rounds have been skipped."""
        self._skipped_ops = count - len(self._ops)

    def skip(self, rounds: int, cycles: int) -> None:
        """Record as many rounds more; see `SparseCores.skip`."""
        for words in (self.sequencer_memory, *(tile.memory for tile in self.tiles)):
            words.update({place: in_round(rounds, word) for place, word in words.items()})
        repeated = self._ops[len(self._ops) - self._skipped_ops // rounds :]
        for later in range(cycles, (rounds + 1) * cycles, cycles):
            self._ops += (
                replace(op, begin_cycles=op.begin_cycles + later, end_cycles=op.end_cycles + later) for op in repeated
            )
        self._skipped_cycles += rounds * cycles

    def result(self) -> SparseCoreRun:
        counts, timeline = self._counts, self._timeline
        return SparseCoreRun(
            core=self.number,
            ops=tuple(self._ops),
            hbm_read_bytes=counts.hbm_read_bytes,
            hbm_written_bytes=counts.hbm_written_bytes,
            streams=counts.streams,
            indices=counts.indices,
            tile_stall_cycles=whole(counts.stall_cycles),
            spans=timeline.spans if timeline is not None else (),
            spans_left_out=timeline.left_out if timeline is not None else 0,
        )


def _located(running: Running, name: str) -> Running:
    try:
        return (yield from running)
    except UnknownValueError as error:
        raise SimulationError(f"{name}: control flow depends on {error.why}, which is not followed there") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SimulationError(f"{name}: code that cannot be executed: {error}") from error


def _resident(program: SparseProgram) -> dict[int, tuple[SparseFunction, int]]:
    """Return the functions that the tiles have from the program's launch on, by address."""
    if program.tec is None or not program.comes_with_tile_code:
        return {}
    return {program.symbols[name]: (program.tec, block) for name, block in program.tec.entries.items()}
