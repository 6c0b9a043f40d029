"""Look up calls of an operation that has been called before, instead of executing them.

The layers of a model are a loop, whose operations are called again and again. How long a call takes can depend on
registers and contents that it is handed. So the operation is executed alone: from cycle 0, with flags and memory of its
own, and everything that it is handed unknown. If it ends, its control flow depends only on the counts of its flags and
on how long the pipe to HBM is still busy when it begins, and at which rate it carries; all calls with equal values of
these do the same. Calls during which the rate changes are executed, and so are those that begin while links use HBM,
and all of operations that act on other cores or devices, or on flags that are not their own.
"""

from __future__ import annotations

from collections.abc import Callable
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
from systolic.simulator.schedule import Schedule
from systolic.simulator.sequencer import Sequencer
from systolic.simulator.translating.translate import Translation

# Not one that is computed, for which a zero may count.
_HANDED_OVER = Unknown("what an operation is handed", computed=False)
_MAX_KEPT = 64  # beginnings of one operation
_PIPE_DIGITS = 6  # of the cycles for which it is busy: sums of times at different hours differ in the last ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution of an operation alone; times count from its start."""

    cycles: int
    iterations: int  # of its loops
    block_counts: tuple[int, ...]
    loop: LoopTime | None
    dma: DmaEngine
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


@dataclass(slots=True)
class _Operation:
    calls: int = 0
    closed: bool = True  # as far as is known
    executions: dict[tuple[float, float, tuple[str, float], OwnFlags], Execution] = field(default_factory=dict)


class RepeatedCalls:
    """Executions of operations alone, for all cores that run the same program.

    Args:
      machine: the model of the chip, whose devices have one core.
      spans: as of `Timeline`; 0: none is kept.
    """

    def __init__(self, machine: MachineModel, spans: int) -> None:
        self._machine = machine
        self._spans = spans
        self._operations: dict[str, _Operation] = {}

    def find(
        self,
        translation: Translation,
        mxus: Callable[[Timeline | None], Mxus],
        time: int,
        pipe: HbmPipe,
        flags: OwnFlags,
        iterations: IterationBudget,
    ) -> Execution | None:
        """Return the outcome of a call if none of its inputs is known.

        Args:
          translation: the operation.
          mxus: makes matrix units in which nothing is under way.
          time: of the call.
          pipe: to HBM.
          flags: counts of its own flags.
          iterations: of the core.

        Returns:
          None where the call has to be executed: the first one, one during which the pipe changes its rate or may,
          because links use HBM when it begins, and all of an operation that depends on others.
        """
        operation = self._operations.setdefault(translation.name, _Operation(closed=_may_be_closed(translation)))
        operation.calls += 1
        if not operation.closed or operation.calls == 1 or pipe.serves_links:
            return None
        rate, until = pipe.rate(max(time, pipe.free))
        if rate != pipe.rate(time)[0]:
            return None
        pipe_cycles = max(0.0, pipe.free - time)
        last = pipe.last if pipe_cycles else ("", 0.0)
        key = (round(pipe_cycles, _PIPE_DIGITS), rate, last, flags)
        execution = operation.executions.get(key)
        if execution is None and len(operation.executions) < _MAX_KEPT:
            timeline = Timeline(self._spans) if self._spans else None
            try:
                pipe_alone = HbmPipe(self._machine, pipe_cycles, rate, last)
                execution = _alone(translation, self._machine, mxus(timeline), pipe_alone, flags, iterations, timeline)
            except SimulationError:
                operation.closed = False
                return None
            operation.executions[key] = execution
        elif execution is not None:
            iterations.spend(execution.iterations)
        if execution is not None and time + execution.dma.pipe.free > until:
            return None
        return execution


def _may_be_closed(translation: Translation) -> bool:
    """True if its results are in memory that only copies and vectors write."""
    return all(operand.is_input or operand.space in ("hbm", "vmem", "cmem") for operand in translation.operands)


def _alone(
    translation: Translation,
    machine: MachineModel,
    mxus: Mxus,
    pipe: HbmPipe,
    flags: OwnFlags,
    iterations: IterationBudget,
    timeline: Timeline | None,
) -> Execution:
    """Execute an operation alone; raise SimulationError if it depends on something else."""
    schedule = Schedule()
    dma = DmaEngine(machine, 1, [timeline] if timeline else None, schedule, pipe=pipe)
    for flag, count in flags:
        dma.set(0, translation.name, flag, count)
    memory = OwnMemory(iterations)
    others: Any = _Nobody()
    device = DeviceParts(dma=dma, mailboxes=Mailboxes(1, schedule), sparse_cores=others, others=others)
    parts = CoreParts(
        device=device,
        number=0,
        model=machine,
        memory=memory,
        iterations=iterations,
        parameter=_refuse,
        call=_refuse,
    )
    activation = Activation(
        translation=translation,
        mxus=mxus,
        timer=LoopTimer(translation.name, 0, timeline),
        passed={operand.register: _HANDED_OVER for operand in translation.operands},
    )
    sequencer = Sequencer(parts, activation)
    before = iterations.left
    progress = sequencer.run(0)
    try:
        while next(progress) is not None:
            pass
        _refuse()  # it waits for another core
    except StopIteration as end:
        cycles = end.value
    if dma.acts_on_others(translation.name) or dma.own_flags(0, translation.name, cycles) is None:
        _refuse()
    return Execution(
        cycles=cycles,
        iterations=before - iterations.left,
        block_counts=tuple(sequencer.counts),
        loop=sequencer.timer.longest(0, cycles),
        dma=dma,
        mxus=mxus,
        memory=memory,
        timeline=timeline,
    )


def _refuse(*_: object) -> NoReturn:
    raise SimulationError("an operation that depends on others")


class _Nobody:
    """Placeholder for other devices and SparseCores, which an operation executed alone has none of."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()
