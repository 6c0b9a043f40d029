"""Read the programs in a file of JAX's profiler, in a worker: the reader is C++, and the file may be damaged."""

from __future__ import annotations

import gzip
import re
import statistics
import warnings
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from systolic.simulator.reading.operation_kinds import operation_category
from systolic.support.printable import printable
from systolic.support.regular_file import open_regular
from systolic.timing.xplane_names import CATEGORY, DEVICE_PLANE, DEVICE_TYPE, MODULES_LINE, OPS_LINE, PROVENANCE

MAX_BYTES = 2**31 - 1  # of one message; protobuf reads no more
_MAGIC_OF_GZIP = b"\x1f\x8b"
_MAX_NAME = 500  # characters; an operation's name is followed by its whole text
_INSTRUCTION = re.compile(r"%?([^\s=%]+)(?: = (?:\(.*?\)|\S+) ([\w\-]+)\((.*))?", re.ASCII | re.DOTALL)
_ROUNDED_NS = 1.0  # rounding of the begin of an event
_DEVICE = re.compile(rf"{re.escape(DEVICE_PLANE)}\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOp:
    """One operation of a traced program. `time_us` is per execution, without operations inside it.

    `category` is XProf's `hlo_category`, or the category in the operation's text; "" without both.
    """

    name: str
    category: str
    calls: float  # per execution; a median, like `time_us`
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModule:
    """One program on one device: the times of its executions, and its operations in the order of their first calls."""

    name: str  # "jit_f(1234)"
    device: str  # "/device:TPU:0"
    device_type: str  # "TPU v6 Lite"; "" if the trace does not say
    is_simulated: bool  # a trace that `systolic` wrote
    times_us: tuple[float, ...]
    ops: tuple[TracedOp, ...]

    @property
    def time_us(self) -> float:
        """Median of the executions."""
        return statistics.median(self.times_us)

    @property
    def base_name(self) -> str:
        """The name without the program's number."""
        return self.name.partition("(")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """The programs on TPUs in a profile, and the names of all its planes."""

    planes: tuple[str, ...]
    modules: tuple[TracedModule, ...]


class UnreadableTraceError(Exception):
    """The file is not a profile; the text says what is wrong with it."""


def read_modules(path: Path) -> DeviceTrace:
    """Read one file of a profile.

    Raises:
      OSError: it cannot be read.
      UnreadableTraceError: it is not an XSpace.
    """
    from jax.profiler import ProfileData

    try:
        profile = ProfileData.from_serialized_xspace(_contents(path))
        planes, modules = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # jaxlib's iterators cause one on Python 3.13
            for plane in profile.planes:
                planes.append(_shown(plane.name))
                if _DEVICE.fullmatch(plane.name):
                    modules += _modules(plane)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise UnreadableTraceError(f"not an XSpace, or damaged ({printable(str(error))[:100]})") from error
    return DeviceTrace(planes=tuple(planes), modules=tuple(modules))


def _contents(path: Path) -> bytes:
    with open_regular(path) as file:
        is_gzip = file.read(len(_MAGIC_OF_GZIP)) == _MAGIC_OF_GZIP
        file.seek(0)
        try:
            contents = (gzip.GzipFile(fileobj=file) if is_gzip else file).read(MAX_BYTES + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UnreadableTraceError(f"damaged gzip: {printable(str(error))}") from error
    if not contents:
        raise UnreadableTraceError("empty")
    if len(contents) > MAX_BYTES:
        raise UnreadableTraceError("larger than 2 GiB, which protobuf does not read: trace fewer steps")
    return contents


@dataclass(slots=True)
class _Event:
    """An event of a line, in nanoseconds."""

    name: str
    begin_ns: float
    end_ns: float
    category: str
    own_ns: float  # without the events inside it


def _modules(plane: Any) -> Iterable[TracedModule]:
    stats = {name: value for name, value in plane.stats if isinstance(name, str)}
    lines: dict[str, list[_Event]] = {MODULES_LINE: [], OPS_LINE: []}
    for line in plane.lines:
        if line.name in lines:
            lines[line.name] += _events(line)
    runs = [run for run in lines[MODULES_LINE] if run.end_ns > run.begin_ns]
    by_run: list[list[_Event]] = [[] for _ in runs]
    begins = [run.begin_ns for run in runs]
    for op in lines[OPS_LINE]:
        at = bisect_right(begins, op.begin_ns) - 1
        if at >= 0 and op.begin_ns < runs[at].end_ns:
            by_run[at].append(op)
    by_module: dict[str, list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        by_module[_shown(run.name)].append(number)
    for name, numbers in by_module.items():
        yield TracedModule(
            name=name,
            device=plane.name,
            device_type=_shown(str(stats.get(DEVICE_TYPE, ""))),
            is_simulated=PROVENANCE in stats,
            times_us=tuple((runs[number].end_ns - runs[number].begin_ns) / 1e3 for number in numbers),
            ops=tuple(_ops([by_run[number] for number in numbers])),
        )


def _ops(executions: Sequence[Sequence[_Event]]) -> Iterable[TracedOp]:
    """Return the operations of a program; one that an execution does not have took no time in it."""
    names: dict[str, str] = {}  # by an operation's text
    calls: dict[str, dict[int, list[float]]] = {}
    categories: dict[str, str] = {}  # by name
    for number, events in enumerate(executions):
        for event in events:
            if event.name not in names:
                name, category = _name_and_category(event.name)
                names[event.name] = name
                categories.setdefault(name, _shown(event.category) or category)
            name = names[event.name]
            calls.setdefault(name, {}).setdefault(number, []).append(event.own_ns)
    for name, times in calls.items():
        absent = [0.0] * (len(executions) - len(times))
        yield TracedOp(
            name=name,
            category=categories[name],
            calls=statistics.median([*map(len, times.values()), *absent]),
            time_us=statistics.median([*map(sum, times.values()), *absent]) / 1e3,
        )


def _events(line: Any) -> list[_Event]:
    """Return the events of a line by their begin, a loop before what it contains."""
    events = []
    for event in line.events:
        stats = {name: value for name, value in event.stats if isinstance(name, str)}
        # `duration_ns` is whole nanoseconds; an operation may take ten.
        duration_ps = stats.get("device_duration_ps")
        length = duration_ps / 1e3 if isinstance(duration_ps, int) else event.duration_ns
        if length < 0:
            raise UnreadableTraceError(f"damaged: {_shown(event.name)} takes {length:g} ns")
        begin, category = event.start_ns, stats.get(CATEGORY)
        events.append(_Event(event.name, begin, begin + length, category if isinstance(category, str) else "", length))
    events.sort(key=lambda event: (event.begin_ns, -event.end_ns))
    around: list[_Event] = []
    for event in events:
        while around and not (event.begin_ns < around[-1].end_ns and event.end_ns <= around[-1].end_ns + _ROUNDED_NS):
            around.pop()
        if around:
            around[-1].own_ns -= event.end_ns - event.begin_ns
        around.append(event)
    return events


def _name_and_category(text: str) -> tuple[str, str]:
    """Return an operation's name, and the category that its text states: "%fusion.3 = f32[8] fusion(…), kind=kLoop"."""
    match = _INSTRUCTION.match(text)
    if match is None:
        return _shown(text), ""
    name, opcode, rest = match.groups()
    return _shown(name), operation_category(opcode, rest) if opcode else ""


def _shown(text: str) -> str:
    return printable(text)[:_MAX_NAME]
