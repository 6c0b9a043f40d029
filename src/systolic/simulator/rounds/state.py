"""The whole state of a simulation at one moment, as a list that can be compared with another moment's.

Everything that is reached from the programs, the devices and the links is read: `_READ`. Times count from a base; those
that are past are equivalent. An object of an unknown class has to be the same one in both moments.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, GeneratorType, MethodType
from typing import Any

from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.round_words import RoundWords
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.rounds.comparison import Contents, State, Time, Word
from systolic.simulator.rounds.sparse_state import SPARSE_READERS

# Attributes that are read, by class, and which of these are times or contain nothing but times.
_READ: Mapping[str, tuple[str, ...]] = {
    "DmaEngine": ("pipe", "_host_free", "_flags"),
    "HbmPipe": ("free", "_busy_from", "last", "_slow", "_links_bytes_per_cycle", "left", "links_changed"),
    "SyncFlags": ("_flags",),
    "_Arrival": ("name", "time", "call", "decided", "outcome"),
    "CoreCall": ("core", "time", "flags"),
    "_Lookup": ("_time", "_calls", "_begin", "_at_full_rate", "_links", "_changes", "_ended"),
    "_Begin": ("pipe_cycles", "rate", "left", "last", "cores", "represents", "pointers"),
    "Core": ("number", "_parts", "_mxus"),
    "CoreParts": ("device", "memory", "running"),
    "DeviceParts": ("dma", "mailboxes", "meeting", "sparse_cores", "barna_cores"),
    "BarnaCores": ("_cores",),
    "_BarnaCore": ("number", "flags", "space", "gather", "early"),
    "_Gather": ("core", "program", "shards", "to_send", "under_way", "time"),
    "Shard": ("barna_core", "forward", "chip", "label", "size_bytes", "space"),
    "SparseFlags": ("_flags",),
    "SparseCopy": (
        *("time", "launched", "flag", "source_flag", "source", "destination", "size_bytes", "amount", "target"),
    ),
    "Assumption": ("_known",),
    "_Buffer": ("first", "size", "contents", "skip", "brought"),
    "Device": ("number",),
    "Network": ("_traffic", "_changed"),
    "PatternNetwork": ("_active", "_since"),
    "_Traffic": ("streams", "busy_since"),
    "Stream": ("route", "copies", "begins", "passing", "left_bytes", "rate", "since"),
    "RemoteCopy": (
        *("program", "label", "flag", "source_flag", "granules", "source", "destination", "run_bytes", "target"),
    ),
    "RemoteTarget": ("device", "core", "remote", "away"),
    "RepeatedCalls": ("_operations",),
}
_TIMES = frozenset({"free", "_busy_from", "_host_free", "time", "_time", "busy_since", "_since", "since", "begins"}) | {
    "launched"
}
# Of suspended functions and of closures.
_TIME_VARIABLES = frozenset({"t", "time", "begin", "end", "turn"})
_FRAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Core._call", "Core._execution", "Sequencer.run"), ()),
    "Meeting.together": ("turn", "arrival"),
    "_Lookup.outcome": ("self", "changes"),
    "SparseCore._run": ("self", "program", "launch", "waits", "begin"),
    "SparseCore._task": ("tile", "address", "machine", "time"),
    "_located": (),
}
_COUNTS = re.compile(r"n\d+|iterations|limit|r|sequencer", re.ASCII)
_PAST = "past"
_EVENT = -1  # in place of a program
_MAX_CONTENTS = 64  # words; of longer contents the identity counts


def _has_ended(program: Iterator[Any]) -> bool:
    return isinstance(program, GeneratorType) and program.gi_frame is None


def state_of(schedule: Any, devices: Any, network: Any, repeated: Any, base: int, registers: tuple[Any, ...]) -> State:
    """Read the state at a moment when one program, which runs, is about to begin a round at `base`.

    Args:
      registers: of that program.
    """
    reader = _Reader(schedule, base)
    for value in registers:
        reader.word(value)
    reader.schedule()
    for part in (devices, network, repeated):
        reader.read(part)
    return reader.state


class _Reader:
    def __init__(self, schedule: Any, base: int) -> None:
        self.state: State = []
        self._schedule = schedule
        self._base = base
        # Nothing acts before; programs that wait go on from when they began to.
        waiting = (since for since, *_ in schedule._parked.values())
        # Of programs that have not ended: SparseCores begin others in each round.
        programs = (number for number, program in enumerate(schedule._programs) if not _has_ended(program))
        self._numbers = {program: number for number, program in enumerate(programs)}
        self._past = min(base, *(entry[0] for entry in schedule._entries), *waiting, base)
        self._seen: dict[int, int] = {}
        self._keep: list[Any] = []  # objects whose identities are in `_seen`

    def time(self, time: float) -> None:
        self.state.append(_PAST if time <= self._past else Time(time - self._base))

    def word(self, value: Any) -> None:
        if isinstance(value, list):
            self.state.append(len(value))
            for item in value:
                self.word(item)
        else:
            self.state.append(Word(value))

    def programs(self, numbers: Iterable[int]) -> None:
        """Read numbers of programs, or of no program."""
        alive = (self._numbers.get(number, _EVENT) for number in numbers if number in self._numbers or number < 0)
        self.state.append(tuple(alive))

    def schedule(self) -> None:
        """Read events and programs in the order in which they come."""
        schedule = self._schedule
        parked = schedule._parked
        for time, _, program, act in sorted(schedule._entries, key=lambda entry: entry[:2]):
            if callable(act):
                self.state.append(Time(time - self._base))
                self.read(act)
            elif program in self._numbers:
                self.state += (Time(time - self._base), self._numbers[program])
                self.state.append(not act or (program in parked and parked[program][1] == act))
        for program, (since, *_) in sorted(parked.items(), key=lambda entry: entry[1][1]):
            self.state += (self._numbers[program], Time(since - self._base))
        self.programs([schedule._running, *schedule._woken])
        for program in self._numbers:
            self._generator(schedule._programs[program])

    def read(self, value: Any, name: str = "") -> None:
        kind = type(value)
        if name == "contents":
            self.state.append(Contents(value))
        elif kind is int or kind is float:
            if name in _TIMES:
                self.time(value)
            else:
                self.state.append(value)
        elif kind in (tuple, list, deque):
            self.state.append(len(value))
            for item in value:
                self.read(item, name)
        elif kind is dict or kind is Counter:
            self.state.append(len(value))
            for key, item in value.items():
                self.read(key)
                self.read(item, name)
        elif kind in (bool, str, Unknown, Lanes, RoundWords) or value is None:
            self.state.append(value)
        elif id(value) in self._seen:
            self.state.append(self._seen[id(value)])
        else:
            self._seen[id(value)] = len(self._seen)
            self._keep.append(value)
            self._object(value, kind)

    def _object(self, value: Any, kind: type) -> None:
        name = kind.__name__
        special = _READERS.get(name)
        if name in _READ:
            self.state.append(name)
            for attribute in (*_READ[name], *(_READ["Network"] if name == "PatternNetwork" else ())):
                self.read(getattr(value, attribute), attribute)
        elif special is not None:
            special(self, value)
        elif kind is FunctionType:
            self.state.append(value.__code__)
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            variables = {variable: cell.cell_contents for variable, cell in cells}
            if "prediction" in variables:  # of a stream's end, which may be out of date
                variables["prediction"] -= variables["stream"].prediction
            for variable, content in variables.items():
                self._variable(variable, content)
        elif kind is MethodType:
            self.state.append(value.__func__)
            self.read(value.__self__)
        elif kind is partial:
            self.read(value.func)
            self.read(value.args)
        elif kind is GeneratorType:
            self._generator(value)
        else:
            self.state.append(value)

    def _variable(self, name: str, value: Any) -> None:
        if name in _TIME_VARIABLES:
            self.time(value)
        elif name == "words" and isinstance(value, list | tuple) and len(value) > _MAX_CONTENTS:
            self.state.append(value)
        else:
            self.read(value)

    def _generator(self, generator: Iterator[Any] | None) -> None:
        """Read a suspended program, and those that it has called."""
        while generator is not None:
            if not isinstance(generator, GeneratorType):
                self.state.append(generator)
                return
            if generator.gi_running or generator.gi_frame is None:
                self.state.append("running" if generator.gi_running else "ended")
                return
            frame = generator.gi_frame
            code, names = frame.f_code, frame.f_locals
            self.state += (code, frame.f_lasti)
            if code.co_filename.startswith("<"):  # a translated program
                for name, value in names.items():
                    if name == "t":
                        self.time(value)
                    elif name == "machine":
                        self.read(value)
                    elif not callable(value) and not _COUNTS.fullmatch(name):
                        self.word(value)
            else:
                for name in _FRAMES.get(code.co_qualname, tuple(names)):
                    if name in names:
                        self._variable(name, names[name])
            generator = generator.gi_yieldfrom

    # ---- objects that are read in another way ----

    def flag(self, flag: Any) -> None:
        landed = [amount for time, amount in flag.landing if time <= self._past]
        self.state += (flag.count + sum(landed), getattr(flag, "label", ""))
        self.programs(flag.waiting)
        for time, amount in flag.landing:
            if time > self._past:
                self.state += (Time(time - self._base), amount)

    def waited(self, waited: Any) -> None:
        self.programs(waited.waiting)

    def mailboxes(self, mailboxes: Any) -> None:
        for box in mailboxes._boxes:
            self.state.append(len(box))
            for time, value in box:
                self.time(time)
                self.word(value)
        self.read(mailboxes._waited)

    def meeting(self, meeting: Any) -> None:
        self.read(meeting._arrivals)
        self.read(meeting._expected)
        for name, (core, time) in meeting._before.items():
            self.state += (name, core)
            self.time(time)

    def sequencer(self, sequencer: Any) -> None:
        self.state.append(sequencer._translation)
        for value in sequencer._passed.values():
            self.word(value)
        self.read(sequencer._assumption)

    def operation(self, operation: Any) -> None:
        self.state += (operation.closed, operation.follows_links)  # executions only spare others

    def mxus(self, mxus: Any) -> None:
        self.state.append(mxus.state_at(self._past))

    def memory(self, memory: Any) -> None:
        self.words(memory.scalar_words)
        self.read(memory._buffers)

    def words(self, words: Mapping[int, Any]) -> None:
        """Read words by address or number."""
        for address in sorted(words):
            self.state.append(address)
            self.word(words[address])


_READERS: Mapping[str, Callable[[_Reader, Any], None]] = {
    "Flag": _Reader.flag,
    "Mailboxes": _Reader.mailboxes,
    "Meeting": _Reader.meeting,
    "Memory": _Reader.memory,
    "Mxus": _Reader.mxus,
    "Sequencer": _Reader.sequencer,
    "Waited": _Reader.waited,
    "_Operation": _Reader.operation,
    **SPARSE_READERS,
}
