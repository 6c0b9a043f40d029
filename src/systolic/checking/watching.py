"""What a kernel does in TPU interpret mode, step by step: where a fault is, and what differs first between two runs."""

from __future__ import annotations

import threading
import zlib
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
    """

    where: str = ""
    step: _Step = None
    number: int | None = None
    out_of_scope: bool = False

    @property
    def at_step(self) -> str:
        """The step in words, with a blank before it: " at step (1, 0)"; "" where there is none."""
        if not self.step:
            return ""
        return f" at step {self.step[0] if len(self.step) == 1 else self.step}"


@dataclass(slots=True)
class Watch:
    """What was done in one run of a function.

    Attributes:
      failed: what raised first; None: nothing did.
      reads: of each kernel and step, in order.
      signals: of each semaphore, by its number, the last one.
      waits: those that have not ended, by thread.
    """

    failed: Access | None = None
    reads: dict[tuple[int, _Step], list[_Read]] = field(default_factory=dict)
    signals: dict[int, Access] = field(default_factory=dict)
    waits: dict[int, Access] = field(default_factory=dict)
    _steps: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by core
    _kernels: int = 0
    _gone: set[int] = field(default_factory=set)  # buffers whose scope has ended

    def at_grid_point(self, token: Any, point: Sequence[Any], core: Any) -> Any:
        """Takes note of the step that a core begins."""
        self._steps[int(core)] = tuple(int(each) for each in point)
        return token

    def called(self, name: str, source: Any, function: Callable[..., Any], *given: Any) -> Any:
        """Calls a function of the interpreter's; see `compat.watched_interpreter`."""
        args = list[Any](given)
        if name == "_initialize_shared_memory":
            self._kernels += 1
            self._steps.clear()
            self._gone.clear()
        core = args[2] if len(args) > 2 else None
        step = self._steps.get(int(core)) if core is not None else None
        thread = threading.get_ident()
        for at in _SEMAPHORES.get(name, ()):
            if args[at] is not None:
                number = int(args[at]) - FIRST_SEMAPHORE
                kept, key = (self.waits, thread) if name.endswith("wait") else (self.signals, number)
                kept[key] = Access(where=_line(source), step=step, number=number)
        try:
            found = function(*args)
        except Exception as error:
            self.failed = self.failed or self._failure(error, source, step)
            if text := swap_past_the_end(error):
                raise ValueError(text) from error
            raise
        self.waits.pop(thread, None)
        if name == "_deallocate_buffer":
            self._gone.add(int(args[_BUFFER]))
        if name == "get" and source is not None:
            contents = zlib.crc32(np.ascontiguousarray(found[1]).tobytes())
            self.reads.setdefault((self._kernels, step), []).append((source, int(args[_BUFFER]), contents))
        return found

    def _failure(self, error: Exception, source: Any, step: _Step) -> Access:
        # A copy may be done where it is waited for: the line is that of the copy, which the inner call has.
        entry = error.__traceback__
        while entry is not None:
            source = entry.tb_frame.f_locals.get("source_info") or source
            entry = entry.tb_next
        key = error.args[0] if isinstance(error, KeyError) and error.args else None
        return Access(where=_line(source), step=step, out_of_scope=isinstance(key, tuple) and key[1] in self._gone)


def first_difference(one: Watch, other: Watch) -> Access | None:
    """The first read of one run that gave something else in the other; None where none is known.

    Steps are compared with themselves, in whatever order they came.
    """
    for (kernel, step), reads in one.reads.items():
        same_step = other.reads.get((kernel, step), [])
        for (source, number, contents), (_, same, others) in zip(reads, same_step, strict=False):
            if number != same:
                break  # they went different ways
            if contents != others:
                return Access(where=_line(source), step=step, number=number - FIRST_BUFFER)
    return None


@dataclass(frozen=True, slots=True)
class _At:
    """A place in the source in the form in which an equation has one."""

    source_info: Any


def _line(source: Any) -> str:
    return written_at(_At(source)) if source is not None else ""
