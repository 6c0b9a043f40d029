"""Add up the counts of one operation over all its calls."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from systolic.simulator.core_records import RegionRun
from systolic.simulator.hardware.loop_timer import LoopTime
from systolic.simulator.reading.blocks import Block
from systolic.simulator.reading.utilization import BlockUse

_NONE = (0, 0)


@dataclass(slots=True)
class OpTotals:
    """Totals of one operation's calls. `spent` goes by the fields of `OpRun`."""

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
        """Count one more call, from `begin` to `end`."""
        self.calls += 1
        self.end = end
        self.cycles += end - begin
        for what, count in spent.items():
            self.spent[what] += count
        before = self.block_counts
        self.block_counts = tuple(map(operator.add, before, block_counts)) if before else tuple(block_counts)
        self.loop = loop

    def regions(
        self, blocks: Sequence[Block], stalls: Mapping[int, tuple[int, int]], use: BlockUse | None
    ) -> tuple[RegionRun, ...]:
        """Return the blocks that were executed.

        Args:
          blocks: the operation's, in the order of the listing.
          stalls: cycles for which matrix and cross-lane units kept a block waiting, and matrix units alone.
          use: what a block issues; None: not known.
        """
        return tuple(
            RegionRun(
                first_bundle=block.first,
                bundles=block.last - block.first + 1,
                depth=block.depth,
                executions=count,
                cycles=count * block.cycles + stalls.get(number, _NONE)[0],
                matrix_stall_cycles=stalls.get(number, _NONE)[1],
                issued={} if use is None else use.of_block(number, count),
            )
            for number, (block, count) in enumerate(zip(blocks, self.block_counts, strict=False))
            if count
        )
