"""The cutting of a product: tiles, the rules they obey, the buffers they need and the traffic they cause."""

from systolic.schedule.blocks import Block, Dimension, block_shape, dimensions, operand_blocks
from systolic.schedule.buffers import Scratch, VmemBuffer, kernel_buffers, scratch_buffers, total_bytes
from systolic.schedule.config import (
    GridOrder,
    KernelConfig,
    Pipeline,
    can_join_outputs,
    can_run_manually,
    has_accumulator,
    has_last_step,
    is_made,
    is_split,
    is_staged,
    made_of,
    row_chunk,
)
from systolic.schedule.grid import GridSchedule, TileIndex
from systolic.schedule.legality import (
    LANES,
    MIB,
    REGISTER_BYTES,
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
