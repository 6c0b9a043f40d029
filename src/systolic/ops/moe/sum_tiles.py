"""The cutting of the second product into tiles of columns, whose sums of all tokens are made in VMEM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from systolic.chips import Chip
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.blocks import (
    MAX_CHOICES,
    ROW_COLUMNS,
    STEP_CYCLES,
    SUM_CYCLES,
    WEIGHT_SLOTS,
    ExpertsSpec,
    product_columns,
    product_cycles,
)
from systolic.ops.moe.matrices import MatrixForm
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.legality import LANES, legal_sides
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTiles:
    tokens: int  # of all devices
    dtype: str  # of rows
    down: MatrixForm
    columns: int  # of a tile
    tiles: int
    block_columns: int
    rows: tuple[int, int]  # of a large and a small block
    slots: int  # for weights
    places: int  # for the first rows of a step: one for each expert, or one for each slot
    keeps_rows: bool  # from the first tile on
    buffers: tuple[VmemBuffer, ...]

    @property
    def registers(self) -> int:
        """Registers of a row of a tile."""
        return self.columns // LANES

    @classmethod
    def fitting(
        cls,
        spec: ExpertsSpec,
        columns: int,
        rows: tuple[int, int],
        others: Sequence[VmemBuffer],
        chip: Chip,
        slots: int = WEIGHT_SLOTS,
        **fields: Any,
    ) -> Self | None:
        """Return the schedule with tiles of `columns` for the rows of another kernel, or None if it does not fit.

        Args:
          others: buffers of what is done with sums.
          slots: for weights.
          fields: of a subclass.
        """
        others = (
            VmemBuffer(name="weights", shape=(spec.f, columns), dtype=spec.down.dtype, copies=slots),
            *spec.down.scale_buffers(spec.down.scale_rows(spec.f), columns, spec.d, slots),
            VmemBuffer(name="products", shape=(rows[0], columns), dtype="float32", copies=2),
            VmemBuffer(name="sums", shape=(spec.tokens + SUBLANES, columns), dtype="float32", copies=2),
            *others,
        )
        room = buffer_bytes(chip) - total_bytes(others)
        for places in (spec.experts, slots):
            rows_buffer = VmemBuffer(name="rows", shape=(rows[0], spec.f), dtype=spec.dtype, copies=places + 1)
            if total_bytes([rows_buffer]) <= room:
                break
        else:
            return None
        return cls(
            tokens=spec.tokens,
            dtype=spec.dtype,
            down=spec.down,
            columns=columns,
            tiles=spec.d // columns,
            block_columns=product_columns(columns, chip),
            rows=rows,
            slots=slots,
            places=places,
            keeps_rows=places == spec.experts,
            buffers=(rows_buffer, *others),
            **fields,
        )

    def products_us(self, spec: ExpertsSpec, chip: Chip, other_cycles: float) -> float:
        """Return the time of products and sums, with cycles of what else is done in a tile."""
        machine = chip.machine
        cycles = product_cycles(spec, spec.down, self.rows, spec.f, spec.d, chip)
        cycles += spec.mean_rows * spec.d / ROW_COLUMNS * SUM_CYCLES
        cycles += self.tiles * (spec.experts * STEP_CYCLES + other_cycles)
        row_reads = 1 if self.keeps_rows else self.tiles
        row_bytes = row_reads * spec.mean_rows * spec.f * dtype_bytes(spec.dtype)
        read_bytes = spec.experts * spec.down.bytes(spec.f, spec.d) + row_bytes
        return max(cycles / machine.clock_hz, read_bytes / machine.hbm_bytes_per_s) * 1e6


def are_summed(spec: ExpertsSpec) -> bool:
    """True if SMEM has room for where rows are added, and kernels multiply by the second matrices as they are."""
    return spec.choices <= MAX_CHOICES // 2 and spec.down.is_multiplied(spec.dtype, spec.f)


def tile_widths(d: int) -> list[int]:
    """Return the columns of tiles to choose from: as many as a register has of a row, and half as many."""
    widest = max(side for side in legal_sides(d, LANES) if side <= ROW_COLUMNS)
    return [widest] if widest % (2 * LANES) else [widest, widest // 2]
