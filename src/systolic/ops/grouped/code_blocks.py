"""Stretches of straight code of a grouped product: the rows and columns of each, and the size of all the code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.schedule.config import KernelConfig
from systolic.schedule.legality import LANES
from systolic.schedule.sizes import block_size, padded

# Bundles of one stretch of straight code of a gradient at most: all together have to be fewer than 14,000.
MAX_BLOCK_BUNDLES = 4200
_RAGGED_COLUMNS = 512  # of a block of a tile that cannot be cut evenly
_MIN_ROWS = 32  # of a smaller block: one of fewer rows takes about as long
# Bundles of all blocks of a product together, by arithmetic, that compile to fewer than 14,000: fewer where there are
# many blocks, or more than 512 columns of one. Fitted to the code of some forty kernels of `bench --suite moe`.
MAX_BUNDLES = 11_300
_FINE_SHARE, _WIDE_SHARE, _WIDE_COLUMNS = 0.9, 0.96, 512
_MIN_CODE_ROWS = 128  # rows; a block of fewer rows has as many bundles, for the weights
# Rows of the smaller blocks, as shares of the largest one's: a group's last rows take the smallest that holds them, or
# several half as long. The more sizes there are, the fewer rows are multiplied for nothing, and the more code there is.
# For large groups halves are enough, and a longer block may use the code.
_FINE_FRACTIONS = (1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)
_FRACTIONS = (1.0, 0.75, 0.5, 0.25, 0.125)
_LARGE_ROWS = 1024
_LARGE_FRACTIONS = (1.0, 0.25, 0.0625)
# A block may have this number or share of unused rows before two smaller blocks are faster, because matrix units
# wait while a block begins and ends.
_LOST_ROWS, _LOST_SHARE = 160, 0.25
# Of sums of blocks of k: each register is multiplied by its scales, and added.
_REGISTER_NUMBERS, _SCALE_OPERATIONS, _VECTOR_SLOTS = 1024, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """The work of one stretch of straight code: rows by columns of the weights, over this much of k.

    It is used if more than `above` rows of a visit are left, and no larger block is used.
    """

    rows: int
    columns: int
    depth: int
    above: int = 0


def row_blocks(spec: GroupedSpec, config: KernelConfig, multiple: int, chip: Chip) -> tuple[RowBlock, ...]:
    """Return the blocks of a product, the largest rows first; `multiple` is a register's rows."""
    columns = block_columns(config)
    # A shorter block after the others is code of its own.
    code_columns = columns + config.tiles.tile_n % columns
    row_cycles = spec.passes * spec.products * code_columns / macs_per_cycle(spec.dtype, chip)
    if spec.scale_blocks > 1:
        row_cycles *= _scaled_share(spec, chip)
    is_large = config.subtile_m >= _LARGE_ROWS

    def sizes(fractions: Sequence[float]) -> list[int]:
        result = {padded(int(config.subtile_m * fraction), multiple) for fraction in fractions}
        return sorted((size for size in result if size >= min(_MIN_ROWS, config.subtile_m)), reverse=True)

    def bundles(rows: Sequence[int]) -> float:
        """Count the bundles of all blocks together, over one row of k."""
        return sum(max(size, _MIN_CODE_ROWS) for size in rows) * row_cycles * chip.step_estimate.bundles_per_cycle

    fine, coarse = sizes(_FINE_FRACTIONS), sizes(_LARGE_FRACTIONS if is_large else _FRACTIONS)
    max_depth = MAX_BUNDLES * (_WIDE_SHARE if columns > _WIDE_COLUMNS else 1) / bundles(coarse)
    depth = _code_depth(spec.k, int(max_depth), spec.rhs_block or LANES)
    rows = fine if not is_large and bundles(fine) * depth <= MAX_BUNDLES * _FINE_SHARE else coarse
    limits = [
        max(next_size, size - max(_LOST_ROWS, int(size * _LOST_SHARE))) for size, next_size in itertools.pairwise(rows)
    ]
    return tuple(
        RowBlock(rows=size, columns=columns, depth=depth, above=limit)
        for size, limit in zip(rows, (*limits, 0), strict=True)
    )


def _code_depth(k: int, max_depth: int, multiple: int) -> int:
    """Choose how much of k one stretch of code sums over; a shorter rest is code of its own."""
    depth = block_size(k, multiple, max_depth)
    if k % depth == 0:
        return depth
    return max(
        (index for index in range(multiple, depth + 1, multiple) if index + k % index <= max_depth), default=multiple
    )


def _scaled_share(spec: GroupedSpec, chip: Chip) -> float:
    """Return the code of a block of k whose sums are scaled, as a multiple of the code of a sum without scales."""
    scale_block = spec.k // spec.scale_blocks
    return (
        max(chip.machine.mxu_rows / scale_block, 1.0) + macs_per_cycle(spec.dtype, chip) * scale_cycles(1) / scale_block
    )


def scale_cycles(numbers: float) -> float:
    """Return the cycles of the vector units to scale and add up sums of blocks of k."""
    return numbers / _REGISTER_NUMBERS * _SCALE_OPERATIONS / _VECTOR_SLOTS


def gradient_block(spec: GroupedGradientSpec, config: KernelConfig, chip: Chip) -> tuple[int, int]:
    """Return the rows and columns of a gradient that one stretch of straight code makes."""
    columns = block_columns(config)
    cycles = spec.passes * config.subtile_m * columns / macs_per_cycle(spec.dtype, chip)
    most_cycles = MAX_BLOCK_BUNDLES / chip.step_estimate.bundles_per_cycle
    return block_size(config.tiles.tile_k, LANES, int(most_cycles / cycles)), columns


def block_columns(config: KernelConfig) -> int:
    """Return the columns of a block: a subtile's, or fewer if the subtile is a whole tile of a ragged width."""
    columns = config.subtile_n
    return block_size(columns, LANES, _RAGGED_COLUMNS) if columns % LANES else columns


def macs_per_cycle(dtype: str, chip: Chip) -> float:
    """Return the multiplications of a core's matrix units in a cycle of the clock of the published peak."""
    return chip.peak_ops_per_s(dtype) / chip.cores_per_device / chip.peak_clock_hz / 2
