"""One core executing one program, and the cores of a device executing together."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Sequence

from systolic.simulator.copies import CopyEngine
from systolic.simulator.errors import DeadlockError, SimulationError
from systolic.simulator.matrix import MatrixUnits
from systolic.simulator.translate import Translation

_CORE = re.compile(r"\bcore id\b|\blogical chip id\b")

# A program in progress. It yields the time at which it is about to act on what cores share, or None where it can't go
# on until another core has acted, and returns the time at which it is over.
Progress = Generator[int | None, None, int]


class Mailboxes:
    """What cores of one device push to each other: the meeting points of their barriers."""

    def __init__(self, cores: int) -> None:
        self._boxes: list[deque[tuple[int, int]]] = [deque() for _ in range(cores)]

    def send(self, core: int, time: int, value: int) -> None:
        """A value for every other core, or for itself where there is no other."""
        for other, box in enumerate(self._boxes):
            if other != core or len(self._boxes) == 1:
                box.append((time, value))

    def receive(self, core: int, time: int) -> tuple[int, int] | None:
        """When the core goes on and with which value; None while there is none."""
        if not self._boxes[core]:
            return None
        sent, value = self._boxes[core].popleft()
        return max(sent, time), value


class Machine:
    """What a translated program calls: copies and flags, the matrix units, scalar memory, and other programs.

    Args:
      core: index of this core within its device; programs split their grid by it.
      initial: value of a word of scalar memory that the program reads but never wrote; None: not known.
      call: starts a called program; (time, name) → its progress.
      max_rounds: of loops, all together, after which the program is taken to have been misread.
    """

    def __init__(
        self,
        translation: Translation,
        copies: CopyEngine,
        mailboxes: Mailboxes,
        units: MatrixUnits,
        *,
        core: int,
        initial: Callable[[int], int | None],
        call: Callable[[int, str], Progress],
        max_rounds: int,
    ) -> None:
        self._program = translation.name
        self._copies = copies
        self._mailboxes = mailboxes
        self._memory: dict[int, int | None] = {}
        self._core = core
        self._initial = initial
        self._translation = translation
        self.max_rounds = max_rounds
        self.segment = units.advance
        self.call = call
        self.waits_for = ""  # what the program can't go on without, for the message of a deadlock

    def run(self, time: int) -> Progress:
        """Runs the program from `time`.

        Raises:
          SimulationError: control flow depends on a value that the simulator does not have.
        """
        try:
            return (yield from self._translation.run(time, self))
        except TypeError as error:
            # Values that only the vector side or an argument knows are None in the translation.
            raise SimulationError(f"{self._program}: control flow depends on a value that is not known") from error
        except (ArithmeticError, LookupError, ValueError) as error:
            raise SimulationError(f"{self._program}: scalar code that cannot be executed: {error}") from error

    def too_long(self) -> None:
        """Ends a program that goes round and round.

        Raises:
          SimulationError: always.
        """
        raise SimulationError(f"{self._program}: loops went round more than {self.max_rounds:,} times")

    def start(self, time: int, flag: int, granules: int, hbm_reads: int, hbm_writes: int) -> int:
        """See `CopyEngine.start`."""
        return self._copies.start(self._core, self._program, time, flag, granules, hbm_reads, hbm_writes)

    def wait(self, time: int, flag: int, granules: int, where: str) -> int | None:
        """See `CopyEngine.wait`."""
        self.waits_for = where
        return self._copies.wait(self._core, self._program, time, flag, granules)

    def add(self, flag: int, amount: int) -> None:
        """See `CopyEngine.add`."""
        self._copies.add(self._core, self._program, flag, amount)

    def put(self, flag: int, value: int) -> None:
        """See `CopyEngine.set`."""
        self._copies.set(self._core, self._program, flag, value)

    def signal(self, time: int, address: int, amount: int) -> None:
        """See `CopyEngine.signal`."""
        self._copies.signal(self._program, time, address, amount)

    def send(self, time: int, value: int) -> None:
        """See `Mailboxes.send`."""
        self._mailboxes.send(self._core, time, value)

    def receive(self, time: int, where: str) -> tuple[int, int] | None:
        """See `Mailboxes.receive`."""
        self.waits_for = where
        return self._mailboxes.receive(self._core, time)

    def load(self, address: int, comment: str) -> int | None:
        """A word of scalar memory."""
        if address in self._memory:
            return self._memory[address]
        named = _CORE.search(comment)
        if named:
            return self._core if named.group() == "core id" else 0
        return self._initial(address)

    def store(self, address: int, value: int | None) -> None:
        """Writes a word of scalar memory."""
        self._memory[address] = value


def run_together(cores: Sequence[Progress], stuck: Callable[[int], str]) -> list[int]:
    """Runs the programs of a device's cores, always the one that is furthest behind; returns when each is over.

    So copies of all cores enter the common pipe in the order of their times.

    Args:
      stuck: what a core waits for, for the message.

    Raises:
      DeadlockError: every core that is not over waits for another.
    """
    ends = [0] * len(cores)
    ready = dict.fromkeys(range(len(cores)), 0)
    blocked: dict[int, int] = {}
    while ready:
        core = min(ready, key=ready.__getitem__)
        time = ready.pop(core)
        try:
            wanted = next(cores[core])
        except StopIteration as end:
            ends[core] = end.value
            wanted = None
        else:
            if wanted is None:
                blocked[core] = time
                continue
            ready[core] = wanted
        # This core has acted: what the others wait for may have come about.
        ready.update(blocked)
        blocked.clear()
    if blocked:
        raise DeadlockError("; ".join(f"core {core}: {stuck(core)} waits for what never comes" for core in blocked))
    return ends
