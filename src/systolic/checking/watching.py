"""Record a kernel's accesses in TPU interpret mode, to locate faults and the first difference between two runs."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.checking.access import Access, Entering, Step, line_of
from systolic.checking.windows import Windows
from systolic.compat import swap_past_the_end

FIRST_BUFFER = 100  # the interpreter numbers the buffers of a kernel from here
FIRST_SEMAPHORE = 2000  # and its semaphores from here
# Positions of the buffer that is read, and of semaphores, among the arguments of the interpreter's functions.
_BUFFER = 4
_SEMAPHORES = {"dma_start": (9, 10), "dma_wait": (3,), "semaphore_signal": (3,), "semaphore_wait": (3,)}
# One read: its source line, the number of the buffer, and a checksum of the contents.
_Read = tuple[Any, int, int]


@dataclass(slots=True)
class Watch:
    """The accesses in one run of a function.

    Attributes:
      devices: number of devices.
      failed: the first access that raised an error; None: none did.
      reads: reads in order, by kernel, device and step.
      signals: the last signal of each semaphore, by the semaphore's number.
      waits: waits that have not ended, by thread.
      acts: number of accesses so far.
      entering: the state of other devices of the mesh.
      windows: the windows of blocks.
    """

    devices: int = 1
    failed: Access | None = None
    reads: dict[tuple[int, int, Step], list[_Read]] = field(default_factory=dict)
    signals: dict[int, Access] = field(default_factory=dict)
    waits: dict[int, Access] = field(default_factory=dict)
    acts: int = 0
    entering: Entering = field(default_factory=Entering)
    windows: Windows = field(default_factory=Windows)
    _steps: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by core
    _kernels: Counter[int] = field(default_factory=Counter)  # by device
    _gone: set[tuple[int, int]] = field(default_factory=set)  # devices and buffers whose scope has ended

    def at_grid_point(self, token: Any, point: Sequence[Any], core: Any) -> Any:
        """Record the step that a core begins; with several devices, interpret mode does not say which device it is."""
        if self.devices == 1:
            # NumPy, because a computation of JAX may wait forever for threads that wait here.
            self._steps[int(core)] = tuple(np.asarray(point).tolist())
            self.windows.at_step()
        return token

    def called(self, name: str, source: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the interpreter; see `compat.watched_interpreter`."""
        args = list[Any](arguments)
        self.acts += 1
        device = int(args[1]) if len(args) > 1 and np.ndim(args[1]) == 0 else 0
        if name == "_initialize_shared_memory":
            self._kernels[device] += 1
            self._steps.clear()
            self._gone = {access for access in self._gone if access[0] != device}
            self.entering.begins(device, self._kernels[device])
        core = args[2] if len(args) > 2 else None
        step = self._steps.get(int(core)) if core is not None else None
        thread = threading.get_ident()
        for at in _SEMAPHORES.get(name, ()):
            if args[at] is not None:
                number = int(args[at]) - FIRST_SEMAPHORE
                places, key = (self.waits, thread) if name.endswith("wait") else (self.signals, number)
                places[key] = Access(where=line_of(source), step=step, number=number, device=device)
        if self.devices > 1:
            self._between(name, source, args, device)
        try:
            result = self.windows.called(name, source, getattr(function, "keywords", {}), args, function)
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
            contents = zlib.crc32(np.ascontiguousarray(result[1]).tobytes())
            self.reads.setdefault((self._kernels[device], device, step), []).append(
                (source, int(args[_BUFFER]), contents)
            )
        return result

    def _between(self, name: str, source: Any, args: Sequence[Any], device: int) -> None:
        """Record signals to other devices, and copies to devices that may not have entered the kernel."""
        if name == "semaphore_signal":
            self.entering.signalled(device, device if args[5] is None else int(args[5]), int(args[3]))
        elif name == "dma_start":
            to = device if args[11] is None else int(args[11])
            if not self.entering.copied(device, to, int(args[9])):
                self.entering.early.append(Access(where=line_of(source), device=device, other=to))
            if args[10] is not None:
                self.entering.signalled(device, device, int(args[10]))

    def _failure(self, error: Exception, source: Any, step: Step, device: int) -> Access:
        # A copy may be done at its wait. The copy's line counts, which the inner call has.
        entry = error.__traceback__
        while entry is not None:
            source = entry.tb_frame.f_locals.get("source_info") or source
            entry = entry.tb_next
        key = error.args[0] if isinstance(error, KeyError) and error.args else None
        gone = isinstance(key, tuple) and (device, key[1]) in self._gone
        return Access(where=line_of(source), step=step, out_of_scope=gone, device=device)


def first_difference(first: Watch, other: Watch) -> Access | None:
    """Return the first read of one run that returned something else in the other; None if none is known.

    Each step is compared with itself, in whatever order the steps ran.
    """
    for (kernel, device, step), reads in first.reads.items():
        same_step = other.reads.get((kernel, device, step), [])
        for (source, number, contents), (_, same, others) in zip(reads, same_step, strict=False):
            if number != same:
                break  # the runs took different branches
            if contents != others:
                return Access(where=line_of(source), step=step, number=number - FIRST_BUFFER, device=device)
    return None
