"""Execute an operation alone: from cycle 0, with flags and memory of its own, and everything it is handed unknown.

If it ends, its control flow depends on nothing but the counts of its flags and the pipe to HBM. A collective of a
device that represents all of a slice is executed with idle links of its own, and knows which device it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

from systolic.chips import MachineModel
from systolic.simulator.core_parts import Activation, CoreParts, DeviceParts
from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.loop_timer import LoopTime, LoopTimer
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.hardware.mxu import Mxus
from systolic.simulator.hardware.sync_flags import FlagKeys, OwnFlags
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.mailboxes import Mailboxes
from systolic.simulator.meeting import Meeting
from systolic.simulator.other_devices import OtherDevices, RemoteTarget
from systolic.simulator.schedule import Schedule
from systolic.simulator.sequencer import Sequencer
from systolic.simulator.translating.translate import Translation

# Not one that is computed, for which a zero may count.
_HANDED_OVER = Unknown("what an operation is handed", computed=False)
_MAX_INPUT_BUFFERS = 64  # of one operation; those seen have two or three for each operand

# Times, counted from the first core's begin, from which on links leave a share of the rate of HBM.
LinkChanges = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution of an operation alone by one core; times count from the first core's begin."""

    begin_cycles: int  # after the device's first core begins
    cycles: int
    iterations: int  # of its loops
    block_counts: tuple[int, ...]
    loop: LoopTime | None
    dma: DmaEngine  # of the device
    mxus: Mxus
    memory: OwnMemory
    timeline: Timeline | None
    sent: OtherDevices | None = None  # the other devices that it acted on; None: it did not
    shared_flags: FlagKeys = ()  # not its own, which count zero when it begins and when it ends


class OwnMemory(Memory):
    """Memory in which only the operation's own stores and copies are known.

    Args:
      identity: other known words of scalar memory, which never change.
    """

    def __init__(self, iterations: IterationBudget, identity: Mapping[int, Any] = MappingProxyType({})) -> None:
        super().__init__(lambda address: identity.get(address, _HANDED_OVER), iterations)
        self.overwritten: dict[tuple[str, int, int], None] = {}  # space, first word, words
        self.passes_inputs_on = False  # copies may have brought inputs to results, without any computation
        self._inputs: dict[tuple[str, int, int], None] = {}  # as of `overwritten`: where copies have brought inputs

    def hold_input(self, space: str, first: int, words: int) -> None:
        """Record the place of an input that is known."""
        self._inputs[space, first, words] = None

    def copy(self, source: str, begin: int, destination: str, first: int, size: int, **options: Any) -> None:
        """Record what a copy overwrites; see `Memory.copy`."""
        if source == "smem":
            _refuse()  # known words, which may be meant for another core
        if not any(isinstance(word, Unknown) for word in (begin, first, size)):
            if destination != "smem" and any(self._knows(source, at) for at in _values(begin)):
                _refuse()  # words of a table, which may be known of results
            super().copy(source, begin, destination, first, size, **options)
        if destination == "smem":
            return
        known_places: list[tuple[str, int, int]] = []
        if not any(isinstance(word, Unknown) for word in (first, size)):
            known_places = [(destination, place, max(_values(size))) for place in _values(first)]
        self.overwritten.update(dict.fromkeys(known_places))
        if not self.passes_inputs_on and any(self._may_be_input(source, at, size) for at in _values(begin)):
            # HBM is shared by the cores: another one may copy on what this one has brought there.
            if known_places and destination != "hbm" and len(self._inputs) < _MAX_INPUT_BUFFERS:
                self._inputs.update(dict.fromkeys(known_places))
            else:
                self.passes_inputs_on = True

    def _may_be_input(self, space: str, begin: int, size: int) -> bool:
        """True if some of these words are inputs, which lie at addresses that are not known, or copies of them."""
        if any(isinstance(word, Unknown) for word in (begin, size)):
            return True
        end = begin + max(_values(size))
        return any(buffer == space and first < end and begin < first + words for buffer, first, words in self._inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCall:
    """A core's call of an operation."""

    core: int
    time: int
    knows_inputs: Callable[[], bool]  # contents of some input are known; to be asked at the time of the call
    mxus: Callable[[Timeline | None], Mxus]  # makes matrix units in which nothing is under way
    # Makes memory in which only the words are known that say which device it is.
    memory: Callable[[IterationBudget], OwnMemory]
    pointers: tuple[tuple[str, int], ...]  # registers with pointers to tables in that memory, and to VMEM
    flags: OwnFlags  # counts of the operation's own flags
    iterations: IterationBudget


def execute_alone(
    translation: Translation,
    machine: MachineModel,
    calls: Sequence[CoreCall],
    pipe: HbmPipe,
    spans: int,
    others: OtherDevices | None = None,
    link_changes: LinkChanges = (),
    *,
    may_act: bool = False,
) -> tuple[Execution, ...]:
    """Execute a call of an operation alone; raise SimulationError if it depends on something else.

    Args:
      calls: of all cores of the device, in the order in which they act if they do at the same time.
      pipe: to HBM, as it is when the first core begins, which is time 0.
      others: the slice's other devices.
      link_changes: of the share of its rate that links leave.
      may_act: it may act on the other devices, which this one represents; their links are idle.
    """
    schedule, count = Schedule(patient=may_act), len(calls)
    for change_cycles, left in link_changes:
        schedule.at(change_cycles, partial(pipe.leave, change_cycles, left))
    timelines = [Timeline(spans) for _ in calls] if spans else None  # by core
    dma = DmaEngine(machine, count, timelines, schedule, pipe=pipe)
    mailboxes = Mailboxes(count, schedule)
    nobody: Any = NoOthers(others)
    budgets = {call.core: IterationBudget(call.iterations.left) for call in calls}
    memories = {
        call.core: call.memory(budgets[call.core]) if may_act else OwnMemory(budgets[call.core]) for call in calls
    }
    around = others.alone(schedule, dma, memories) if may_act and others is not None else nobody
    device = DeviceParts(
        dma=dma,
        mailboxes=mailboxes,
        sparse_cores=nobody,
        barna_cores=nobody,
        meeting=Meeting(count),
        others=around,
    )
    started: list[tuple[CoreCall, int, Sequencer, OwnMemory, Mxus, IterationBudget]] = []
    for call in calls:
        begin = call.time - calls[0].time
        timeline = timelines[call.core] if timelines else None
        budget, memory, mxus = budgets[call.core], memories[call.core], call.mxus(timeline)
        for flag, amount in call.flags:
            dma.set(call.core, translation.name, flag, amount)
        parts = CoreParts(
            device=device,
            number=call.core,
            # Of a chip whose devices have several cores no other device's cores have other numbers.
            named_words={"core id": call.core} if count > 1 else {},
            model=machine,
            memory=memory,
            iterations=budget,
            parameter=_refuse,
            call=_refuse,
        )
        activation = Activation(
            translation=translation,
            mxus=mxus,
            timer=LoopTimer(translation.name, begin, timeline),
            passed={
                **{operand.register: _HANDED_OVER for operand in translation.operands},
                **(dict(call.pointers) if may_act else {}),
            },
        )
        sequencer = Sequencer(parts, activation)
        started.append((call, begin, sequencer, memory, mxus, budget))
        schedule.start(begin, sequencer.run(begin), lambda sequencer=sequencer: sequencer.waits_for)
    ends = [int(end) for end in schedule.run()]  # DeadlockError: it waits for others
    shared_flags = dma.shared_flags(translation.name, range(count), max(ends))
    acted = may_act and around.has_acted
    if shared_flags is None or not mailboxes.are_empty or (shared_flags and not acted):
        _refuse()
    if acted and not around.is_idle_from(max(ends)):
        _refuse()
    executions = []
    for (call, begin, sequencer, memory, mxus, budget), end in zip(started, ends, strict=True):
        if dma.own_flags(call.core, translation.name, end) is None:
            _refuse()
        execution = Execution(
            begin_cycles=begin,
            cycles=end - begin,
            iterations=call.iterations.left - budget.left,
            block_counts=tuple(sequencer.counts),
            loop=sequencer.timer.longest(begin, end),
            dma=dma,
            mxus=mxus,
            memory=memory,
            timeline=timelines[call.core] if timelines else None,
            sent=around if acted else None,
            shared_flags=shared_flags,
        )
        executions.append(execution)
    return tuple(executions)


def _values(word: Any) -> Iterable[Any]:
    """Return the different values of a word on all devices."""
    return dict.fromkeys(word.values) if type(word) is Lanes else (word,)


def _refuse(*_: object) -> NoReturn:
    raise SimulationError("an operation that depends on others")


class NoOthers:
    """Placeholder for other devices, SparseCores and BarnaCores, on which an operation executed alone does not act."""

    def __init__(self, others: OtherDevices | None) -> None:
        self._others = others

    def target(self, word: Any, flag: Any) -> RemoteTarget:
        """Return the target of a copy that names it, which has to be this device."""
        if self._others is None or any(isinstance(part, Unknown) for part in (word, flag)):
            _refuse()
        target = self._others.target(word, flag)
        return _refuse() if target.remote else target

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()
