"""The cycles of stretches of straight code of grouped products, by arithmetic."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.cost.roofline import mxu_rows_per_cycle
from systolic.ops.grouped.code_blocks import RowBlock, scale_cycles
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.spec import dtype_bytes


def product_cycles(spec: GroupedSpec, block: RowBlock, chip: Chip) -> float:
    """Return the cycles of one stretch of straight code of a product, which may scale the sums of blocks of k."""
    cycles = block_cycles(spec, block.rows, block.depth, block.columns, chip, spec.rhs_block, spec.dtype_pushed)
    if spec.scale_blocks == 1:
        return cycles
    return max(cycles, scale_cycles(block.rows * block.columns * block.depth * spec.scale_blocks / spec.k))


def block_cycles(
    spec: GroupedSpec | GroupedGradientSpec,
    rows: int,
    depth: int,
    columns: int,
    chip: Chip,
    summed: int | None = None,
    pushed: str = "",
) -> float:
    """Return the cycles of one stretch of straight code: the rows of each tile of weights, and delaying pushes.

    Args:
      summed: the most of `depth` that one sum has; None: all.
      pushed: dtype of the weights in the matrix units; "": the dtype of the rows.
    """
    machine, estimate = chip.machine, chip.step_estimate
    deep = min(machine.mxu_rows, summed or depth)
    tiles = -(-depth // deep) * -(-columns // machine.mxu_columns) / machine.mxu_count
    registers = deep * machine.mxu_columns * dtype_bytes(pushed or spec.dtype) / 4096
    products = max(rows / mxu_rows_per_cycle(spec.dtype, chip), estimate.weight_cycles)
    ends = estimate.fill_cycles + estimate.drain_cycles_per_row * rows
    return ends + spec.passes * tiles * (products + registers * machine.weight_push_cycles)
