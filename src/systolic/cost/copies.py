"""The time that copies hold the pipe to HBM, by their bytes and by each contiguous run of a strided copy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.schedule.blocks import Block
from systolic.schedule.config import KernelConfig
from systolic.spec import MatmulSpec, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCycles:
    """Cycles for which copies of one array hold the pipe to HBM."""

    block: float
    chunk: float  # of the first step's block

    @classmethod
    def of(cls, block: Block, config: KernelConfig, chip: Chip) -> CopyCycles:
        """Return the cycles of an input's block; if the last blocks are smaller, the mean of all."""
        rows, columns = block.shape
        blocks = math.prod(-(-size // side) for size, side in zip(block.matrix, block.shape, strict=True))
        share = math.prod(block.matrix) / blocks / (rows * columns)
        chunks = config.fill_chunks
        part = (rows // chunks, columns) if block.along[0] == "k" else (rows, columns // chunks)
        return cls(
            block=_copy_cycles(rows, columns, block.matrix[1], block.dtype, chip) * share,
            chunk=_copy_cycles(*part, block.matrix[1], block.dtype, chip) * share,
        )


def _copy_cycles(rows: int, columns: int, width: int, dtype: str, chip: Chip) -> float:
    """Return the cycles for which the copy of a block holds the pipe, out of a matrix with this many columns."""
    machine = chip.machine
    bytes_per_cycle = machine.hbm_bytes_per_s / machine.clock_hz
    # Matrices lie in HBM in tiles of eight rows (32 rows for 8-bit types); whole rows are one run.
    runs = 0 if columns >= width else math.ceil(rows / (32 if dtype_bytes(dtype) == 1 else 8))
    return rows * columns * dtype_bytes(dtype) / bytes_per_cycle + runs * machine.hbm_run_cycles


def store_cycles(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
    """Return the cycles for which stores of a tile of every output hold the pipe; if the last are smaller, the mean."""
    tiles = config.tiles
    grid_m, grid_n, _ = tiles.grid(spec)
    share = spec.m * spec.n / (grid_m * tiles.tile_m * grid_n * tiles.tile_n)
    return share * output_cycles(spec, tiles.tile_m, tiles.tile_n, chip)


def output_cycles(spec: MatmulSpec, rows: int, columns: int, chip: Chip) -> float:
    """Return the cycles for which stores of this many rows and columns of every output hold the pipe."""
    return sum(_copy_cycles(rows, columns, spec.n, dtype, chip) for dtype in spec.dtypes_out)
