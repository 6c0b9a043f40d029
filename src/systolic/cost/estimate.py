"""The time of a matmul by arithmetic: traffic, ramp, the overhead of a subtile, and the last store.

It ranks configurations, and names the largest part. Its constants that depend on the chip are `Chip.step_estimate` and
`Chip.code_costs`. `benchmarks/step_estimate.py` prints how far it is from simulated times.
"""

from __future__ import annotations

import math
from typing import Literal

from systolic.chips import Chip
from systolic.cost.profile import StepCost
from systolic.cost.roofline import mxu_rows_per_cycle
from systolic.schedule.blocks import FACTORS, block_shape
from systolic.schedule.config import KernelConfig, has_last_step, is_made, is_split, is_staged, made_of, row_chunk
from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec, dtype_bytes

_VECTOR_ELEMENTS = 1024  # of 32 bits in a register
_VECTOR_SLOTS = 3  # arithmetic instructions in an average bundle
# Operations per register, in addition to its function, to make an operand before a product. The first from int8
# weights and 16 rows on v7x (1.1 cycles for three operations), the others from v6e's 2048·4096·14336 with a mask (9.2
# in all, two of its own) and 4096³ with a norm of rows and columns (8, four of its own). Other cases were not measured.
_MADE_OPS = 0.5
_MATRIX_OPS = 6  # for an additional matrix, whose registers hold other elements
# For a matrix of slopes, in the same register layout as the operand. Simulated with dx of 2048·14336·4096: the choice
# takes 599 µs in place of 631 on v6e, and 531 in place of 552 on v7x. Single products were not measured.
_SLOPES_OPS = 1
_COLUMN_OPS = 3  # for a column, which is broadcast
_CAST_OPS = 2
_SPLIT_OPS = 5
_MADE_SHARE = 0.1  # share of making operands that products do not hide
_SHARPNESS = 32  # of `_longer`: two equal times are 2 % longer than one
_OTHER_BUNDLES = 500  # of the pipeline around the slices


def code_bundles(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
    """Estimate the size of the kernel's code: the straight code of one slice, and the rest."""
    cost = chip.step_estimate
    products = _slice_cycles(spec, config, chip) * cost.bundles_per_cycle
    if cost.most_summed_rows is not None and config.subtile_m > cost.most_summed_rows:
        products *= cost.unsummed_bundles
    registers = spec.sums * config.subtile_m * config.subtile_n / _VECTOR_ELEMENTS
    # Each pass over float32 also splits the operands.
    products *= cost.highest_bundles if spec.passes > 3 else 1
    made_registers, made_cycles = _made(spec, config)
    straight = max(products, made_cycles) + made_registers * cost.bundles_per_made_register
    straight += registers * cost.bundles_per_register
    if spec.dtype_multiplied in chip.emulated_dtypes:
        both = config.subtile_m + config.subtile_n
        straight += chip.code_costs.emulated_register_bundles * both * config.tiles.tile_k / _VECTOR_ELEMENTS
    # The epilogue fills free slots of its slice's products; only the rest is additional code.
    epilogue = registers / spec.sums * spec.epilogue_op_count / _VECTOR_SLOTS
    finishing = max(straight, epilogue) + 0.2 * min(straight, epilogue)
    if config.fill_chunks > 1:
        part = row_chunk(spec, config) / config.subtile_m * epilogue
        finishing += products / config.fill_chunks + (part if config.tiles.tile_k >= spec.k else 0)
    return finishing + (straight if has_last_step(spec, config.tiles) else 0) + _OTHER_BUNDLES


def estimated_cost(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> StepCost:
    """Estimate the cost of the steps of a kernel that was never simulated."""
    cost, code, tiles = chip.step_estimate, chip.code_costs, config.tiles
    fill_cycles = cost.fill_cycles + cost.drain_cycles_per_row * config.subtile_m
    made_registers = _made(spec, config)[1]
    sums = spec.sums * (spec.k > tiles.tile_k) + 2 * spec.products * is_split(spec)
    adding = sums * code.sum_register_cycles * config.subtile_m * config.subtile_n / _VECTOR_ELEMENTS
    busy_cycles = max(_slice_cycles(spec, config, chip), made_registers, adding)
    step = config.subtiles * (busy_cycles + _MADE_SHARE * made_registers + fill_cycles) + cost.step_cycles
    step += _vector_cycles(spec, tiles, code.epilogue_share)
    adding_chunks = spec.sums * code.chunk_register_cycles * tiles.tile_m * tiles.tile_n / _VECTOR_ELEMENTS
    chunk_cycles = (config.fill_chunks - 1) * (config.subtiles * fill_cycles + adding_chunks)
    return StepCost(call=code.call_cycles[config.pipeline], first=step + chunk_cycles, step=step, end=step)


def peak_cost(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> StepCost:
    """Return the least cost of steps, in which the matrix units take the rows of a tile without a pause."""
    machine, tiles = chip.machine, config.tiles
    rate = mxu_rows_per_cycle(spec.dtype_multiplied, chip)
    weights = math.ceil(tiles.tile_k / machine.mxu_rows) * math.ceil(tiles.tile_n / machine.mxu_columns)
    step = spec.products * spec.passes * weights * tiles.tile_m / rate / machine.mxu_count
    return StepCost(call=0.0, first=step, step=step, end=step)


def _slice_cycles(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
    """Return the cycles for which a slice's products keep the matrix units of a core busy."""
    machine, cost = chip.machine, chip.step_estimate
    rows = -(-config.subtile_m // 8) * 8
    weights = math.ceil(config.tiles.tile_k / machine.mxu_rows) * math.ceil(config.subtile_n / machine.mxu_columns)
    rate = mxu_rows_per_cycle(spec.dtype_multiplied, chip)
    gap = cost.weight_gap_cycles * dtype_bytes(spec.dtype_multiplied) / dtype_bytes("bfloat16")
    row_cycles = max(rows / rate + gap, cost.weight_cycles)
    return spec.products * spec.passes * weights * row_cycles / machine.mxu_count


def _made(spec: MatmulSpec, config: KernelConfig) -> tuple[float, float]:
    """Return the registers of operands that a slice makes, and the vector unit's cycles for them."""
    registers = cycles = 0.0
    for side, across in zip(FACTORS, (config.subtile_m, config.subtile_n), strict=True):
        if is_made(spec, side) and not is_staged(spec, config.tiles, side):
            registers_in, factors = across * config.tiles.tile_k / _VECTOR_ELEMENTS, made_of(spec, side)
            registers += factors * registers_in * (2 if is_split(spec) else 1)  # two halves
            cycles += registers_in * (_made_ops(spec, side) + factors * _MADE_OPS) / _VECTOR_SLOTS
    return registers, cycles


def _made_ops(spec: MatmulSpec, side: Literal["lhs", "rhs"]) -> float:
    """Return the vector operations that make an element of an operand of one or two factors from the stored value."""
    prologue, factors = spec.prologue(side), made_of(spec, side)
    ops = factors * _CAST_OPS if prologue is None else prologue.op_count
    for operand in prologue.operands if prologue is not None else ():
        if operand.rows:
            matrix_ops = _MATRIX_OPS if spec.pairing is None else _SLOPES_OPS
            ops += matrix_ops if operand.columns else _COLUMN_OPS
    return ops + (factors * _SPLIT_OPS if is_split(spec) else 0)


def _vector_cycles(spec: MatmulSpec, tiles: Tiles, epilogue_share: float) -> float:
    """Return the cycles of a step in which the vector unit works and no product can run: staging, the epilogue."""
    cycles = 0.0
    for side in FACTORS:
        if is_staged(spec, tiles, side):
            rows, columns = block_shape(spec, tiles, side)
            operations = made_of(spec, side) + _made_ops(spec, side) / _VECTOR_SLOTS
            cycles += operations * rows * columns / _VECTOR_ELEMENTS
    grid_k = tiles.grid(spec)[2]
    # Most of an epilogue runs in parallel with products.
    registers = tiles.tile_m * tiles.tile_n / _VECTOR_ELEMENTS
    return cycles + epilogue_share * registers * spec.epilogue_op_count / _VECTOR_SLOTS / grid_k
