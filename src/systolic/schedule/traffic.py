"""Bytes that a kernel moves over HBM."""

from __future__ import annotations

import math
from dataclasses import dataclass

from systolic.schedule.blocks import Block, operand_blocks
from systolic.schedule.config import KernelConfig
from systolic.schedule.grid import GridSchedule
from systolic.spec import MatmulSpec, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    lhs_bytes: int
    rhs_bytes: int
    fused_bytes: int
    out_bytes: int

    @property
    def hbm_bytes(self) -> int:
        return self.lhs_bytes + self.rhs_bytes + self.fused_bytes + self.out_bytes


def hbm_traffic(spec: MatmulSpec, config: KernelConfig) -> Traffic:
    """Return the bytes that the pipeline copies. An output is stored once; last blocks of an operand may be smaller."""
    schedule = GridSchedule.of(spec, config)
    blocks = operand_blocks(spec, config.tiles)
    lhs, *rhs = blocks.factors
    fused = blocks.present()[len(blocks.factors) :]

    def moved(block: Block) -> int:
        blocks = math.prod(schedule.count(loop) for loop in block.along if loop is not None)
        return schedule.fetches(block.loops) * math.prod(block.matrix) * dtype_bytes(block.dtype) // blocks

    return Traffic(
        lhs_bytes=moved(lhs),
        rhs_bytes=sum(map(moved, rhs)),
        fused_bytes=sum(block.bytes * schedule.fetches(block.loops) for block in fused),
        out_bytes=spec.out_bytes,
    )
