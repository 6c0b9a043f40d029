"""Limits of a job's use of the machine, which its parent watches.

The time limit counts CPU time, so that a busy machine refuses nothing that an idle one compiles. A job that waits uses
none, so a limit of wall-clock time, ten times as long, ends it. Memory is the resident memory of the worker and its
children. Their address space tells nothing: libtpu reserves 2 GB for a compilation that touches 0.4 GB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PROCESSES = Path("/proc")
# Fields of /proc/PID/stat, counted from the first one after the command's name.
_CPU_FIELDS = slice(11, 15)  # user and system time of the process, and of the children that it has waited for
_RESIDENT_PAGES_FIELD = 21

WALL_TIMES = 10  # wall-clock limit over time limit

LimitKind = Literal["cpu", "wall", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a job."""

    # CPU time of the worker and its children, seconds; without /proc, wall-clock time.
    cpu_s: float
    wall_s: float  # wall-clock time, seconds
    memory_bytes: int | None  # resident memory of the worker and its children; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """The resources that a group of processes has used so far."""

    cpu_s: float  # CPU time, seconds
    # Their memory now. Pages that processes share count for each of them.
    resident_bytes: int


class LimitReachedError(Exception):
    """A job has used more than it may.

    Attributes:
        kind: the kind of limit.
        limit: seconds or bytes.
        used_cpu_s: CPU time of the job in seconds; None without /proc.
        used_bytes: resident memory now; 0 without /proc.
    """

    def __init__(self, kind: LimitKind, limit: float, use: GroupUse | None) -> None:
        super().__init__(kind, limit)
        self.kind: LimitKind = kind
        self.limit = limit
        self.used_cpu_s = None if use is None else use.cpu_s
        self.used_bytes = 0 if use is None else use.resident_bytes


class Watch:
    """Compare the use of a worker's group of processes, from now on, with the limits of its job."""

    def __init__(self, group: int, limits: Limits) -> None:
        self._group = group
        self._limits = limits
        self._started = time.monotonic()
        before = group_use(group)
        self._cpu_before_s = 0.0 if before is None else before.cpu_s

    def check(self) -> None:
        """Raise `LimitReachedError` if the job is past one of its limits."""
        limits, in_use = self._limits, group_use(self._group)
        waited_s = time.monotonic() - self._started
        if in_use is None:
            if waited_s > limits.cpu_s:
                raise LimitReachedError("wall", limits.cpu_s, None)
            return
        use = GroupUse(cpu_s=max(0.0, in_use.cpu_s - self._cpu_before_s), resident_bytes=in_use.resident_bytes)
        if limits.memory_bytes is not None and use.resident_bytes > limits.memory_bytes:
            raise LimitReachedError("memory", limits.memory_bytes, use)
        if use.cpu_s > limits.cpu_s:
            raise LimitReachedError("cpu", limits.cpu_s, use)
        if waited_s > limits.wall_s:
            raise LimitReachedError("wall", limits.wall_s, use)


def group_use(group: int) -> GroupUse | None:
    """Return the use of a group's living processes; None without /proc, or if the group has ended."""
    cpu_ticks = pages = processes = 0
    for fields in _stat_fields(group):
        processes += 1
        cpu_ticks += sum(map(int, fields[_CPU_FIELDS]))
        pages += int(fields[_RESIDENT_PAGES_FIELD])
    if not processes:
        return None
    return GroupUse(cpu_s=cpu_ticks / os.sysconf("SC_CLK_TCK"), resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"))


def _stat_fields(group: int) -> Iterator[list[str]]:
    with suppress(OSError):
        for folder in _PROCESSES.iterdir():
            # A process may end between any two of these calls.
            with suppress(OSError):
                if folder.name.isdecimal() and os.getpgid(int(folder.name)) == group:
                    # The command's name, in brackets, may hold spaces and brackets.
                    yield (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
