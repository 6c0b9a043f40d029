"""Accesses of a kernel with their places in its source, and the order that signals set between devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from systolic.compiler import written_at

Step = tuple[int, ...] | None


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
    step: Step = None
    number: int | None = None
    out_of_scope: bool = False
    device: int = 0
    other: int | None = None

    @property
    def at_step(self) -> str:
        """The step in words, after a blank: " at step (1, 0)"; "" if there is no step."""
        if not self.step:
            return ""
        return f" at step {self.step[0] if len(self.step) == 1 else self.step}"


@dataclass(slots=True)
class Entering:
    """Knowledge of each device about others that have entered the kernel.

    A device knows of those whose signals, or copies, it has waited for, and of what these knew. What a semaphore was
    told counts as known as soon as anything is waited for at it: a device may know less than is said here, never more.

    Attributes:
      early: copies to a device that, for all that the sender knows, has not yet entered the kernel.
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
