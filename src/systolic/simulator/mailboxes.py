"""Mailboxes by which cores of one device meet in their barriers."""

from __future__ import annotations

from collections import deque

from systolic.simulator.errors import check_most
from systolic.simulator.schedule import Schedule, Waited

_MAX_MESSAGES = 1 << 16


class Mailboxes:
    """One message queue for each core of a device."""

    def __init__(self, cores: int, schedule: Schedule) -> None:
        self._boxes: list[deque[tuple[int, int]]] = [deque() for _ in range(cores)]
        self._waited = [Waited() for _ in range(cores)]
        self._schedule = schedule

    def send(self, core: int, time: int, value: int) -> None:
        """Send a value to every other core, or to itself where there is no other."""
        for other, box in enumerate(self._boxes):
            if other != core or len(self._boxes) == 1:
                box.append((time, value))
                self._schedule.changed(self._waited[other])
                check_most(len(box), _MAX_MESSAGES, "messages to a core that does not read them")

    @property
    def are_empty(self) -> bool:
        """True if every message was taken."""
        return not any(self._boxes)

    def receive(self, core: int, time: int) -> tuple[int, int] | None:
        """Take a message: return when the core goes on and the value; None while there is none."""
        if not self._boxes[core]:
            self._schedule.wait_for(self._waited[core])
            return None
        sent, value = self._boxes[core].popleft()
        return max(sent, time), value
