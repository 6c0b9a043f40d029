"""One core executing one program and what it calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from systolic.simulator.copies import CopyEngine
from systolic.simulator.matrix import MatrixUnits
from systolic.simulator.translate import Translation

_CORE = re.compile(r"\bcore id\b|\blogical chip id\b")


class Machine:
    """What a translated program calls: copies and flags, the matrix units, scalar memory, and other programs.

    Args:
      core: index of this core within its device; programs split their grid by it.
      initial: value of a word of scalar memory that the program reads but never wrote; None: not known.
      call: runs a called program; (time, name) → time.
    """

    def __init__(
        self,
        translation: Translation,
        copies: CopyEngine,
        units: MatrixUnits,
        *,
        core: int,
        initial: Callable[[int], int | None],
        call: Callable[[int, str], int],
    ) -> None:
        self._space = object()  # sync flags of different programs are different flags
        self._copies = copies
        self._memory: dict[int, int | None] = {}
        self._core = core
        self._initial = initial
        self.segment = units.advance
        self.call = call
        self._translation = translation

    def run(self, time: int) -> int:
        """Runs the program from `time`; returns when it is over."""
        return self._translation.run(time, self)

    def start(self, time: int, flag: int, granules: int, hbm_reads: int, hbm_writes: int) -> int:
        """See `CopyEngine.start`."""
        return self._copies.start(self._space, time, flag, granules, hbm_reads, hbm_writes)

    def wait(self, time: int, flag: int, granules: int, where: str) -> int:
        """See `CopyEngine.wait`."""
        return self._copies.wait(self._space, time, flag, granules, where)

    def add(self, flag: int, amount: int) -> None:
        """See `CopyEngine.add`."""
        self._copies.add(self._space, flag, amount)

    def put(self, flag: int, value: int) -> None:
        """See `CopyEngine.set`."""
        self._copies.set(self._space, flag, value)

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


Programs = Mapping[str, Translation]
