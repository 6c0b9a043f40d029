"""Accesses of a kernel with their source lines, and the order that signals set between devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from systolic.compiler import written_at

Step = tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An access of a kernel at one step of its grid.

    Attributes:
      where: the line of the source, "file.py:12 in name"; "" for accesses of Pallas.
      step: the position in the grid; None without a grid, and outside the steps.
      number: the interpreter's number of the buffer or semaphore, from 0; None: there is none.
      out_of_scope: True if the scope of the memory has ended.
      device: number of the device in the mesh.
      other: number of the other device that takes part; None: there is none.
    """

    where: str = ""
    step: Step = None
    number: int | None = None
    out_of_scope: bool = False
    device: int = 0
    other: int | None = None

    @property
    def at_step(self) -> str:
        """The step as text after a space, " at step (1, 0)"; "" if there is no step."""
        if not self.step:
            return ""
        return f" at step {self.step[0] if len(self.step) == 1 else self.step}"


@dataclass(slots=True)
class Entering:
    """Knowledge of each device about others that have entered the kernel.

    A device knows of the devices whose signals or copies it has waited for, and everything that they knew. All signals
    of a semaphore count as known after any wait for it: a device may know less than this, but never more.

    Attributes:
      early: copies to devices that may not have entered the kernel yet, as far as the sender knows.
    """

    early: list[Access] = field(default_factory=list)
    _knows: dict[int, set[int]] = field(default_factory=dict)
    _told: dict[tuple[int, int], set[int]] = field(default_factory=dict)  # by device and semaphore
    _kernel: int = 0

    def begins(self, device: int, kernel: int) -> None:
        """Record that a device enters its next kernel; all devices leave a kernel before one enters the next."""
        if kernel > self._kernel:
            self._kernel = kernel
            self._knows.clear()
            self._told.clear()
        self._knows[device] = {device}

    def signalled(self, device: int, to: int, semaphore: int) -> None:
        """Record that a device signals a semaphore, its own or another device's."""
        self._told.setdefault((to, semaphore), set()).update(self._knows.get(device, ()))

    def copied(self, device: int, to: int, semaphore: int) -> bool:
        """Record a copy to another device; return True if the sender knows that this device has entered the kernel."""
        is_known = device == to or to in self._knows.get(device, ())
        self.signalled(device, to, semaphore)
        return is_known

    def waited(self, device: int, semaphore: int) -> None:
        """Record that a wait for a semaphore has ended."""
        self._knows.setdefault(device, {device}).update(self._told.get((device, semaphore), ()))


@dataclass(frozen=True, slots=True)
class _At:
    """A place in the source in the form in which an equation has one."""

    source_info: Any


def line_of(source: Any) -> str:
    """Return the source line that interpret mode names: "file.py:12 in name"; "" if it names none."""
    return written_at(_At(source)) if source is not None else ""
