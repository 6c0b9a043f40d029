"""Adds up what one operation did in all its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from systolic.simulator.hardware.loop_timer import LoopTime


@dataclass(slots=True)
class OpTotals:
    """Adds up the calls of one operation. `spent` goes by the fields of `OpRun`."""

    begin: int
    end: int = 0
    calls: int = 0
    cycles: int = 0
    spent: Counter[str] = field(default_factory=Counter)
    block_counts: tuple[int, ...] = ()
    loop: LoopTime | None = None

    def add(
        self, begin: int, end: int, spent: Mapping[str, int], block_counts: Sequence[int], loop: LoopTime | None
    ) -> None:
        """Counts one more call, which took from `begin` to `end`."""
        self.calls += 1
        self.end = end
        self.cycles += end - begin
        self.spent.update(spent)
        pairs = zip(self.block_counts or (0,) * len(block_counts), block_counts, strict=True)
        self.block_counts = tuple(map(sum, pairs))
        self.loop = loop
