"""Look up calls of an operation that has been called before, instead of executing them.

The layers of a model are a loop, whose operations are called again and again. How long a call takes can depend on
registers and contents that it is handed. So the operation is executed alone, see `executed_alone`. If it ends, its
control flow depends only on the counts of its flags, on how long the pipe to HBM is still busy when it begins, and at
which rate it carries; all calls with equal values of these do the same. Calls during which the rate changes by itself
are executed, on one device also calls during which it might have; and so are all of operations that act on other
devices, or on flags that are not their own. Calls with known inputs are looked up too, unless the operation copies
inputs to its results, which are then known as well.

If one device represents all, nothing but its own copies uses the links. A collective that begins with idle links and
with shared flags at zero, and leaves both so, does the same in all such calls, and is looked up as well.

Links of a slice take a share of the rate, which changes while a call lasts. The call does not act on links, so the
changes can be awaited: a call that is looked up waits until it would end if links left HBM alone, and is looked up by
the changes until then. If it ends later with them, it waits for further changes until that end. Operations that keep
meeting other changes are executed if links use HBM when they begin, and else looked up without later changes.

The cores of a device share its pipe. They begin an operation at about the same time, and are executed alone together,
as far apart as they are; see `Meeting`. Calls of one core are executed.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from systolic.chips import MachineModel
from systolic.simulator.errors import SimulationError
from systolic.simulator.executed_alone import CoreCall, Execution, LinkChanges, execute_alone
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.sync_flags import OwnFlags
from systolic.simulator.other_devices import OtherDevices, Represented
from systolic.simulator.schedule import Waited
from systolic.simulator.translating.translate import Translation

_MAX_KEPT = 256  # beginnings of one operation, with changes of links
_MAX_NEW_CHANGES = 16  # of links that an operation meets and none of its calls has met before; see `_Operation`
_PIPE_DIGITS = 6  # of the cycles for which it is busy: sums of times at different hours differ in the last ones

Outcome = Generator[int | None, None, Execution]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begin:
    """The state in which cores begin a call."""

    pipe_cycles: float  # for which the pipe is busy
    rate: float  # of the pipe, if links leave all of it
    left: float  # the share that they leave
    last: tuple[str, float]  # copy of the pipe
    cores: tuple[tuple[int, int, OwnFlags], ...]  # that call, with how much later, and their flags
    # Only of calls that may act on other devices: whom the device represents, and pointers that it is handed.
    represents: Represented = "itself"
    pointers: tuple[tuple[tuple[str, int], ...], ...] = ()

    def pipe(self, machine: MachineModel) -> HbmPipe:
        pipe = HbmPipe(machine, self.pipe_cycles, self.rate, self.last)
        pipe.left = self.left
        return pipe


@dataclass(slots=True)
class _Operation:
    translation: Translation
    others: OtherDevices | None
    closed: bool  # as far as is known
    acts: bool | None  # on other devices, which one represents; None: it is not known
    calls: int = 0
    executions: dict[tuple[_Begin, LinkChanges], tuple[Execution, ...]] = field(default_factory=dict)
    new_changes: int = 0  # executions alone because of changes of links
    known_changes: int = 0  # such changes that an earlier call has met

    @property
    def follows_links(self) -> bool:
        """True unless changes of links are different in each call, so that it would be executed several times."""
        return self.new_changes <= _MAX_NEW_CHANGES + self.known_changes


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

    @property
    def looked_up(self) -> frozenset[str]:
        """Operations whose calls are looked up."""
        return frozenset(
            name for name, operation in self._operations.items() if operation.closed and operation.executions
        )

    def find(
        self, translation: Translation, calls: Sequence[CoreCall], dma: DmaEngine, others: OtherDevices | None
    ) -> tuple[Outcome, ...] | None:
        """Look up a call.

        Args:
          translation: the operation.
          calls: of all cores of the device, in the order in which they act if they do at the same time.
          dma: of the device.
          others: devices of the slice, whose copies use HBM too.

        Returns:
          The execution of each call, for which the core may have to wait until it ends. None where the call has to be
          executed: the first one, one during which the pipe changes its rate, and all of an operation that depends on
          others.
        """
        operation = self._operations.get(translation.name)
        if operation is None:
            acts = False if translation.alone or self._spans else None
            operation = _Operation(translation, others, closed=_may_be_closed(translation), acts=acts)
            self._operations[translation.name] = operation
        operation.others = others  # not an earlier attempt's, whose cores would stay in memory
        operation.calls += 1
        time = calls[0].time
        may_act = operation.acts is not False and others is not None and others.represents != "itself"
        if (operation.acts and not may_act) or (may_act and others is not None and not others.is_idle_from(time)):
            return None
        follows_links = others is not None and operation.follows_links
        pipe = dma.pipe
        if not operation.closed or operation.calls == 1 or (pipe.left < 1.0 and not follows_links):
            return None
        pipe_cycles = max(0.0, pipe.free - time)
        begin = _Begin(
            pipe_cycles=round(pipe_cycles, _PIPE_DIGITS),
            rate=pipe.rate_without_links(time)[0],
            left=pipe.left,
            last=pipe.last if pipe_cycles else ("", 0.0),
            cores=tuple((call.core, call.time - time, call.flags) for call in calls),
            represents=others.represents if others is not None and may_act else "itself",
            pointers=tuple(call.pointers for call in calls) if may_act else (),
        )
        at_full_rate = begin
        if pipe.left < 1.0:
            at_full_rate = replace(begin, pipe_cycles=round(pipe_cycles * pipe.left, _PIPE_DIGITS), left=1.0)
        try:
            executions = self.execution(operation, at_full_rate, calls, may_act=may_act)
            if executions is not None and may_act and executions[0].sent is None:
                # The device's words do not matter, and links may change.
                operation.acts = may_act = False
                operation.executions.clear()
                executions = self.execution(operation, at_full_rate, calls)
        except SimulationError:
            operation.closed = False
            return None
        if executions is None or _makes_known_results(calls, executions):
            return None
        if may_act:
            operation.acts, follows_links = True, False
            if not dma.are_zero(executions[0].shared_flags, time):
                return None
        if not pipe.can_repeat(time, executions[0].dma.pipe, across_periods=others is not None):
            return None
        lookup = _Lookup(self, operation, calls, dma, begin, executions)
        if follows_links:
            lookup.follow_links()
        return tuple(lookup.outcome(number) for number in range(len(calls)))

    def execution(
        self,
        operation: _Operation,
        begin: _Begin,
        calls: Sequence[CoreCall],
        changes: LinkChanges = (),
        *,
        may_act: bool = False,
    ) -> tuple[Execution, ...] | None:
        """Return an execution alone, perhaps one of before; None if it is not and no more are kept."""
        executions = operation.executions.get((begin, changes))
        if executions is None:
            if len(operation.executions) >= _MAX_KEPT:
                return None
            executions = self.execute(operation, calls, begin.pipe(self._machine), changes, may_act=may_act)
            operation.executions[begin, changes] = executions
            operation.new_changes += bool(changes)
        else:
            operation.known_changes += bool(changes)
        return executions

    def execute(
        self,
        operation: _Operation,
        calls: Sequence[CoreCall],
        pipe: HbmPipe,
        changes: LinkChanges,
        *,
        may_act: bool = False,
    ) -> tuple[Execution, ...]:
        """Execute a call alone."""
        translation, others = operation.translation, operation.others
        return execute_alone(translation, self._machine, calls, pipe, self._spans, others, changes, may_act=may_act)


class _Lookup:
    """A call of all cores of a device that is looked up."""

    def __init__(
        self,
        repeated: RepeatedCalls,
        operation: _Operation,
        calls: Sequence[CoreCall],
        dma: DmaEngine,
        begin: _Begin,
        at_full_rate: tuple[Execution, ...],
    ) -> None:
        self._repeated, self._operation, self._calls, self._dma = repeated, operation, calls, dma
        self._time, self._begin = calls[0].time, begin
        self._at_full_rate = at_full_rate
        self._pipe: HbmPipe | None = None  # as it is when the call begins
        self._links = Waited()
        self._changes: list[tuple[float, float]] = []  # since the begin: time, and the share of the rate left
        self._ended = 0

    def follow_links(self) -> None:
        """Record the changes of links from now on."""
        self._pipe = self._dma.pipe.from_time(self._time)
        self._dma.pipe.links_changed = self._changed

    def _changed(self, time: float, left: float) -> None:
        after = time - self._time
        if self._changes and self._changes[-1][0] == after:
            self._changes.pop()
        self._changes.append((after, left))
        self._dma.schedule.changed(self._links)

    def outcome(self, number: int) -> Outcome:
        """Return the execution of one core's call, once it ends."""
        executions = self._at_full_rate
        if self._pipe is not None:
            schedule = self._dma.schedule
            # Links that leave less of the rate only delay the end.
            yield self._end(executions[number])
            changes = self._changes_before(executions[number])
            executions = self._with_links(changes)
            while (end := self._end(executions[number])) > schedule.now:
                schedule.wait_for(self._links, end)
                yield None
                yield math.ceil(schedule.now)  # after all changes of this time
                if changes != (changes := self._changes_before(executions[number])):
                    executions = self._with_links(changes)
        if not self._ended:
            self._dma.pipe.repeat(self._time, executions[0].dma.pipe)
            if executions[0].sent is not None:
                assert self._operation.others is not None
                self._operation.others.repeat(self._time, executions[0].sent)
        self._ended += 1
        if self._ended == len(self._calls):
            self._dma.pipe.links_changed = None
        self._calls[number].iterations.spend(executions[number].iterations)
        return executions[number]

    def _end(self, execution: Execution) -> int:
        return self._time + execution.begin_cycles + execution.cycles

    def _changes_before(self, execution: Execution) -> LinkChanges:
        end = execution.begin_cycles + execution.cycles
        return tuple(change for change in self._changes if change[0] < end)

    def _with_links(self, changes: LinkChanges) -> tuple[Execution, ...]:
        repeated, operation, calls = self._repeated, self._operation, self._calls
        executions = repeated.execution(operation, self._begin, calls, changes)
        assert self._pipe is not None
        if executions is None or not self._pipe.can_repeat(0, executions[0].dma.pipe, across_periods=True):
            return repeated.execute(operation, calls, copy(self._pipe), changes)
        return executions


def _makes_known_results(calls: Sequence[CoreCall], executions: Sequence[Execution]) -> bool:
    """True if what is known of inputs may be known of results."""
    passes_on = any(execution.memory.passes_inputs_on for execution in executions)
    return passes_on and any(call.knows_inputs() for call in calls)


def _may_be_closed(translation: Translation) -> bool:
    """True if its results are in memory that only copies and vectors write."""
    return all(operand.is_input or operand.space in ("hbm", "vmem", "cmem") for operand in translation.operands)
