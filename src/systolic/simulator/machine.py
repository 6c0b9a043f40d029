"""One core executing one program, and the cores of a device executing together."""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence

from systolic.chips import MachineModel
from systolic.simulator.errors import DeadlockError, SimulationError, UnknownValueError, check_most
from systolic.simulator.hardware.copies import FLAG_MASK, CopyEngine, StallCause
from systolic.simulator.hardware.loops import Laps
from systolic.simulator.hardware.matrix import MatrixUnits
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.hardware.rounds import Rounds
from systolic.simulator.hardware.values import COMPUTED, NEVER_WRITTEN, Unknown
from systolic.simulator.translating.names import SHARED_FLAGS_FROM
from systolic.simulator.translating.translate import Translation

_CORE = re.compile(r"\bcore id\b|\blogical chip id\b")
_MOST_MESSAGES = 1 << 16
_ROW_WORDS = 128  # addresses in HBM and VMEM count rows of 512 bytes
_WORD_BYTES = 4

# A program in progress. It yields the time at which it is about to act on what cores share, or None where it can't go
# on until another core has acted, and returns the time at which it is over.
Progress = Generator[int | None, None, int]

# Registers handed to a called program.
Passed = Sequence[tuple[str, "int | Unknown"]]


class Mailboxes:
    """What cores of one device push to each other: the meeting points of their barriers."""

    def __init__(self, cores: int) -> None:
        self._boxes: list[deque[tuple[int, int]]] = [deque() for _ in range(cores)]

    def send(self, core: int, time: int, value: int) -> None:
        """A value for every other core, or for itself where there is no other."""
        for other, box in enumerate(self._boxes):
            if other != core or len(self._boxes) == 1:
                box.append((time, value))
                check_most(len(box), _MOST_MESSAGES, "messages to a core that does not read them")

    def receive(self, core: int, time: int) -> tuple[int, int] | None:
        """When the core goes on and with which value; None while there is none."""
        if not self._boxes[core]:
            return None
        sent, value = self._boxes[core].popleft()
        return max(sent, time), value


class Machine:
    """What a translated program calls: copies and flags, the matrix units, memory, and other programs.

    Args:
      core: index of this core within its device; programs split their grid by it.
      memory: of the core; all its programs share it.
      passed: registers that the caller hands over.
      parameter: address of one of the whole program's parameters.
      call: starts a called program; (time, name, registers) → its progress.
      model: of the chip's core.
      rounds: that the loops of all programs of the core may still go.
      assume_zero: what the program computes and is not known counts as zero.
    """

    def __init__(
        self,
        translation: Translation,
        copies: CopyEngine,
        mailboxes: Mailboxes,
        units: MatrixUnits,
        memory: Memory,
        laps: Laps,
        *,
        core: int,
        passed: Mapping[str, int | Unknown],
        parameter: Callable[[int], int],
        call: Callable[[int, str, Passed], Progress],
        model: MachineModel,
        rounds: Rounds,
        assume_zero: bool,
    ) -> None:
        self._program = translation.name
        self._copies = copies
        self._mailboxes = mailboxes
        self._memory = memory
        self._core = core
        self._passed = passed
        self._translation = translation
        self._granule_words = model.granule_bytes // _WORD_BYTES
        # What an address counts, where a copy names it, in words.
        self._address_words = {
            "hbm": model.hbm_address_bytes // _WORD_BYTES,
            "vmem": model.vmem_address_bytes // _WORD_BYTES,
            "cmem": _ROW_WORDS,
        }
        self.rounds = rounds
        self._assume_zero = assume_zero
        self.vector = self._known(COMPUTED)
        self.laps = laps
        self.counts: Sequence[int] = ()  # how often each basic block ran, once the program is over
        self.segment = units.advance
        self.lap = laps.add
        self.store = memory.store
        self.parameter = parameter
        self.call = call
        self.waits_for = ""  # what the program can't go on without, for the message of a deadlock

    def run(self, time: int) -> Progress:
        """Runs the program from `time`.

        Raises:
          SimulationError: control flow depends on a value that the simulator does not have.
        """
        try:
            return (yield from self._translation.run(time, self))
        except SimulationError as error:
            if error.located:  # by the program that this one had called
                raise
            located = type(error)(f"{self._where(error)}: {error}")
            located.located = True
            if isinstance(located, UnknownValueError) and isinstance(error, UnknownValueError):
                located.program, located.why, located.computed = self._program, error.why, error.computed
            raise located from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
            located = SimulationError(f"{self._where(error)}: scalar code that cannot be executed: {error}")
            located.located = True
            raise located from error

    def _where(self, error: BaseException) -> str:
        line = self._translation.listing_line(error)
        return self._program if line is None else f"{self._program}, line {line}"

    def left(self, rounds: int, counts: Sequence[int]) -> None:
        """The program is over; its loops went round so often, and its basic blocks ran so often."""
        self.rounds.spend(rounds)
        self.counts = counts

    def too_long(self) -> None:
        """Ends a program that goes round and round.

        Raises:
          SimulationError: always.
        """
        self.rounds.spend(self.rounds.left + 1)

    # ---- copies and flags ----

    def _owner(self, flag: int) -> str:
        """Flags of the top-level program are everybody's, also where it passes one on."""
        return "" if flag & FLAG_MASK >= SHARED_FLAGS_FROM else self._program

    def start(
        self,
        time: int,
        flag: int,
        granules: int,
        source: str,
        destination: str,
        run_bytes: int | None,
        source_flag: int | None = None,
    ) -> int:
        """See `CopyEngine.start`."""
        owner = self._owner(flag)
        return self._copies.start(self._core, owner, time, flag, granules, source, destination, run_bytes, source_flag)

    def move(self, source: str, begin: int, destination: str, first: int, granules: int, contiguous: bool) -> None:
        """Lets contents follow a copy."""
        begin *= self._address_words.get(source, 1)
        first *= self._address_words.get(destination, 1)
        self._memory.copy(source, begin, destination, first, granules * self._granule_words, contiguous=contiguous)

    def wait(self, time: int, flag: int, granules: int, cause: StallCause, where: str) -> int | None:
        """See `CopyEngine.wait`."""
        self.waits_for = where
        return self._copies.wait(self._core, self._owner(flag), time, flag, granules, cause)

    def wait_for_value(self, time: int, flag: int, value: int, equal: bool, where: str) -> int | None:
        """See `CopyEngine.wait_for_value`."""
        self.waits_for = where
        return self._copies.wait_for_value(self._core, self._owner(flag), time, flag, value, equal=equal)

    def count(self, time: int, flag: int) -> int:
        """See `CopyEngine.count`."""
        return self._copies.count(self._core, self._owner(flag), time, flag)

    def add(self, flag: int, amount: int) -> None:
        """See `CopyEngine.add`."""
        self._copies.add(self._core, self._owner(flag), flag, amount)

    def put(self, flag: int, value: int) -> None:
        """See `CopyEngine.set`."""
        self._copies.set(self._core, self._owner(flag), flag, value)

    def signal(self, time: int, address: int, amount: int) -> None:
        """See `CopyEngine.signal`."""
        self._copies.signal(self._owner(address), time, address, amount)

    def send(self, time: int, value: int) -> None:
        """See `Mailboxes.send`."""
        self._mailboxes.send(self._core, time, value)

    def receive(self, time: int, where: str) -> tuple[int, int] | None:
        """See `Mailboxes.receive`."""
        self.waits_for = where
        received = self._mailboxes.receive(self._core, time)
        if received is not None:
            self._copies.stalled(self._core, time, received[0], "semaphore")
        return received

    # ---- values ----

    def operand(self, register: str) -> int | Unknown:
        """What the caller handed over in a register."""
        return self._known(self._passed.get(register, NEVER_WRITTEN))

    def load(self, address: int, comment: str) -> int | Unknown:
        """A word of scalar memory."""
        named = _CORE.search(comment)
        if named:
            return self._core if named.group() == "core id" else 0
        return self._known(self._memory.load(address))

    def word(self, row: int) -> int | Unknown:
        """The first word of a row of VMEM."""
        return self._known(self._memory.word("vmem", row * _ROW_WORDS))

    def _known(self, value: int | Unknown) -> int | Unknown:
        return 0 if self._assume_zero and isinstance(value, Unknown) and value.computed else value


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
