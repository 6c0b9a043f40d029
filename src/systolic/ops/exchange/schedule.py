"""The cutting of a ragged all-to-all into blocks of rows, and its VMEM."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.kernels.packed_rows import SUBLANES
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.legality import LANES, IllegalTilesError, Violation
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

FETCH_SLOTS = 2  # blocks of the operand in VMEM
# Blocks on their way: devices get blocks in turn, and a far one must not delay the next.
# Source: simulated on v5e 4x4, 8,192 tokens to 2 of 128 experts: 337 µs with 8, 270 with 16 and with 32.
SEND_SLOTS = 16
GUARD_TILES = 1  # before and after a fetched block: rows next to a slice are read there, and used nowhere
_BLOCK_BYTES = 512 * 1024  # of a block: 6 µs on a link, so that starting its copies does not count
_MAX_BLOCK_TILES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSpec:
    """Slices of rows of `d` elements, to and from the devices of a mesh axis."""

    devices: int
    slices: int  # slices that a device sends, and gets
    rows: int  # of the operand, a multiple of 8
    out_rows: int  # of the output, a multiple of 8
    d: int  # a multiple of 128
    dtype: str

    @property
    def registers(self) -> int:
        return self.d // LANES

    @property
    def least_hbm_bytes(self) -> int:
        return 2 * min(self.rows, self.out_rows) * self.d * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSchedule:
    tiles: int  # of eight rows, in a block: a power of two
    buffers: tuple[VmemBuffer, ...]

    @classmethod
    def of(cls, spec: ExchangeSpec, chip: Chip) -> ExchangeSchedule:
        """Return the schedule of a spec whose operand has at least two tiles; raise IllegalTilesError if none fits."""
        tile_bytes = SUBLANES * spec.d * dtype_bytes(spec.dtype)
        # A fetch brings one tile more than a block has, because rows may begin within a tile.
        limit = min(_MAX_BLOCK_TILES, spec.rows // SUBLANES - 1)
        tiles = 1
        while 2 * tiles <= limit and 2 * tiles * tile_bytes <= _BLOCK_BYTES:
            tiles *= 2
        counts = {
            "fetched": FETCH_SLOTS * (tiles + 1 + 2 * GUARD_TILES),
            "sent": SEND_SLOTS * tiles,
            "edges": 2 * spec.slices,
            "merged": 2 * spec.slices,
        }
        buffers = tuple(
            VmemBuffer(name=name, shape=(SUBLANES, spec.d), dtype=spec.dtype, copies=copies)
            for name, copies in counts.items()
        )
        needed, limit_bytes = total_bytes(buffers), buffer_bytes(chip)
        if needed > limit_bytes:
            value = f"{needed} bytes for the first and last rows of {spec.slices} slices"
            violation = Violation(rule="vmem", value=value, limit=f"{limit_bytes} bytes", fix="send fewer slices")
            raise IllegalTilesError("a ragged all-to-all", [violation])
        return cls(tiles=tiles, buffers=buffers)
