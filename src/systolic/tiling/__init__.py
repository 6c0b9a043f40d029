"""How the work is cut: tiles, the rules they obey, the buffers they need and the traffic they cause."""

from systolic.tiling.buffers import VmemBuffer, matmul_buffers, total_bytes
from systolic.tiling.candidates import candidates, modelled_s
from systolic.tiling.legality import (
    LANES,
    MIB,
    Violation,
    alignment_violations,
    dtype_violations,
    size_violations,
    sublane_multiple,
    violations,
    vmem_violations,
)
from systolic.tiling.tiles import Tiles, TilesError
from systolic.tiling.traffic import hbm_bytes

__all__ = [
    "LANES",
    "MIB",
    "Tiles",
    "TilesError",
    "Violation",
    "VmemBuffer",
    "alignment_violations",
    "candidates",
    "dtype_violations",
    "hbm_bytes",
    "matmul_buffers",
    "modelled_s",
    "size_violations",
    "sublane_multiple",
    "total_bytes",
    "violations",
    "vmem_violations",
]
