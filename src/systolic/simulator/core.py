"""One core of a device: its matrix units, its memory, and the programs that it is in the middle of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.simulator.errors import SimulationError, check_most
from systolic.simulator.hardware.copies import CopyEngine
from systolic.simulator.hardware.loops import Laps, LoopTime
from systolic.simulator.hardware.matrix import MatrixUnits
from systolic.simulator.hardware.memory import Contents, Memory, Words
from systolic.simulator.hardware.rounds import Rounds
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import COMPUTED, Unknown
from systolic.simulator.machine import Machine, Mailboxes, Passed, Progress
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.hlo import TopLevelHlo
from systolic.simulator.reading.utilization import BlockUse
from systolic.simulator.records import CopySize, CoreRun, OpRun, RegionRun
from systolic.simulator.translating.names import parameter_address
from systolic.simulator.translating.translate import Translation

TOP_LEVEL = "TLP"
# Of an argument whose contents are not known, neither is its size; a copy of any part of it says whose it was.
_UNKNOWN_WORDS = 1 << 20
_MOST_DEPTH = 30
_ROW_WORDS = 128  # addresses in HBM and VMEM count rows of 512 bytes

# What a called operation's operand holds: (operation, which call of it, operand's index) → contents, or None where
# there is nothing better than what the program's own copies bring.
OperandWords = Callable[[str, int, int], Contents | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all cores of a device run, and what the program is given."""

    chip: Chip
    translations: Mapping[str, Translation]
    uses: Mapping[str, BlockUse]
    hlo: TopLevelHlo | None
    parameters: Sequence[Words | Unknown]  # contents, by number
    operand_words: OperandWords
    initial: Callable[[int], int]  # words of scalar memory that the runtime has written
    assumed_zero: frozenset[str]  # operations in which computed values that are not known count as zero
    remember: bool
    max_rounds: int


class Core:
    """One core, ready to run the top-level program."""

    def __init__(
        self, setup: Setup, copies: CopyEngine, mailboxes: Mailboxes, number: int, timeline: Timeline | None
    ) -> None:
        self._setup = setup
        self._copies = copies
        self._mailboxes = mailboxes
        self._number = number
        self._timeline = timeline
        self._rounds = Rounds(setup.max_rounds)
        self._memory = Memory(setup.initial, self._rounds)
        self._units = {
            name: MatrixUnits(setup.chip.machine, program.segments, remember=setup.remember, timeline=timeline)
            for name, program in setup.translations.items()
        }
        self._tallies: dict[str, _Tally] = {}
        self._depth: list[Machine] = []
        for index, words in enumerate(setup.parameters):
            size = _UNKNOWN_WORDS if isinstance(words, Unknown) else max(1, len(words))
            self._memory.define("hbm", self._parameter(index) * _ROW_WORDS, size, functools.partial(_itself, words))

    @property
    def waits_for(self) -> str:
        """What the innermost program waits for."""
        return self._depth[-1].waits_for if self._depth else "nothing"

    def run(self) -> Progress:
        """Runs the top-level program from cycle 0."""
        machine = self._machine(TOP_LEVEL, 0, {})
        return (yield from self._inside(machine, 0))

    def _inside(self, machine: Machine, time: int) -> Progress:
        check_most(len(self._depth), _MOST_DEPTH, "programs, each called by the one before")
        self._depth.append(machine)
        end = yield from machine.run(time)
        self._depth.pop()
        return end

    def _machine(self, name: str, time: int, passed: Mapping[str, int | Unknown]) -> Machine:
        model = self._setup.chip.machine
        return Machine(
            self._setup.translations[name],
            self._copies,
            self._mailboxes,
            self._units[name],
            self._memory,
            Laps(name, time, self._timeline if name != TOP_LEVEL else None),
            core=self._number,
            passed=passed,
            parameter=self._parameter,
            call=self._call,
            model=model,
            rounds=self._rounds,
            assume_zero=name in self._setup.assumed_zero,
        )

    def _parameter(self, number: int) -> int:
        return parameter_address(number, len(self._setup.parameters))

    # ---- calls ----

    def _call(self, time: int, name: str, passed: Passed) -> Progress:
        translation = self._setup.translations.get(name)
        if translation is None:
            raise SimulationError(f"the program calls {name}, of which there is no listing")
        self._rounds.spend(1)
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = _Tally(begin=time)
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
                self._hand_over(name, tally.calls, operand, registers)
        machine = self._machine(name, time, registers)
        before = self._totals(name)
        end = yield from self._inside(machine, time)
        tally.add(time, end, self._totals(name), before, machine.counts, machine.laps.longest(time, end))
        for operand in in_place:
            self._overwritten(name, operand, registers)
        if self._timeline is not None:
            self._timeline.add("op", time, end, name)
        return end

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
            address = at if operand.space == "smem" else at * _ROW_WORDS
            self._check_first_word(name, operand, address, contents)
            self._memory.define(operand.space, address, operand.padded_words, contents)

    def _check_first_word(self, name: str, operand: CallOperand, address: int, contents: Contents) -> None:
        """Where the program's own copies have brought something, it has to be what the caller says is there."""
        brought = self._memory.word(operand.space or "", address)
        if isinstance(brought, Unknown):
            return
        said = contents()
        if not isinstance(said, Unknown) and said and not isinstance(said[0], Unknown) and said[0] != brought:
            raise SimulationError(
                f"operand {operand.index} of {name} begins with {said[0]} by the function's own account, with "
                f"{brought} by the program's copies: a call was taken for another"
            )

    def _overwritten(self, name: str, operand: CallOperand, registers: Mapping[str, int | Unknown]) -> None:
        """What an operation computes is not known, unless its own copies bring it there."""
        at = registers.get(operand.register, COMPUTED)
        if operand.space in ("hbm", "vmem", "cmem") and not isinstance(at, Unknown):
            result = functools.partial(_itself, Unknown(f"what {name} computes"))
            self._memory.define(operand.space, at * _ROW_WORDS, operand.padded_words, result)

    # ---- what it all came to ----

    def _totals(self, name: str) -> tuple[int, ...]:
        counts, units = self._copies.counts[self._number], self._units[name]
        return (
            counts.copy_stall_cycles,
            counts.semaphore_stall_cycles,
            counts.overhead_cycles,
            counts.hbm_read_bytes,
            counts.hbm_written_bytes,
            counts.copies,
            units.stall_cycles,
            units.busy_cycles,
        )

    def result(self, cycles: int) -> CoreRun:
        """What this core did, now that it is over."""
        counts = self._copies.counts[self._number]
        timeline = self._timeline
        return CoreRun(
            core=self._number,
            cycles=cycles,
            ops=tuple(self._op(name, tally) for name, tally in self._tallies.items()),
            copy_stall_cycles=counts.copy_stall_cycles,
            semaphore_stall_cycles=counts.semaphore_stall_cycles,
            copy_overhead_cycles=counts.overhead_cycles,
            matrix_stall_cycles=sum(unit.stall_cycles for unit in self._units.values()),
            matrix_busy_cycles=sum(unit.busy_cycles for unit in self._units.values()),
            hbm_read_bytes=counts.hbm_read_bytes,
            hbm_written_bytes=counts.hbm_written_bytes,
            copies=counts.copies,
            copy_sizes=tuple(
                CopySize(source=source, destination=destination, size_bytes=size, run_bytes=run, count=count)
                for (source, destination, size, run), count in counts.sizes.items()
            ),
            spans=timeline.spans if timeline is not None else (),
            spans_left_out=timeline.left_out if timeline is not None else 0,
        )

    def _op(self, name: str, tally: _Tally) -> OpRun:
        use = self._setup.uses.get(name)
        hlo = self._setup.hlo
        copy_stall, semaphore_stall, overhead, read, written, copies, matrix_stall, matrix_busy = tally.totals
        return OpRun(
            name=name,
            scope=hlo.scopes.get(name, "") if hlo is not None else "",
            calls=tally.calls,
            begin_cycles=tally.begin,
            end_cycles=tally.end,
            cycles=tally.cycles,
            copy_stall_cycles=copy_stall,
            semaphore_stall_cycles=semaphore_stall,
            matrix_stall_cycles=matrix_stall,
            overhead_cycles=overhead,
            matrix_busy_cycles=matrix_busy,
            hbm_read_bytes=read,
            hbm_written_bytes=written,
            copies=copies,
            issued=use.total(tally.counts) if use is not None else {},
            loop=tally.loop,
            regions=self._regions(name, tally.counts),
        )

    def _regions(self, name: str, counts: Sequence[int]) -> tuple[RegionRun, ...]:
        use = self._setup.uses.get(name)
        stalls = self._units[name].stalls_by_block()
        blocks = self._setup.translations[name].blocks
        return tuple(
            RegionRun(
                first_bundle=block.first,
                bundles=block.last - block.first + 1,
                depth=block.depth,
                executions=count,
                cycles=count * block.cycles + stalls.get(number, 0),
                matrix_stall_cycles=stalls.get(number, 0),
                issued={} if use is None else use.of_block(number, count),
            )
            for number, (block, count) in enumerate(zip(blocks, counts, strict=False))
            if count
        )


class _Tally:
    """Adds up the calls of one operation."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.end = begin
        self.calls = 0
        self.cycles = 0
        self.totals: tuple[int, ...] = (0,) * 8
        self.counts: tuple[int, ...] = ()
        self.loop: LoopTime | None = None

    def add(
        self,
        begin: int,
        end: int,
        after: Sequence[int],
        before: Sequence[int],
        counts: Sequence[int],
        loop: LoopTime | None,
    ) -> None:
        self.calls += 1
        self.end = end
        self.cycles += end - begin
        self.totals = tuple(old + new - was for old, new, was in zip(self.totals, after, before, strict=True))
        self.counts = tuple(map(sum, zip(self.counts, counts, strict=True))) if self.counts else tuple(counts)
        self.loop = loop


def _itself(words: Words | Unknown) -> Words | Unknown:
    return words
