"""The sync flags of one device: their counts, and the amounts under way to them."""

from __future__ import annotations

import bisect
import operator
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from systolic.simulator.errors import check_most
from systolic.simulator.schedule import Waited

FLAG_BITS = 13
FLAG_MASK = (1 << FLAG_BITS) - 1
# Of the flag at a copy's sender: the copy counts as one on both flags, whatever its size.
COUNTS_COPIES = 1 << 16
# Sync flags that have a number in listings are shared by all: flags of barriers between devices.
NUMBERED_FLAGS = 64
# A called program's sync flags are its own; the top-level program's, from here on, are shared by all, even if it
# passes one on. A whole training step names close to 200 there.
SHARED_FLAGS_FROM = 5 << (FLAG_BITS - 3)

_MAX_FLAGS = 1 << 16

# Flags with what they count, in order.
OwnFlags = tuple[tuple[int, int], ...]
FlagKeys = tuple[tuple[int, int], ...]  # flags that programs share, by core and number


@dataclass(slots=True)
class Flag(Waited):
    count: int = 0
    landing: deque[tuple[int, int]] = field(default_factory=deque)  # (time, granules), in order of time
    under_way: int = 0  # granules
    may_fall: bool = False  # a negative amount was sent
    label: str = ""  # the communication with other devices that signals it

    def send(self, time: int, amount: int) -> None:
        """Let an amount land at a time."""
        landing = self.landing
        if landing and landing[-1][0] > time:
            bisect.insort(landing, (time, amount))
        else:
            landing.append((time, amount))
        self.under_way += amount
        self.may_fall |= amount < 0

    def is_zero_from(self, time: float) -> bool:
        """True if the count is zero from a time on, until something else is sent."""
        return not self.count + self.under_way and all(at <= time for at, _ in self.landing)

    def until(self, satisfied: Callable[[int, int], bool], value: int) -> tuple[int, int] | None:
        """Return how many pieces land until the count satisfies, and when the last one does; None: it does not."""
        count = self.count
        # A program that waits for thousands of copies is tried again with each of them.
        if satisfied is operator.ge and not self.may_fall and count + self.under_way < value:
            return None
        for pieces, (time, amount) in enumerate(self.landing, 1):
            count += amount
            if satisfied(count, value):
                return pieces, time
        return None

    def land_until(self, time: int) -> None:
        """Let all land that has by then."""
        while self.landing and self.landing[0][0] <= time:
            self.land_first(1)

    def land_first(self, pieces: int) -> int:
        """Let the first `pieces` under way land; return when the last of them has."""
        now = 0
        for _ in range(pieces):
            now, amount = self.landing.popleft()
            self.count += amount
            self.under_way -= amount
        return now

    def reset(self, count: int) -> None:
        """Set the count; nothing is under way."""
        self.count, self.under_way = count, 0
        self.landing.clear()


class SyncFlags:
    """The flags of all cores of a device. A called program's flags are its own, for each core."""

    def __init__(self) -> None:
        self._flags: dict[tuple[int, str, int], Flag] = {}
        self._by_owner: dict[tuple[int, str], dict[int, Flag]] = {}  # owner "": shared by all
        self._by_program: dict[tuple[int, str, int], Flag] = {}  # flags as programs name them by their number

    def flag(self, core: int, program: str, number: int, *, named_by: int | None = None) -> Flag:
        """Return a flag of a core as a program names it; `named_by`: the word that decides whose it is."""
        if named_by is not None:
            return self._flag(core, program, number, named_by)
        flag = self._by_program.get((core, program, number))
        if flag is None:
            flag = self._by_program[core, program, number] = self._flag(core, program, number, number)
        return flag

    def _flag(self, core: int, program: str, number: int, decisive: int) -> Flag:
        owner = program if NUMBERED_FLAGS <= decisive & FLAG_MASK < SHARED_FLAGS_FROM else ""
        key = (core, owner, number)
        flag = self._flags.get(key)
        if flag is None:
            flag = self._flags[key] = Flag()
            self._by_owner.setdefault((core, owner), {})[number] = flag
            check_most(len(self._flags), _MAX_FLAGS, "sync flags")
        return flag

    def landed(self, core: int, program: str, time: int, number: int) -> Flag:
        """Return a flag that counts what has landed on it by then."""
        flag = self._by_program.get((core, program, number)) or self.flag(core, program, number)
        if flag.landing:
            flag.land_until(time)
        return flag

    def own_flags(self, core: int, program: str, time: int) -> OwnFlags | None:
        """Return the nonzero counts of a program's own flags; None: something is under way to one."""
        counts = []
        for number, flag in self._by_owner.get((core, program), {}).items():
            if flag.landing and flag.landing[-1][0] > time:
                return None
            if count := flag.count + flag.under_way:
                counts.append((number, count))
        return tuple(sorted(counts))

    def reset_own_flags(self, core: int, program: str, counts: OwnFlags) -> None:
        """Set a program's own flags to `counts`, and all its others to zero."""
        for flag in self._by_owner.get((core, program), {}).values():
            flag.reset(0)
        for number, count in counts:
            self.flag(core, program, number).count = count

    def shared_flags(self, program: str, cores: Collection[int], time: float) -> FlagKeys | None:
        """Return the used flags that programs share.

        None: one has a count or is another core's, or flags of another program were used.
        """
        if any(core not in cores or owner not in ("", program) for core, owner in self._by_owner):
            return None
        shared = tuple((core, number) for core in cores for number in self._by_owner.get((core, ""), ()))
        return shared if self.are_zero(shared, time) else None

    def are_zero(self, shared: FlagKeys, time: float) -> bool:
        """True if these flags count zero from a time on."""
        flags = (self._by_owner.get((core, ""), {}).get(number) for core, number in shared)
        return all(flag is None or flag.is_zero_from(time) for flag in flags)
