"""One core of a device: its MXUs, its memory, and the programs that it is in the middle of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from systolic.chips import Chip
from systolic.simulator.assumptions import Assumption, Progression
from systolic.simulator.errors import SimulationError, check_most
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.loop_timer import LoopTimer
from systolic.simulator.hardware.memory import ROW_BYTES, ROW_WORDS, WORD_BYTES, Contents, Memory, Words
from systolic.simulator.hardware.mxu import Memo, Mxus
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import COMPUTED, Unknown
from systolic.simulator.mailboxes import Mailboxes
from systolic.simulator.op_totals import OpTotals
from systolic.simulator.other_devices import OtherDevices
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.hlo import TopLevelHlo
from systolic.simulator.reading.utilization import BlockUse
from systolic.simulator.records import CopySize, CoreRun, OpRun
from systolic.simulator.repeated_calls import Execution, RepeatedCalls
from systolic.simulator.results import ResultPointers
from systolic.simulator.sequencer import Passed, Progress, Sequencer
from systolic.simulator.sparse_core.device import SparseCores
from systolic.simulator.sparse_core.translate import SparseProgram
from systolic.simulator.translating.names import parameter_address
from systolic.simulator.translating.translate import Translation

TOP_LEVEL = "TLP"
# Where the contents of an argument are not known, neither is its size; a copy of any part of it then says whose it is.
_UNKNOWN_WORDS = 1 << 20
_MOST_DEPTH = 30

# What a called operation's operand holds: (operation, which call of it, operand's index) → contents, or None where
# there is nothing better than what the program's own copies bring.
OperandWords = Callable[[str, int, int], Contents | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSetup:
    """What all cores of a device run, and what the program is given."""

    chip: Chip
    translations: Mapping[str, Translation]
    sparse_programs: Sequence[SparseProgram]
    uses: Mapping[str, BlockUse]
    hlo: TopLevelHlo | None
    parameters: Sequence[Words | Unknown]  # contents, by number
    operand_words: OperandWords
    initial: Callable[[int], int]  # words of scalar memory that the runtime has written
    pointers: Mapping[int, int]  # and those where it has left a pointer to the results, by address
    assumed: frozenset[str]  # operations in which something counts for computed values that are not known
    progression: Progression  # what does
    remember: bool
    max_iterations: int
    skipped: frozenset[str]  # operations that are not executed, as if they took no time
    remembered: dict[str, Memo] = field(default_factory=dict)  # by the matrix units of all cores, by program
    repeated: RepeatedCalls | None = None  # None: every call is executed
    tables: Mapping[int, Words] = field(default_factory=dict)  # what lies in HBM beside the parameters, by pointer


class Core:
    """One core, ready to run the top-level program.

    Args:
      others: the other devices of a slice; None: there are none.
      identity: words of scalar memory that say which device it is, by address.
    """

    def __init__(
        self,
        setup: DeviceSetup,
        dma: DmaEngine,
        mailboxes: Mailboxes,
        sparse_cores: SparseCores,
        number: int,
        timeline: Timeline | None,
        others: OtherDevices | None = None,
        identity: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._others = others
        self._setup = setup
        self._dma = dma
        self._mailboxes = mailboxes
        self._sparse_cores = sparse_cores
        self._number = self.number = number
        self._timeline = timeline
        self._iterations = IterationBudget(setup.max_iterations)
        results = ResultPointers(words=setup.pointers, others=setup.initial, hlo=setup.hlo, parameter=self._parameter)

        def initial(address: int) -> int:
            word = identity.get(address)
            return results.word(address) if word is None else word

        self.memory = self._memory = Memory(initial, self._iterations)
        self._mxus = {name: self._new_mxus(name, timeline) for name in setup.translations}
        self._op_totals: dict[str, OpTotals] = {}
        self._depth: list[Sequencer] = []
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
            memo=setup.remembered.setdefault(name, {}),
        )

    @property
    def iterations(self) -> int:
        """How often loops have gone round so far."""
        return self._setup.max_iterations - self._iterations.left

    @property
    def waits_for(self) -> str:
        """What the innermost program waits for."""
        return self._depth[-1].waits_for if self._depth else "nothing"

    def run(self) -> Progress:
        """Runs the top-level program from cycle 0."""
        return (yield from self._inside(self._sequencer(TOP_LEVEL, 0, {}), 0))

    def _inside(self, sequencer: Sequencer, time: int) -> Progress:
        check_most(len(self._depth), _MOST_DEPTH, "programs, each called by the one before")
        self._depth.append(sequencer)
        end = yield from sequencer.run(time)
        self._depth.pop()
        return end

    def _sequencer(self, name: str, time: int, passed: Mapping[str, int | Unknown]) -> Sequencer:
        return Sequencer(
            self._setup.translations[name],
            self._dma,
            self._mailboxes,
            self._mxus[name],
            self._memory,
            LoopTimer(name, time, self._timeline if name != TOP_LEVEL else None),
            core=self._number,
            passed=passed,
            parameter=self._parameter,
            call=self._call,
            model=self._setup.chip.machine,
            iterations=self._iterations,
            assumption=Assumption(self._setup.progression) if name in self._setup.assumed else None,
            sparse_cores=self._sparse_cores,
            others=self._others,
        )

    def _parameter(self, number: int) -> int:
        row = parameter_address(number, len(self._setup.parameters))
        return row * ROW_BYTES // self._setup.chip.machine.hbm_pointer_bytes

    def _first_word(self, space: str, pointer: int) -> int:
        """Finds the word that a pointer points to: what it counts differs between memories."""
        if space == "hbm":
            return pointer * self._setup.chip.machine.hbm_pointer_bytes // WORD_BYTES
        return pointer if space == "smem" else pointer * ROW_WORDS

    # ---- calls ----

    def _call(self, time: int, name: str, passed: Passed) -> Progress:
        translation = self._setup.translations.get(name)
        if translation is None:
            raise SimulationError(f"the program calls {name}, of which there is no listing")
        self._iterations.spend(1)
        totals = self._op_totals.get(name)
        if totals is None:
            totals = self._op_totals[name] = OpTotals(begin=time)
        registers = dict(passed)
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
                self._hand_over(name, totals.calls, operand, registers)
        if name in self._setup.skipped:
            for operand in in_place:
                self._overwritten(name, operand, registers)
            totals.calls += 1
            return time
        before = self._totals(name)
        execution = self._execution(translation, time, registers)
        if execution is not None:
            self._repeat(translation, time, execution)
            end, block_counts, loop = time + execution.cycles, execution.block_counts, execution.loop
        else:
            sequencer = self._sequencer(name, time, registers)
            end = yield from self._inside(sequencer, time)
            block_counts, loop = sequencer.counts, sequencer.timer.longest(time, end)
        after = self._totals(name)
        spent = {what: after[what] - count for what, count in before.items()}
        totals.add(time, end, spent, block_counts, loop)
        for operand in in_place:
            self._overwritten(name, operand, registers)
        if self._timeline is not None:
            self._timeline.add("op", time, end, name)
        return end

    def _execution(
        self, translation: Translation, time: int, registers: Mapping[str, int | Unknown]
    ) -> Execution | None:
        """Finds out what a call does without executing it; None where that is not known."""
        setup, name = self._setup, translation.name

        def knows(operand: CallOperand) -> bool:
            at, space = registers.get(operand.register, COMPUTED), operand.space or ""
            return isinstance(at, Unknown) or self._memory.knows(
                space, self._first_word(space, at), operand.padded_words
            )

        flags = self._dma.own_flags(self._number, name, time)
        if (
            setup.repeated is None
            or name in setup.assumed
            or flags is None
            or not self._mxus[name].is_idle(time)
            or any(knows(operand) for operand in translation.operands if operand.is_input and operand.space)
        ):
            return None
        pipe_cycles = self._dma.pipe_cycles(time)
        return setup.repeated.find(translation, partial(self._new_mxus, name), pipe_cycles, flags, self._iterations)

    def _repeat(self, translation: Translation, time: int, execution: Execution) -> None:
        """Lets a call do what it did by itself."""
        self._dma.repeat(self._number, translation.name, time, execution.cycles, execution.dma)
        self._mxus[translation.name].repeat(time, execution.mxus)
        self._memory.repeat(execution.memory.scalar_words, execution.memory.overwritten)
        if self._timeline is not None and execution.timeline is not None:
            self._timeline.repeat(time, execution.timeline)

    def _hand_over(self, name: str, call: int, operand: CallOperand, registers: dict[str, int | Unknown]) -> None:
        """Puts known contents where the operation will find them."""
        contents = self._setup.operand_words(name, call, operand.index)
        if contents is None:
            return
        at = registers.get(operand.register, COMPUTED)
        if operand.space is None:
            words = contents()
            registers[operand.register] = words if isinstance(words, Unknown) else words[0]
        elif not isinstance(at, Unknown):
            address = self._first_word(operand.space, at)
            self._check_first_word(name, operand, address, contents)
            self._memory.define(operand.space, address, operand.padded_words, contents, brought=False)

    def _check_first_word(self, name: str, operand: CallOperand, address: int, contents: Contents) -> None:
        """Checks that what the program's own copies have brought is what the caller says is there."""
        # What an earlier call found there may still be: another core can have brought what is there now.
        brought = self._memory.brought_word(operand.space or "", address)
        if isinstance(brought, Unknown):
            return
        said, mask = contents(), operand.first_word_mask
        if isinstance(said, Unknown) or not said or isinstance(said[0], Unknown):
            return
        if said[0] & mask != brought & mask:
            raise SimulationError(
                f"operand {operand.index} of {name} begins with {said[0]} by the function's own account, with "
                f"{brought} by the program's copies: a call was taken for another"
            )

    def _overwritten(self, name: str, operand: CallOperand, registers: Mapping[str, int | Unknown]) -> None:
        """Marks a result as not known, unless the operation's own copies bring it there."""
        at = registers.get(operand.register, COMPUTED)
        if operand.space in ("hbm", "vmem", "cmem") and not isinstance(at, Unknown):
            self._define(operand.space, at, operand.padded_words, Unknown(f"what {name} computes"))

    def _define(self, space: str, pointer: int, size: int, words: Words | Unknown) -> None:
        self._memory.define(space, self._first_word(space, pointer), size, lambda: words)

    # ---- what it all came to ----

    def _totals(self, name: str) -> dict[str, int]:
        """Reads what the core has counted so far, by the fields of `OpRun`; of the MXUs, in this operation only."""
        counts, mxus = self._dma.counts[self._number], self._mxus[name]
        return {
            "copy_stall_cycles": counts.copy_stall_cycles,
            "semaphore_stall_cycles": counts.semaphore_stall_cycles,
            "overhead_cycles": counts.overhead_cycles,
            "hbm_read_bytes": counts.hbm_read_bytes,
            "hbm_written_bytes": counts.hbm_written_bytes,
            "copies": counts.copies,
            "matrix_stall_cycles": mxus.stall_cycles,
            "matrix_busy_cycles": mxus.busy_cycles,
        }

    def result(self, cycles: int) -> CoreRun:
        """Reports what this core did, now that it is over."""
        counts = self._dma.counts[self._number]
        timeline = self._timeline
        return CoreRun(
            core=self._number,
            cycles=cycles,
            ops=tuple(self._op(name, totals) for name, totals in self._op_totals.items()),
            copy_stall_cycles=counts.copy_stall_cycles,
            semaphore_stall_cycles=counts.semaphore_stall_cycles,
            copy_overhead_cycles=counts.overhead_cycles,
            matrix_stall_cycles=sum(unit.stall_cycles for unit in self._mxus.values()),
            matrix_busy_cycles=sum(unit.busy_cycles for unit in self._mxus.values()),
            hbm_read_bytes=counts.hbm_read_bytes,
            hbm_written_bytes=counts.hbm_written_bytes + counts.hbm_received_bytes,
            copies=counts.copies,
            copy_sizes=tuple(
                CopySize(source=source, destination=destination, size_bytes=size, run_bytes=run, count=count)
                for (source, destination, size, run), count in counts.sizes.items()
            ),
            spans=timeline.spans if timeline is not None else (),
            spans_left_out=timeline.left_out if timeline is not None else 0,
        )

    def _op(self, name: str, totals: OpTotals) -> OpRun:
        use = self._setup.uses.get(name)
        hlo = self._setup.hlo
        return OpRun(
            name=name,
            scope=hlo.scopes.get(name, "") if hlo is not None else "",
            calls=totals.calls,
            begin_cycles=totals.begin,
            end_cycles=totals.end,
            cycles=totals.cycles,
            issued=use.total(totals.block_counts) if use is not None and totals.block_counts else {},
            loop=totals.loop,
            regions=totals.regions(self._setup.translations[name].blocks, self._mxus[name].stalls_by_block(), use),
            is_pallas=hlo is not None and name in hlo.kernels,
            **totals.spent,
        )
