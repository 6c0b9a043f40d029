"""How the work is cut: tiles, the rules they obey, the buffers they need and the traffic they cause."""

from systolic.schedule.blocks import Block, Dimension, block_shape, dimensions, operand_blocks
from systolic.schedule.buffers import Scratch, VmemBuffer, kernel_buffers, scratch_buffers, total_bytes
from systolic.schedule.config import (
    GridOrder,
    KernelConfig,
    Pipeline,
    can_run_manually,
    has_accumulator,
    has_last_step,
    is_made,
    is_split,
    is_staged,
    row_chunk,
)
from systolic.schedule.grid import GridSchedule, TileIndex
from systolic.schedule.legality import (
    LANES,
    MIB,
    IllegalTilesError,
    Violation,
    alignment_violations,
    config_violations,
    dtype_violations,
    require_legal,
    size_violations,
    sublane_multiple,
    vmem_limit,
    vmem_violations,
)
from systolic.schedule.tiles import Tiles, TilesError
from systolic.schedule.traffic import Traffic, hbm_traffic

__all__ = [
    "LANES",
    "MIB",
    "Block",
    "Dimension",
    "GridOrder",
    "GridSchedule",
    "IllegalTilesError",
    "KernelConfig",
    "Pipeline",
    "Scratch",
    "TileIndex",
    "Tiles",
    "TilesError",
    "Traffic",
    "Violation",
    "VmemBuffer",
    "alignment_violations",
    "block_shape",
    "can_run_manually",
    "config_violations",
    "dimensions",
    "dtype_violations",
    "has_accumulator",
    "has_last_step",
    "hbm_traffic",
    "is_made",
    "is_split",
    "is_staged",
    "kernel_buffers",
    "operand_blocks",
    "require_legal",
    "row_chunk",
    "scratch_buffers",
    "size_violations",
    "sublane_multiple",
    "total_bytes",
    "vmem_limit",
    "vmem_violations",
]
