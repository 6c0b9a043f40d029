"""How the work is cut: tiles, the rules they obey, the buffers they need and the traffic they cause."""

from systolic.tiling.blocking import (
    Blocking,
    Dimension,
    Outer,
    block_shape,
    blocked_buffers,
    can_stream,
    dimensions,
    extra_block,
    has_accumulator,
    has_last_step,
    is_made,
    is_resident,
    is_split,
    is_staged,
    scratch_buffers,
    strip_rows,
)
from systolic.tiling.buffers import VmemBuffer, matmul_buffers, total_bytes
from systolic.tiling.candidates import candidates, modelled_s
from systolic.tiling.choose import (
    Choice,
    blocked_violations,
    blockings,
    chosen,
    vmem_limit,
)
from systolic.tiling.copies import Traffic, blocked_traffic
from systolic.tiling.legality import (
    LANES,
    MIB,
    IllegalTilesError,
    Violation,
    alignment_violations,
    dtype_violations,
    size_violations,
    sublane_multiple,
    violations,
    vmem_violations,
)
from systolic.tiling.model import ModelledTime, blocked_time, least_time_us
from systolic.tiling.profile import Kind, Profile, ProfiledTile, Profiles, StepCost, shipped_profiles
from systolic.tiling.profiled import profiled_choice, profiled_choices
from systolic.tiling.tiles import Tiles, TilesError
from systolic.tiling.traffic import hbm_bytes
from systolic.tiling.walk import walked_time

__all__ = [
    "LANES",
    "MIB",
    "Blocking",
    "Choice",
    "Dimension",
    "IllegalTilesError",
    "Kind",
    "ModelledTime",
    "Outer",
    "Profile",
    "ProfiledTile",
    "Profiles",
    "StepCost",
    "Tiles",
    "TilesError",
    "Traffic",
    "Violation",
    "VmemBuffer",
    "alignment_violations",
    "block_shape",
    "blocked_buffers",
    "blocked_time",
    "blocked_traffic",
    "blocked_violations",
    "blockings",
    "can_stream",
    "candidates",
    "chosen",
    "dimensions",
    "dtype_violations",
    "extra_block",
    "has_accumulator",
    "has_last_step",
    "hbm_bytes",
    "is_made",
    "is_resident",
    "is_split",
    "is_staged",
    "least_time_us",
    "matmul_buffers",
    "modelled_s",
    "profiled_choice",
    "profiled_choices",
    "scratch_buffers",
    "shipped_profiles",
    "size_violations",
    "strip_rows",
    "sublane_multiple",
    "total_bytes",
    "violations",
    "vmem_limit",
    "vmem_violations",
    "walked_time",
]
