"""The cutting of the kernel that multiplies tokens by their experts' matrices while others travel round a ring.

All weights are read once, whatever arrives first: tokens travel in slabs of columns, and sums over the slabs stay in
VMEM. If more rows arrive at a device than there is room for, they are summed in panels, and weights are read once
for each panel.
"""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.blocks import (
    MAX_CHOICES,
    ROUND_CYCLES,
    ROW_COLUMNS,
    ROW_TILE,
    STAGES,
    WEIGHT_SLOTS,
    ExpertsSpec,
    block_rows,
    collect_cycles,
    product_columns,
    product_cycles,
)
from systolic.ops.moe.ring.schedule import ScatterSchedule
from systolic.ops.moe.schedule import CombineSpec
from systolic.ops.moe.sum_tiles import SumTiles, are_summed, tile_widths
from systolic.ops.moe.wire import ring_us
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.legality import LANES, IllegalTilesError, legal_sides
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

SUM_STAGES = 8  # sums of pieces on their way: two pairs to neighbors, and this device's own
# Cycles in which a piece is sent. Source: simulated on v6e, pieces of 256 × 512.
_SEND_CYCLES = 200
# Rows of a device over their mean: about two and a half deviations of 256 rows drawn at random.
_ROOM_SHARE = 1.08


@dataclass(frozen=True, slots=True, kw_only=True)
class RingProductsSchedule:
    columns: int  # of a slab; d consists of whole slabs
    slabs: int
    block_columns: int  # of f
    rows: tuple[int, int]  # of a large and a small block
    panel: int  # rows whose sums are in VMEM
    weight_slots: int
    buffers: tuple[VmemBuffer, ...]

    @classmethod
    def of(cls, spec: ExpertsSpec, chip: Chip) -> RingProductsSchedule | None:
        """Return the schedule, or None if sizes are no whole tiles or the rows do not fit in VMEM."""
        here, rest = divmod(spec.tokens, spec.devices)
        if spec.devices % 2 or rest or here % (2 * ROW_TILE) or spec.d % LANES or spec.f % LANES:
            return None
        if spec.dtype != "bfloat16" or not 0 < spec.choices <= MAX_CHOICES:
            return None
        columns = max(side for side in legal_sides(spec.d, LANES) if side <= ROW_COLUMNS)
        if not spec.matrices.is_multiplied(spec.dtype, columns):
            return None
        block_columns = product_columns(spec.f, chip)
        scale_rows = spec.products * spec.matrices.scale_rows(columns)
        large, small = block_rows(spec)

        def schedule(panel: int) -> RingProductsSchedule:
            sums = (spec.products, panel + large, spec.f)
            weights = (spec.products, columns, spec.f)
            buffers = (
                VmemBuffer(name="tokens", shape=(spec.tokens, spec.d), dtype=spec.dtype, copies=1),
                VmemBuffer(name="rows", shape=(large, columns), dtype=spec.dtype, copies=1),
                VmemBuffer(name="weights", shape=weights, dtype=spec.matrices.dtype, copies=WEIGHT_SLOTS),
                *spec.matrices.scale_buffers(scale_rows, spec.f, spec.f, WEIGHT_SLOTS),
                VmemBuffer(name="sums", shape=sums, dtype="float32", copies=1),
                VmemBuffer(name="stages", shape=(large, spec.f), dtype=spec.dtype, copies=STAGES),
            )
            return cls(
                columns=columns,
                slabs=spec.d // columns,
                block_columns=block_columns,
                rows=(large, small),
                panel=panel,
                weight_slots=WEIGHT_SLOTS,
                buffers=buffers,
            )

        fixed_bytes = total_bytes(schedule(0).buffers)
        row_bytes = spec.products * spec.f * dtype_bytes("float32")
        fitting = (buffer_bytes(chip) - fixed_bytes) // row_bytes // ROW_TILE * ROW_TILE
        # With less room than routers usually need, weights would be read twice.
        least = int(spec.mean_rows * _ROOM_SHARE) + ROW_TILE * spec.experts
        return schedule(min(fitting, spec.rows)) if fitting >= min(least, spec.rows) else None

    def time_us(self, spec: ExpertsSpec, chip: Chip) -> float:
        """Return the time from the arrival of the first slab on: weights arrive while rows are multiplied."""
        cycles = spec.products * product_cycles(spec, spec.matrices, self.rows, spec.d, spec.f, chip)
        cycles += self.slabs * spec.mean_rows * collect_cycles(self.columns)
        slab_bytes = spec.tokens * self.columns * dtype_bytes(spec.dtype)
        hbm_us = (spec.least_hbm_bytes + slab_bytes) / chip.machine.hbm_bytes_per_s * 1e6
        return max(hbm_us, cycles / chip.machine.clock_hz * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterProductsSchedule(SumTiles):
    """The cutting of the kernel that adds up experts' results and sends the sums while the next are multiplied."""

    mean_rows: int
    scatter: ScatterSchedule  # the pieces of tokens, and their order

    @classmethod
    def of(cls, spec: ExpertsSpec, top_k: int, rows: tuple[int, int], chip: Chip) -> ScatterProductsSchedule | None:
        """Return the schedule for the rows of another kernel, or None if no sums are sent in pieces or do not fit."""
        if not are_summed(spec):
            return None
        sums = CombineSpec.of(
            tokens=spec.tokens,
            top_k=top_k,
            experts=spec.experts,
            d=spec.d,
            dtype=spec.dtype,
            dtype_out=spec.dtype,
        )
        schedules = (cls._of_tiles(spec, sums, rows, chip, columns) for columns in tile_widths(spec.d))
        links_us = ring_us(sums, spec.devices, chip)
        fitting = [schedule for schedule in schedules if schedule is not None]
        return min(fitting, key=lambda schedule: schedule.time_us(spec, chip, links_us), default=None)

    @classmethod
    def _of_tiles(
        cls, spec: ExpertsSpec, sums: CombineSpec, rows: tuple[int, int], chip: Chip, columns: int
    ) -> ScatterProductsSchedule | None:
        tiles = spec.d // columns
        try:
            scatter = ScatterSchedule.of(sums, spec.devices, chip, tiles)
        except IllegalTilesError:
            return None
        piece = (scatter.combine.tokens, columns)
        buffers = (
            VmemBuffer(name="arrivals", shape=piece, dtype=spec.dtype, copies=tiles * scatter.arrivals + 1),
            VmemBuffer(name="stages", shape=piece, dtype=spec.dtype, copies=SUM_STAGES),
        )
        return cls.fitting(spec, columns, rows, buffers, chip, mean_rows=spec.mean_rows, scatter=scatter)

    def time_us(self, spec: ExpertsSpec, chip: Chip, links_us: float) -> float:
        """Return the time; links take `links_us`, and are idle while the first tile is made."""
        piece_registers = self.scatter.combine.tokens // SUBLANES * self.registers
        send_cycles = _SEND_CYCLES + piece_registers * ROUND_CYCLES
        products_us = self.products_us(spec, chip, spec.devices * self.scatter.pieces * send_cycles)
        return products_us / self.tiles + max(
            products_us * (self.tiles - 1) / self.tiles + links_us / self.tiles, links_us
        )
