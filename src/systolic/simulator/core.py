"""One core of a device: its MXUs, its memory, and its running programs."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from systolic.simulator.assumptions import Assumption
from systolic.simulator.core_parts import Activation, CoreParts, DeviceParts, Passed, Progress
from systolic.simulator.core_records import CoreRun
from systolic.simulator.core_results import core_run, spent_so_far
from systolic.simulator.device_setup import DeviceSetup
from systolic.simulator.errors import SimulationError
from systolic.simulator.executed_alone import CoreCall, Execution
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.loop_timer import LoopTimer
from systolic.simulator.hardware.memory import ROW_BYTES, Memory, Words
from systolic.simulator.hardware.mxu import Mxus
from systolic.simulator.hardware.round_words import present
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import COMPUTED, Unknown
from systolic.simulator.op_totals import OpTotals
from systolic.simulator.operands import Operands
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.listing import TOP_LEVEL
from systolic.simulator.repeated_calls import Outcome
from systolic.simulator.results import ResultPointers
from systolic.simulator.sequencer import Sequencer
from systolic.simulator.translating.names import parameter_address
from systolic.simulator.translating.translate import Translation

# Where the contents of an argument are not known, neither is its size; a copy of any part of it then says whose it is.
_UNKNOWN_WORDS = 1 << 20


class Core:
    """One core, ready to run the top-level program.

    Args:
      device: parts that the cores share.
      identity: words of scalar memory that say which device it is, by address.
    """

    def __init__(
        self,
        setup: DeviceSetup,
        device: DeviceParts,
        number: int,
        timeline: Timeline | None,
        identity: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._setup = setup
        self.number = number
        self._timeline = timeline
        self._iterations = IterationBudget(setup.max_iterations)
        results = ResultPointers(
            words=setup.pointers,
            others=setup.initial,
            hlo=setup.hlo,
            parameter=self._parameter,
            result=lambda number: self._parameter(len(setup.parameters) + number),
        )

        def initial(address: int) -> int:
            word = identity.get(address)
            return results.word(address) if word is None else word

        self.memory = self._memory = Memory(initial, self._iterations)
        self.skipped_cycles = 0  # by which the times that it records are later than those that it goes by
        self._rounds = rounds = device.rounds
        index = rounds.add(self, device.dma.pipe) if rounds is not None else 0
        handed_over = partial(rounds.handed_over, index) if rounds is not None else lambda *_: None
        self.operand_words = setup.operand_words
        self._operands = Operands(setup.chip.machine, self.memory, setup.operand_words, handed_over)
        self._parts = CoreParts(
            device=device,
            number=number,
            next_round=partial(rounds.next, index) if rounds is not None else None,
            named_words={"core id": number, "logical chip id": 0} if device.others is None else {},
            model=setup.chip.machine,
            memory=self.memory,
            iterations=self._iterations,
            parameter=self._parameter,
            call=self._call,
        )
        self._identity = identity
        self._mxus = {name: self._new_mxus(name, timeline) for name in setup.translations}
        self._op_totals: dict[str, OpTotals] = {}
        for index, words in enumerate(setup.parameters):
            size = _UNKNOWN_WORDS if isinstance(words, Unknown) else max(1, len(words))
            self._define("hbm", self._parameter(index), size, words)
        for pointer, table in {**results.tables(), **setup.tables}.items():
            self._define("hbm", pointer, len(table), table)

    def _new_mxus(self, name: str, timeline: Timeline | None) -> Mxus:
        setup = self._setup
        return Mxus(
            setup.chip.machine,
            setup.translations[name].segments,
            remember=setup.remember,
            timeline=timeline,
            program=name,
            memo=setup.remembered,
        )

    @property
    def iterations(self) -> int:
        return self._iterations.spent

    @property
    def words(self) -> dict[int, Any]:
        """Words of its scalar memory; see `rounds`."""
        return self.memory.words

    @property
    def counters(self) -> tuple[Any, ...]:
        """All that it counts; see `rounds`."""
        device = self._parts.device
        communications = None if device.others is None else device.others.communications_of(self.number)
        sparse = device.sparse_cores.counters if self.number == 0 else ()
        return device.dma.counts[self.number], self._op_totals, self._mxus, self._iterations, communications, sparse

    def skip(self, rounds: int, cycles: int) -> None:
        """Record as many rounds more, of so many cycles each."""
        self.skipped_cycles += rounds * cycles
        if self.number == 0:
            self._parts.device.sparse_cores.skip(rounds, cycles)

    @property
    def waits_for(self) -> str:
        running = self._parts.running
        return running[-1].waits_for if running else "nothing"

    def run(self) -> Progress:
        return self._sequencer(TOP_LEVEL, 0, {}).run(0)

    def _sequencer(self, name: str, time: int, passed: Mapping[str, int | Unknown]) -> Sequencer:
        activation = Activation(
            translation=self._setup.translations[name],
            mxus=self._mxus[name],
            timer=LoopTimer(name, time, self._timeline if name != TOP_LEVEL else None),
            passed=passed,
            assumption=Assumption(self._setup.progression) if name in self._setup.assumed else None,
        )
        return Sequencer(self._parts, activation)

    def _parameter(self, number: int) -> int:
        """Return a pointer to a parameter; results, in whose memory others may be kept before, follow them."""
        hlo = self._setup.hlo
        results = hlo.results or 0 if hlo is not None else 0
        row = parameter_address(number, len(self._setup.parameters) + results)
        return row * ROW_BYTES // self._setup.chip.machine.hbm_pointer_bytes

    # ---- calls ----

    def _call(self, time: int, name: str, passed: Passed) -> Progress:
        translation = self._setup.translations.get(name)
        if translation is None:
            raise SimulationError(f"the program calls {name}, of which there is no listing")
        self._iterations.spend(1)
        totals = self._op_totals.get(name)
        if totals is None:
            totals = self._op_totals[name] = OpTotals(begin=time + self.skipped_cycles)
        registers = dict(passed)
        for operand in translation.operands:
            if operand.space and operand.register in registers:
                registers[operand.register] = present(registers[operand.register])
        places = ((operand, registers.get(operand.register)) for operand in translation.operands if operand.is_input)
        inputs = {(operand.space, at) for operand, at in places if isinstance(at, int)}
        outputs = [operand for operand in translation.operands if not operand.is_input]
        in_place = [
            operand
            for operand in outputs
            if isinstance(at := registers.get(operand.register), int) and (operand.space, at) in inputs
        ]
        for operand in outputs:
            if operand not in in_place:
                self._overwritten(name, operand, registers)
        for operand in translation.operands:
            if operand.is_input:
                self._operands.hand_over(name, totals.calls, operand, registers)
        if name in self._setup.skipped:
            for operand in in_place:
                self._overwritten(name, operand, registers)
            totals.calls += 1
            return time
        before = self._spent(name)
        execution = yield from self._execution(translation, time, registers)
        if execution is not None:
            self._repeat(translation, time, execution)
            end, block_counts, loop = time + execution.cycles, execution.block_counts, execution.loop
        else:
            sequencer = self._sequencer(name, time, registers)
            end = yield from sequencer.run(time)
            block_counts, loop = sequencer.counts, sequencer.timer.longest(time, end)
        after = self._spent(name)
        spent = {what: after[what] - count for what, count in before.items()}
        totals.add(time + self.skipped_cycles, end + self.skipped_cycles, spent, block_counts, loop)
        for operand in in_place:
            self._overwritten(name, operand, registers)
        if self._setup.hlo is not None and name in self._setup.hlo.elements:
            self._operands.hold_element(translation.operands, registers)
        if self._timeline is not None:
            self._timeline.add("op", time, end, name)
        return end

    def _execution(
        self, translation: Translation, time: int, registers: Mapping[str, int | Unknown]
    ) -> Generator[int | None, None, Execution | None]:
        """Return what a call does without executing it; None if it has to be executed."""
        device, repeated = self._parts.device, self._setup.repeated

        def find(calls: Sequence[CoreCall]) -> Sequence[Outcome] | None:
            return None if repeated is None else repeated.find(translation, calls, device.dma, device.others)

        if device.meeting.cores > 1:
            call = self._core_call(translation, time, registers)
            outcome = yield from device.meeting.together(self.number, translation.name, time, call, find)
        else:
            if repeated is not None and device.others is not None:
                yield time  # what links do until then decides how the call begins
            call = self._core_call(translation, time, registers)
            outcomes = None if call is None else find([call])
            outcome = None if outcomes is None else outcomes[0]
        return None if outcome is None else (yield from outcome)

    def _core_call(
        self, translation: Translation, time: int, registers: Mapping[str, int | Unknown]
    ) -> CoreCall | None:
        """Return a call that may be looked up; None for others."""
        setup, name = self._setup, translation.name
        inputs = [operand for operand in translation.operands if operand.is_input and operand.space]
        places = [(operand, registers.get(operand.register, COMPUTED)) for operand in inputs]

        first_word, words = self._operands.first_word, self._operands.words

        def knows_inputs() -> bool:
            return any(
                self._memory.knows(operand.space or "", first_word(operand.space or "", at), words(operand))
                for operand, at in places
                if not isinstance(at, Unknown)
            )

        flags = self._parts.device.dma.own_flags(self.number, name, time)
        if (
            setup.repeated is None
            or name in setup.assumed
            or flags is None
            or not self._mxus[name].is_idle(time)
            or any(isinstance(at, Unknown) for _, at in places)
        ):
            return None
        pointers = self._operands.known_pointers(translation.operands, registers, setup.tables)
        known_now = knows_inputs() if self._parts.device.meeting.cores > 1 else None  # before other cores' calls
        return CoreCall(
            core=self.number,
            time=time,
            knows_inputs=knows_inputs if known_now is None else lambda: known_now,
            mxus=partial(self._new_mxus, name),
            memory=partial(self._operands.own_memory, pointers, self._identity, setup.tables),
            pointers=tuple((operand.register, at) for operand, at in pointers),
            flags=flags,
            iterations=self._iterations,
        )

    def _repeat(self, translation: Translation, time: int, execution: Execution) -> None:
        """Apply the recorded execution of a call."""
        time -= execution.begin_cycles
        last = execution.begin_cycles + execution.cycles
        self._parts.device.dma.repeat(self.number, translation.name, last, execution.dma)
        self._mxus[translation.name].repeat(time, execution.mxus)
        self._memory.repeat(execution.memory.scalar_words, execution.memory.overwritten)
        if self._timeline is not None and execution.timeline is not None:
            self._timeline.repeat(time, execution.timeline)

    def _overwritten(self, name: str, operand: CallOperand, registers: Mapping[str, int | Unknown]) -> None:
        """Mark a result as not known, unless the operation's own copies write it.

        HBM is marked by the device's first core alone: a later one may begin the call when it has been written.
        """
        at = registers.get(operand.register, COMPUTED)
        if operand.space == "hbm" and self.number > 0:
            return
        if operand.space in ("hbm", "vmem", "cmem") and not isinstance(at, Unknown):
            self._define(operand.space, at, self._operands.words(operand), Unknown(f"what {name} computes"))

    def _define(self, space: str, pointer: int, size: int, words: Words | Unknown) -> None:
        self._memory.define(space, self._operands.first_word(space, pointer), size, lambda: words)

    # ---- what it all came to ----

    def _spent(self, name: str) -> dict[str, int]:
        return spent_so_far(self._parts.device.dma.counts[self.number], self._mxus[name])

    def result(self, cycles: int) -> CoreRun:
        counts, cycles = self._parts.device.dma.counts[self.number], cycles + self.skipped_cycles
        return core_run(self.number, cycles, counts, self._mxus, self._op_totals, self._setup, self._timeline)
