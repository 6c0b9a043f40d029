"""How the work is cut: tiles, the rules they obey, the buffers they need and the traffic they cause."""

from systolic.schedule.blocks import Block, Dimension, block_shape, dimensions, operand_blocks
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.config import (
    GridOrder,
    KernelConfig,
    Pipeline,
    Scratch,
    blocked_buffers,
    can_run_manually,
    has_accumulator,
    has_last_step,
    is_made,
    is_split,
    is_staged,
    row_chunk,
    scratch_buffers,
)
from systolic.schedule.copies import Traffic, blocked_traffic
from systolic.schedule.legality import (
    LANES,
    MIB,
    IllegalTilesError,
    Violation,
    alignment_violations,
    dtype_violations,
    size_violations,
    sublane_multiple,
    vmem_violations,
)
from systolic.schedule.tiles import Tiles, TilesError

__all__ = [
    "LANES",
    "MIB",
    "Block",
    "Dimension",
    "GridOrder",
    "IllegalTilesError",
    "KernelConfig",
    "Pipeline",
    "Scratch",
    "Tiles",
    "TilesError",
    "Traffic",
    "Violation",
    "VmemBuffer",
    "alignment_violations",
    "block_shape",
    "blocked_buffers",
    "blocked_traffic",
    "can_run_manually",
    "dimensions",
    "dtype_violations",
    "has_accumulator",
    "has_last_step",
    "is_made",
    "is_split",
    "is_staged",
    "operand_blocks",
    "row_chunk",
    "scratch_buffers",
    "size_violations",
    "sublane_multiple",
    "total_bytes",
    "vmem_violations",
]
