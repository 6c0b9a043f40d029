"""The cutting of the two kernels of a layer whose tokens, and sums of tokens, are in VMEM."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.blocks import (
    ROUND_CYCLES,
    ROW_COLUMNS,
    ROW_TILE,
    STAGES,
    STEP_CYCLES,
    WEIGHT_SLOTS,
    ExpertsSpec,
    block_rows,
    collect_cycles,
    product_columns,
    product_cycles,
)
from systolic.ops.moe.sum_tiles import SumTiles, tile_widths
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.legality import LANES, legal_sides
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

SUM_STAGES = 2  # pieces of sums on their way to HBM
_PIECE_TOKENS = 256  # at most
# Rows of a block of the first products over their mean. A second block, of few rows, takes a quarter of the first one's
# time. Source: simulated on v6e, 128 experts of 2,048 × 768, 512 rows each.
_PRODUCT_SHARE = 1.06
_MAX_AHEAD = 80  # registers of 1,024 columns that are collected in the code of a product: 72 bundles each
# For weights of a tile, so that copies hide their latency. Source: simulated on v7x, 128 experts of 768 × 1,024.
_SUM_SLOTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedProductsSchedule:
    """The cutting of the kernel that multiplies tokens in VMEM by gate and up."""

    columns: int  # of f, of a step
    tiles: int
    block_columns: int  # of a product
    rows: tuple[int, int]  # of a large and a small block
    collects_ahead: bool  # the rows of the next expert, in the code of a large block's products
    buffers: tuple[VmemBuffer, ...]

    @classmethod
    def of(cls, spec: ExpertsSpec, chip: Chip) -> FusedProductsSchedule | None:
        """Return the schedule with the widest steps that fit, or None if none does; `FusedSchedules` checks sizes."""
        schedules = (cls._of_columns(spec, columns, chip) for columns in reversed(legal_sides(spec.f, LANES)))
        return next((made for made in schedules if total_bytes(made.buffers) <= buffer_bytes(chip)), None)

    @classmethod
    def _of_columns(cls, spec: ExpertsSpec, columns: int, chip: Chip) -> FusedProductsSchedule:
        rows, scale_rows = block_rows(spec, _PRODUCT_SHARE), spec.products * spec.matrices.scale_rows(spec.d)
        weights = (spec.products, spec.d, columns)
        collects_ahead = rows[0] // ROW_TILE * -(-spec.d // ROW_COLUMNS) <= _MAX_AHEAD
        buffers = (
            VmemBuffer(name="tokens", shape=(spec.tokens, spec.d), dtype=spec.dtype, copies=1),
            VmemBuffer(name="rows", shape=(rows[0], spec.d), dtype=spec.dtype, copies=1 + collects_ahead),
            VmemBuffer(name="weights", shape=weights, dtype=spec.matrices.dtype, copies=WEIGHT_SLOTS),
            *spec.matrices.scale_buffers(scale_rows, columns, spec.f, WEIGHT_SLOTS),
            VmemBuffer(name="stages", shape=(rows[0], columns), dtype=spec.dtype, copies=STAGES),
        )
        return cls(
            columns=columns,
            tiles=spec.f // columns,
            block_columns=product_columns(columns, chip),
            rows=rows,
            collects_ahead=collects_ahead,
            buffers=buffers,
        )

    def time_us(self, spec: ExpertsSpec, chip: Chip) -> float:
        """Return the time: nothing hides the arrival of the tokens."""
        machine = chip.machine
        cycles = spec.products * product_cycles(spec, spec.matrices, self.rows, spec.d, spec.f, chip)
        cycles += self.tiles * spec.experts * STEP_CYCLES
        if not self.collects_ahead:
            cycles += spec.mean_rows * collect_cycles(spec.d)
        tokens_bytes = spec.tokens * spec.d * dtype_bytes(spec.dtype)
        hbm_s = spec.least_hbm_bytes / machine.hbm_bytes_per_s
        return (tokens_bytes / machine.hbm_bytes_per_s + max(hbm_s, cycles / machine.clock_hz)) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedSumsSchedule(SumTiles):
    """The cutting of the kernel that multiplies by down, and adds up the results of each token."""

    piece: int  # tokens whose sums are stored together

    @classmethod
    def of(cls, spec: ExpertsSpec, chip: Chip) -> FusedSumsSchedule | None:
        """Return the schedule with the widest tiles whose sums fit, or None if none do."""
        piece = max(side for side in legal_sides(spec.tokens, ROW_TILE) if side <= _PIECE_TOKENS)
        for columns, slots in itertools.product(tile_widths(spec.d), (_SUM_SLOTS, WEIGHT_SLOTS)):
            stages = VmemBuffer(name="stages", shape=(piece, columns), dtype=spec.dtype, copies=SUM_STAGES)
            schedule = cls.fitting(spec, columns, block_rows(spec), (stages,), chip, slots, piece=piece)
            if schedule is not None:
                return schedule
        return None

    def time_us(self, spec: ExpertsSpec, chip: Chip) -> float:
        """Return the time: nothing hides the departure of the last tile's sums."""
        machine, item = chip.machine, dtype_bytes(spec.dtype)
        round_cycles = spec.tokens // SUBLANES * self.registers * ROUND_CYCLES
        tile_s = spec.tokens * self.columns * item / machine.hbm_bytes_per_s
        return self.products_us(spec, chip, round_cycles) + tile_s * 1e6
