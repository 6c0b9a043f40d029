"""What a kernel does in TPU interpret mode, step by step: where a fault is, and what differs first between two runs."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.compat import swap_past_the_end
from systolic.compiler import written_at

FIRST_BUFFER = 100  # the interpreter counts the buffers of a kernel from here
FIRST_SEMAPHORE = 2000  # and its semaphores from here
# At which of its arguments a function of the interpreter has the buffer that it reads, or the semaphores that it uses.
_BUFFER = 4
_SEMAPHORES = {"dma_start": (9, 10), "dma_wait": (3,), "semaphore_signal": (3,), "semaphore_wait": (3,)}
# What is read: the source of the read, the number of the buffer, and a checksum of its contents.
_Read = tuple[Any, int, int]
_Step = tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Something that a kernel does at one step of its grid.

    Attributes:
      where: the line that asks for it, "file.py:12 in name"; "" for what Pallas does by itself.
      step: the place in the grid; None of a kernel without a grid, and outside of its steps.
      number: of the buffer, or of the semaphore, among the interpreter's, from 0; None where there is none.
      out_of_scope: whether it is an access to memory whose scope has ended.
      device: of a mesh, by its number.
      other: the device that it is about, by its number, where that is another one.
    """

    where: str = ""
    step: _Step = None
    number: int | None = None
    out_of_scope: bool = False
    device: int = 0
    other: int | None = None

    @property
    def at_step(self) -> str:
        """The step in words, with a blank before it: " at step (1, 0)"; "" where there is none."""
        if not self.step:
            return ""
        return f" at step {self.step[0] if len(self.step) == 1 else self.step}"


@dataclass(slots=True)
class Entering:
    """Which devices know of which others that these have entered the kernel that they run.

    A device knows of those whose signals, or copies, it has waited for, and of what these knew. What a semaphore was
    told counts as known as soon as anything is waited for at it: a device may know less than is said here, never more.

    Attributes:
      early: copies to a device of which the one that begins it cannot know that it has entered the kernel.
    """

    early: list[Access] = field(default_factory=list)
    _knows: dict[int, set[int]] = field(default_factory=dict)
    _told: dict[tuple[int, int], set[int]] = field(default_factory=dict)  # by device and semaphore
    _kernel: int = 0

    def begins(self, device: int, kernel: int) -> None:
        """A device enters its so many-th kernel; none does before all have left the one before."""
        if kernel > self._kernel:
            self._kernel = kernel
            self._knows.clear()
            self._told.clear()
        self._knows[device] = {device}

    def signalled(self, device: int, to: int, semaphore: int) -> None:
        """A device signals a semaphore of another one, or of its own."""
        self._told.setdefault((to, semaphore), set()).update(self._knows.get(device, ()))

    def copied(self, device: int, to: int, semaphore: int) -> bool:
        """A device begins a copy to another one; says whether it knows that this one has entered the kernel."""
        known = device == to or to in self._knows.get(device, ())
        self.signalled(device, to, semaphore)
        return known

    def waited(self, device: int, semaphore: int) -> None:
        """A wait for a semaphore has ended."""
        self._knows.setdefault(device, {device}).update(self._told.get((device, semaphore), ()))


@dataclass(slots=True)
class Watch:
    """What was done in one run of a function.

    Attributes:
      devices: on how many it runs.
      failed: what raised first; None: nothing did.
      reads: of each kernel on each device, and each of its steps, in order.
      signals: of each semaphore, by its number, the last one.
      waits: those that have not ended, by thread.
      acts: how many things were done so far.
      entering: what is known of other devices where a mesh has several.
    """

    devices: int = 1
    failed: Access | None = None
    reads: dict[tuple[int, int, _Step], list[_Read]] = field(default_factory=dict)
    signals: dict[int, Access] = field(default_factory=dict)
    waits: dict[int, Access] = field(default_factory=dict)
    acts: int = 0
    entering: Entering = field(default_factory=Entering)
    _steps: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by core
    _kernels: Counter[int] = field(default_factory=Counter)  # by device
    _gone: set[tuple[int, int]] = field(default_factory=set)  # devices and buffers whose scope has ended

    def at_grid_point(self, token: Any, point: Sequence[Any], core: Any) -> Any:
        """Takes note of the step that a core begins; of several devices it is not said which one's it is."""
        if self.devices == 1:
            self._steps[int(core)] = tuple(int(each) for each in point)
        return token

    def called(self, name: str, source: Any, function: Callable[..., Any], *given: Any) -> Any:
        """Calls a function of the interpreter's; see `compat.watched_interpreter`."""
        args = list[Any](given)
        self.acts += 1
        device = int(args[1]) if len(args) > 1 and np.ndim(args[1]) == 0 else 0
        if name == "_initialize_shared_memory":
            self._kernels[device] += 1
            self._steps.clear()
            self._gone = {each for each in self._gone if each[0] != device}
            self.entering.begins(device, self._kernels[device])
        core = args[2] if len(args) > 2 else None
        step = self._steps.get(int(core)) if core is not None else None
        thread = threading.get_ident()
        for at in _SEMAPHORES.get(name, ()):
            if args[at] is not None:
                number = int(args[at]) - FIRST_SEMAPHORE
                kept, key = (self.waits, thread) if name.endswith("wait") else (self.signals, number)
                kept[key] = Access(where=_line(source), step=step, number=number, device=device)
        if self.devices > 1:
            self._between(name, source, args, device)
        try:
            found = function(*args)
        except Exception as error:
            self.failed = self.failed or self._failure(error, source, step, device)
            if text := swap_past_the_end(error):
                raise ValueError(text) from error
            raise
        self.acts += 1
        self.waits.pop(thread, None)
        if self.devices > 1 and name in ("dma_wait", "semaphore_wait"):
            self.entering.waited(device, int(args[3]))
        if name == "_deallocate_buffer":
            self._gone.add((device, int(args[_BUFFER])))
        if name == "get" and source is not None:
            contents = zlib.crc32(np.ascontiguousarray(found[1]).tobytes())
            self.reads.setdefault((self._kernels[device], device, step), []).append(
                (source, int(args[_BUFFER]), contents)
            )
        return found

    def _between(self, name: str, source: Any, args: Sequence[Any], device: int) -> None:
        """Takes note of what a device says to others, and of copies to those of which it cannot know that they listen."""
        if name == "semaphore_signal":
            self.entering.signalled(device, device if args[5] is None else int(args[5]), int(args[3]))
        elif name == "dma_start":
            to = device if args[11] is None else int(args[11])
            if not self.entering.copied(device, to, int(args[9])):
                self.entering.early.append(Access(where=_line(source), device=device, other=to))
            if args[10] is not None:
                self.entering.signalled(device, device, int(args[10]))

    def _failure(self, error: Exception, source: Any, step: _Step, device: int) -> Access:
        # A copy may be done where it is waited for: the line is that of the copy, which the inner call has.
        entry = error.__traceback__
        while entry is not None:
            source = entry.tb_frame.f_locals.get("source_info") or source
            entry = entry.tb_next
        key = error.args[0] if isinstance(error, KeyError) and error.args else None
        gone = isinstance(key, tuple) and (device, key[1]) in self._gone
        return Access(where=_line(source), step=step, out_of_scope=gone, device=device)


def first_difference(one: Watch, other: Watch) -> Access | None:
    """The first read of one run that gave something else in the other; None where none is known.

    Steps are compared with themselves, in whatever order they came.
    """
    for (kernel, device, step), reads in one.reads.items():
        same_step = other.reads.get((kernel, device, step), [])
        for (source, number, contents), (_, same, others) in zip(reads, same_step, strict=False):
            if number != same:
                break  # they went different ways
            if contents != others:
                return Access(where=_line(source), step=step, number=number - FIRST_BUFFER, device=device)
    return None


@dataclass(frozen=True, slots=True)
class _At:
    """A place in the source in the form in which an equation has one."""

    source_info: Any


def _line(source: Any) -> str:
    return written_at(_At(source)) if source is not None else ""
