"""Look up calls of an operation that has been called before, instead of executing them.

The layers of a model are a loop, whose operations are called again and again. How long a call takes can depend on
registers and contents that it is handed. So the operation is executed alone: from cycle 0, with flags and memory of its
own, and everything that it is handed unknown. If it ends, its control flow depends only on the counts of its flags and
on how long the pipe to HBM is still busy when it begins, and at which rate it carries; all calls with equal values of
these do the same. Calls during which the rate changes are executed, and so are those that begin while links use HBM,
and all of operations that act on other devices, or on flags that are not their own.

The cores of a device share its pipe. They begin an operation together, after a barrier, and are executed alone
together, as far apart as they are; see `Meeting`. Calls of one core are executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from systolic.chips import MachineModel
from systolic.simulator.core_parts import Activation, CoreParts, DeviceParts
from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.loop_timer import LoopTime, LoopTimer
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.hardware.mxu import Mxus
from systolic.simulator.hardware.sync_flags import OwnFlags
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.mailboxes import Mailboxes
from systolic.simulator.meeting import Meeting
from systolic.simulator.schedule import Schedule
from systolic.simulator.sequencer import Sequencer
from systolic.simulator.translating.translate import Translation

# Not one that is computed, for which a zero may count.
_HANDED_OVER = Unknown("what an operation is handed", computed=False)
_MAX_KEPT = 64  # beginnings of one operation
_PIPE_DIGITS = 6  # of the cycles for which it is busy: sums of times at different hours differ in the last ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution of an operation alone by one core; times count from the first core's begin."""

    begin_cycles: int  # after that of the device's first core
    cycles: int
    iterations: int  # of its loops
    block_counts: tuple[int, ...]
    loop: LoopTime | None
    dma: DmaEngine  # of the device
    mxus: Mxus
    memory: OwnMemory
    timeline: Timeline | None


class OwnMemory(Memory):
    """Memory in which only the operation's own stores and copies are known."""

    def __init__(self, iterations: IterationBudget) -> None:
        super().__init__(lambda _: _HANDED_OVER, iterations)
        self.overwritten: dict[tuple[str, int, int], None] = {}  # space, first word, words

    def copy(self, source: str, begin: int, destination: str, first: int, size: int, **options: Any) -> None:
        """Record what a copy overwrites; see `Memory.copy`."""
        if source == "smem":
            _refuse()  # known words, which may be meant for another core
        super().copy(source, begin, destination, first, size, **options)
        if destination != "smem" and not any(isinstance(word, Unknown) for word in (first, size)):
            self.overwritten[destination, first, size] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCall:
    """A core's call of an operation, of which none of the inputs is known."""

    core: int
    time: int
    mxus: Callable[[Timeline | None], Mxus]  # makes matrix units in which nothing is under way
    flags: OwnFlags  # counts of the operation's own flags
    iterations: IterationBudget


# How long the pipe is busy, its rate and last copy, and the cores that call, with how much later and their flags.
_Begin = tuple[float, float, tuple[str, float], tuple[tuple[int, int, OwnFlags], ...]]


@dataclass(slots=True)
class _Operation:
    calls: int = 0
    closed: bool = True  # as far as is known
    executions: dict[_Begin, tuple[Execution, ...]] = field(default_factory=dict)


class RepeatedCalls:
    """Executions of operations alone, for all cores that run the same program.

    Args:
      machine: the model of the chip.
      spans: as of `Timeline`; 0: none is kept.
    """

    def __init__(self, machine: MachineModel, spans: int) -> None:
        self._machine = machine
        self._spans = spans
        self._operations: dict[str, _Operation] = {}

    def find(
        self,
        translation: Translation,
        calls: Sequence[CoreCall],
        pipe: HbmPipe,
    ) -> tuple[Execution, ...] | None:
        """Return the outcome of a call, and let the pipe carry what it does.

        Args:
          translation: the operation.
          calls: of all cores of the device, in the order in which they act if they do at the same time.
          pipe: to HBM.

        Returns:
          The execution of each call. None where the call has to be executed: the first one, one during which the pipe
          changes its rate or may, because links use HBM when it begins, and all of an operation that depends on others.
        """
        operation = self._operations.setdefault(translation.name, _Operation(closed=_may_be_closed(translation)))
        operation.calls += 1
        if not operation.closed or operation.calls == 1 or pipe.serves_links:
            return None
        time = calls[0].time
        rate, until = pipe.rate(max(time, pipe.free))
        if rate != pipe.rate(time)[0]:
            return None
        pipe_cycles = max(0.0, pipe.free - time)
        last = pipe.last if pipe_cycles else ("", 0.0)
        cores = tuple((call.core, call.time - time, call.flags) for call in calls)
        key = (round(pipe_cycles, _PIPE_DIGITS), rate, last, cores)
        executions = operation.executions.get(key)
        if executions is None:
            if len(operation.executions) >= _MAX_KEPT:
                return None
            try:
                pipe_alone = HbmPipe(self._machine, pipe_cycles, rate, last)
                executions = _alone(translation, self._machine, calls, pipe_alone, self._spans)
            except SimulationError:
                operation.closed = False
                return None
            operation.executions[key] = executions
        else:
            for call, execution in zip(calls, executions, strict=True):
                call.iterations.spend(execution.iterations)
        carried = executions[0].dma.pipe
        if time + carried.free > until:
            return None
        pipe.repeat(time, carried)
        return executions


def _may_be_closed(translation: Translation) -> bool:
    """True if its results are in memory that only copies and vectors write."""
    return all(operand.is_input or operand.space in ("hbm", "vmem", "cmem") for operand in translation.operands)


def _alone(
    translation: Translation, machine: MachineModel, calls: Sequence[CoreCall], pipe: HbmPipe, spans: int
) -> tuple[Execution, ...]:
    """Execute an operation alone; raise SimulationError if it depends on something else."""
    schedule, count = Schedule(), len(calls)
    timelines = [Timeline(spans) for _ in calls] if spans else None  # by core
    dma = DmaEngine(machine, count, timelines, schedule, pipe=pipe)
    mailboxes = Mailboxes(count, schedule)
    others: Any = _Nobody()
    device = DeviceParts(dma=dma, mailboxes=mailboxes, sparse_cores=others, meeting=Meeting(count), others=others)
    started: list[tuple[CoreCall, int, Sequencer, OwnMemory, Mxus, int]] = []
    for call in calls:
        begin = call.time - calls[0].time
        timeline = timelines[call.core] if timelines else None
        memory, mxus = OwnMemory(call.iterations), call.mxus(timeline)
        for flag, amount in call.flags:
            dma.set(call.core, translation.name, flag, amount)
        parts = CoreParts(
            device=device,
            number=call.core,
            # Of a chip whose devices have several cores no other device's cores have other numbers.
            named_words={"core id": call.core} if count > 1 else {},
            model=machine,
            memory=memory,
            iterations=call.iterations,
            parameter=_refuse,
            call=_refuse,
        )
        activation = Activation(
            translation=translation,
            mxus=mxus,
            timer=LoopTimer(translation.name, begin, timeline),
            passed={operand.register: _HANDED_OVER for operand in translation.operands},
        )
        sequencer = Sequencer(parts, activation)
        started.append((call, begin, sequencer, memory, mxus, call.iterations.left))
        schedule.start(begin, sequencer.run(begin), lambda sequencer=sequencer: sequencer.waits_for)
    ends = [int(end) for end in schedule.run()]  # DeadlockError: it waits for others
    cores = range(count)
    if dma.acts_on_others(translation.name, cores) or not mailboxes.are_empty:
        _refuse()
    executions = []
    for (call, begin, sequencer, memory, mxus, before), end in zip(started, ends, strict=True):
        if dma.own_flags(call.core, translation.name, end) is None:
            _refuse()
        execution = Execution(
            begin_cycles=begin,
            cycles=end - begin,
            iterations=before - call.iterations.left,
            block_counts=tuple(sequencer.counts),
            loop=sequencer.timer.longest(begin, end),
            dma=dma,
            mxus=mxus,
            memory=memory,
            timeline=timelines[call.core] if timelines else None,
        )
        executions.append(execution)
    return tuple(executions)


def _refuse(*_: object) -> NoReturn:
    raise SimulationError("an operation that depends on others")


class _Nobody:
    """Placeholder for other devices and SparseCores, which an operation executed alone has none of."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()
