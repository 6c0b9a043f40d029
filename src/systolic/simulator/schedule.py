"""Run programs together, always the one with the earliest time, and wake waiting programs."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from systolic.simulator.errors import DeadlockError

# A program in progress. It yields the time at which it is about to act on shared state, or None if it can't continue
# until another program has acted, and returns the time at which it ends.
Running = Generator[float | None, None, float]

_MAX_STUCK_PLACES = 8  # in a deadlock's message: a slice of v7x has thousands of programs
_Entry = tuple[float, int, int, int | Callable[[], None]]  # time, turn, program, and which of its parkings it ends
_EVENT = -1  # in place of a program's number: an event that is not a program's


@dataclass(slots=True)
class Waited:
    """An object that programs wait for: a sync flag, a mailbox."""

    waiting: list[int] = field(default_factory=list)  # programs that can't continue before it has changed


class Schedule:
    """Run programs together: copies enter a common pipe in order of time.

    A program that yields None has called `wait_for` with the object that it waits for, and is tried again when that
    changes.

    Args:
      patient: future landings wake no program, because something sent later may land earlier. Within one device the
        order of landings is the order of sending.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.patient = patient
        self.now = 0.0  # the time up to which everything has been simulated
        self._entries: list[_Entry] = []
        self._turns = 0
        self._programs: list[Running] = []
        self._stuck: list[Callable[[], str]] = []
        self._running = _EVENT
        # Program → since when, which of its parkings it is, and what for.
        self._parked: dict[int, tuple[float, int, Waited]] = {}
        self._parkings = 0
        self._waits: tuple[Waited, float | None] = Waited(), None  # what the running program waits for, and until when
        self._woken: list[int] = []

    def start(self, time: float, program: Running, stuck: Callable[[], str]) -> None:
        """Add a program that begins at a time; `stuck` returns what it waits for, for messages."""
        self._programs.append(program)
        self._stuck.append(stuck)
        self._push(time, len(self._programs) - 1, 0)

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Schedule an event."""
        self._turns += 1
        heapq.heappush(self._entries, (time, self._turns, _EVENT, act))

    def wait_for(self, what: Waited, due: float | None = None) -> None:
        """Record that the running program can't continue before `what` has changed, or before a known time."""
        what.waiting.append(self._running)
        self._waits = what, due

    def changed(self, what: Waited) -> None:
        if what.waiting:
            self._woken += what.waiting
            what.waiting.clear()

    @property
    def settled_until(self) -> float:
        """The time before which nothing acts any more, other than the program that acts now."""
        if self._woken:
            return -math.inf
        return self._entries[0][0] if self._entries else math.inf

    def _push(self, time: float, program: int, parking: int | Callable[[], None]) -> None:
        self._turns += 1
        heapq.heappush(self._entries, (time, self._turns, program, parking))

    def run(self) -> list[float]:
        """Run all programs, with those added meanwhile; return when each ends. Raise DeadlockError if all wait."""
        ends: dict[int, float] = {}
        entries, parked = self._entries, self._parked
        due: _Entry | None = None  # the entry that comes next, once it has been taken out
        while entries or due is not None:
            time, _, program, parking = heapq.heappop(entries) if due is None else due
            due = None
            if program == _EVENT:
                if time > self.now:
                    self.now = time
                assert callable(parking)
                parking()
            elif not parking or (program in parked and parked[program][1] == parking):
                if parking:  # what it waits for has not changed
                    parked.pop(program)[2].waiting.remove(program)
                if time > self.now:
                    self.now = time
                due = self._let_act(time, program, ends)
            if self._woken:
                self._wake(self._woken)
                self._woken = []
        if parked:
            raise DeadlockError(_deadlock_words([self._stuck[program]() for program in parked]))
        return [ends[program] for program in range(len(self._programs))]

    def _let_act(self, time: float, program: int, ends: dict[int, float]) -> _Entry | None:
        """Let a program act as long as its turn is before all others'; return the next entry if it has been taken."""
        self._running = program
        entries, go_on = self._entries, self._programs[program].__next__
        try:
            while True:
                request = go_on()
                if request is None:
                    self._park(time, program)
                    return None
                # Of acts at the same time the one that was announced first comes first.
                if self._woken:
                    self._push(request, program, 0)
                    return None
                if entries and request >= entries[0][0]:
                    self._turns += 1
                    return heapq.heappushpop(entries, (request, self._turns, program, 0))
                time = request
                if time > self.now:
                    self.now = time
        except StopIteration as end:
            ends[program] = end.value
            return None

    def _park(self, since: float, program: int) -> None:
        self._parkings += 1
        what, due = self._waits
        self._parked[program] = (since, self._parkings, what)
        if due is not None:
            self._push(due, program, self._parkings)

    def _wake(self, programs: list[int]) -> None:
        """Try programs again, in the order in which they began to wait."""
        result = {program: self._parked.pop(program) for program in programs if program in self._parked}
        for program, (since, *_) in sorted(result.items(), key=lambda entry: entry[1][:2]):
            self._push(since, program, 0)


def _deadlock_words(stuck: list[str]) -> str:
    """Describe where programs are stuck; a place that several share is named once, with their number."""
    places = Counter(stuck)
    sentences = [
        f"{place} waits for what never comes" + (f" ({count:,} times)" if count > 1 else "")
        for place, count in list(places.items())[:_MAX_STUCK_PLACES]
    ]
    others = len(places) - len(sentences)
    return "; ".join(sentences + [f"and {others:,} more places"] * bool(others))
