"""The time of a blocked matmul by arithmetic: traffic, ramp, what a slice costs besides its products, the last store.

It ranks configurations, and it says which of these is the larger part. Its constants that depend on the chip are
`Chip.step_estimate`. How far it is from simulated times, `benchmarks/blocked_model.py` prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from systolic.chips import Chip
from systolic.schedule.blocks import SIDES, block_shape
from systolic.schedule.config import (
    KernelConfig,
    has_last_step,
    is_made,
    is_split,
    is_staged,
    row_chunk,
)
from systolic.schedule.copies import Copies, blocked_traffic
from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec

_VECTOR_ELEMENTS = 1024  # of 32 bits in a register
_VECTOR_SLOTS = 3  # arithmetic instructions that a bundle really gets filled with
_PIECE_CYCLES = 0.7  # to add a register of a piece's sum to that of the pieces before
# What it takes to make an operand on the way, in operations a register besides its function. The first from int8
# weights and 16 rows on v7x (1.1 cycles for three operations), the others from v6e's 2048·4096·14336 with a mask (9.2
# in all, two of its own) and 4096³ with a norm of rows and columns (8, four of its own). Others were not looked at.
_MADE_OPS = 0.5
_MATRIX_OPS = 6  # for a matrix beside it, of which registers hold other elements
_COLUMN_OPS = 3  # for a column, which is broadcast
_CAST_OPS = 2
_SPLIT_OPS = 5
_ADDING_CYCLES = 1.6  # a register of the sum, from v7x's 2048·512·32768 in steps of 256 along k
_MADE_SHARE = 0.1  # of what is made on the way, that products do not hide
_EPILOGUE_SHARE = 0.15  # of an epilogue: 0.04 on v5e, 0.16 on v6e, 0.21 on v7x, for gelu and 4096³
_SHARPNESS = 32  # of `_longer`: two equal times are 2 % longer than one
_EMULATED_BUNDLES = 3  # a register that the compiler converts ahead of the matrix units: float8_e4m3fn on v6e
_OTHER_BUNDLES = 500  # the pipeline around the slices


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledTime:
    """A time by arithmetic and what it is made of, in microseconds."""

    time_us: float
    compute_us: float  # matrix units, with what slices waste
    copy_us: float
    ramp_us: float  # until the first blocks are there, and from the last product to the end of its store
    bundles: float  # of code, at a guess

    @property
    def limit(self) -> str:
        """The larger part, in words."""
        return "the matrix units" if self.compute_us >= self.copy_us else "HBM"


def bundles(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
    """Size of the kernel's code at a guess: one slice's straight code, and the rest."""
    cost = chip.step_estimate
    products = _slice_cycles(spec, config, chip) * cost.bundles_per_cycle
    if cost.most_summed_rows is not None and config.subtile_m > cost.most_summed_rows:
        products *= cost.unsummed_bundles
    registers = config.subtile_m * config.subtile_n / _VECTOR_ELEMENTS
    # Each pass over float32 also takes the operands apart.
    products *= cost.highest_bundles if spec.passes > 3 else 1
    made_registers, made_cycles = _made(spec, config)
    straight = max(products, made_cycles) + made_registers * cost.bundles_per_made_register
    straight += registers * cost.bundles_per_register
    if spec.dtype_multiplied in chip.emulated_dtypes:
        both = config.subtile_m + config.subtile_n
        straight += _EMULATED_BUNDLES * both * config.tiles.tile_k / _VECTOR_ELEMENTS
    # The epilogue fills slots beside the products of its slice; only what is too much for them is code of its own.
    epilogue = registers * spec.epilogue.op_count / _VECTOR_SLOTS
    finishing = max(straight, epilogue) + 0.2 * min(straight, epilogue)
    if config.fill_chunks > 1:
        part = row_chunk(spec, config) / config.subtile_m * epilogue
        finishing += products / config.fill_chunks + (part if config.tiles.tile_k >= spec.k else 0)
    return finishing + (straight if has_last_step(spec, config.tiles) else 0) + _OTHER_BUNDLES


def blocked_time(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> ModelledTime:
    """The time on one device; on two cores each has half of the blocks and HBM is shared."""
    machine, cost, tiles = chip.machine, chip.step_estimate, config.tiles
    grid_m, grid_n, grid_k = tiles.grid(spec)
    outputs = spec.batch * grid_m * grid_n
    cores = chip.cores_per_device if config.pipeline == "auto" else 1
    runs = -(-outputs // cores)  # over k, of the busier core
    copies = Copies.of(spec, config, chip, cores)

    fill_cycles = cost.fill_cycles + cost.drain_cycles_per_row * config.subtile_m
    made = _made(spec, config)[1]
    sums = (grid_k > 1) + 2 * is_split(spec)
    adding = sums * _ADDING_CYCLES * config.subtile_m * config.subtile_n / _VECTOR_ELEMENTS
    busy_cycles = max(_slice_cycles(spec, config, chip), made, adding)
    slice_cycles = busy_cycles + _MADE_SHARE * made + fill_cycles
    step_cycles = config.subtiles * slice_cycles + cost.step_cycles + _vector_cycles(spec, tiles)
    held_up_cycles = copies.count * (machine.dma_issue_cycles + machine.dma_wait_cycles)
    compute_s = (step_cycles + held_up_cycles) / machine.clock_hz
    # Two copies are under way at a time, with the three stages of `kernels.manual_dma` three.
    hidden_s = compute_s if config.num_stages == 2 else 0.0
    under_way = config.num_stages if config.pipeline == "manual" else 2
    step_s = _longer(compute_s, copies.later_s, (copies.later_s + copies.latency_s + hidden_s) / under_way)
    if config.num_stages == 2:
        # Where a block is stored, that and the next inputs share a step.
        run_s = (grid_k - 1) * step_s + _longer(step_s, copies.later_s + copies.store_s)
    else:
        run_s = _longer(grid_k * step_s, grid_k * copies.later_s + copies.store_s)
    # There are two blocks of the output: one is stored while the other is made.
    run_s = max(run_s, (compute_s + copies.store_s + copies.latency_s) / 2)
    # Where the operand that stays is exchanged, all of its block arrives within the steps by which copies are ahead.
    outs = len(spec.dtypes_out)
    exchanges = max(0.0, (grid_m if config.grid_order == "m" else grid_n) * spec.batch / cores - 1)
    ahead_s = (config.num_stages - 1) * step_s
    exchanged_s = max(0.0, copies.first_s + copies.latency_s - ahead_s) if grid_k == 1 else 0.0
    first_s = copies.first_s + compute_s
    store_s = copies.last_store_s
    if config.pipeline == "manual":
        # It is fetched as soon as its buffer is free, but then shares a step with what that step needs. The first
        # products wait for one piece, the last store is a slice.
        exchanged_s = max(0.0, copies.first_s - step_s) if grid_k == 1 else 0.0
        adding = _PIECE_CYCLES * tiles.tile_m * tiles.tile_n / _VECTOR_ELEMENTS
        more = (config.fill_chunks - 1) * (config.subtiles * fill_cycles + held_up_cycles + adding)
        pieces_s = compute_s + more / machine.clock_hz
        first_s = max(copies.first_s / config.fill_chunks + pieces_s, copies.first_s + pieces_s / config.fill_chunks)
        # The second step begins when its blocks are there, which come after the first's.
        first_s = max(first_s, copies.first_s + min(copies.later_s, compute_s))
        store_s += outs * config.subtiles * machine.dma_issue_cycles / machine.clock_hz
    steps_s = (runs - 1) * run_s + (grid_k - 1) * step_s + exchanges * exchanged_s
    ends_s = first_s + store_s + 2 * copies.latency_s
    return ModelledTime(
        time_us=(steps_s + ends_s) * 1e6,
        compute_us=runs * grid_k * compute_s * 1e6,
        copy_us=(copies.first_s + (runs * grid_k - 1) * copies.later_s + runs * copies.store_s) * 1e6,
        ramp_us=max(0.0, ends_s - step_s) * 1e6,
        bundles=bundles(spec, config, chip),
    )


def least_time_us(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
    """A time below which no kernel of this configuration is: its products or its copies alone, and two latencies."""
    machine = chip.machine
    grid_m, grid_n, grid_k = config.tiles.grid(spec)
    steps = -(-spec.batch * grid_m * grid_n * grid_k // chip.cores_per_device)
    rate = machine.mxu_rows_per_cycle.get(_listing_type(spec.dtype_multiplied), machine.mxu_rows_per_cycle["bf16"])
    tiles = config.tiles
    weights = math.ceil(tiles.tile_k / machine.mxu_rows) * math.ceil(tiles.tile_n / machine.mxu_columns)
    products_s = steps * spec.passes * weights * tiles.tile_m / rate / machine.mxu_count / machine.clock_hz
    copies_s = blocked_traffic(spec, config).hbm_bytes / machine.hbm_bytes_per_s
    return (max(products_s, copies_s) + 2 * machine.dma_latency_cycles / machine.clock_hz) * 1e6


def _longer(*times_s: float) -> float:
    """The longest of what overlaps, and a little more where two are near: they hold each other up."""
    longest = max(times_s)
    return longest * sum((time_s / longest) ** _SHARPNESS for time_s in times_s) ** (1 / _SHARPNESS)


def _slice_cycles(spec: MatmulSpec, config: KernelConfig, chip: Chip) -> float:
    """Cycles for which a slice's products keep the matrix units of a core busy."""
    machine, cost = chip.machine, chip.step_estimate
    rows = -(-config.subtile_m // 8) * 8
    weights = math.ceil(config.tiles.tile_k / machine.mxu_rows) * math.ceil(config.subtile_n / machine.mxu_columns)
    rate = machine.mxu_rows_per_cycle.get(_listing_type(spec.dtype_multiplied), machine.mxu_rows_per_cycle["bf16"])
    each = max(rows / rate, cost.weight_cycles) + cost.weight_gap_cycles
    return spec.passes * weights * each / machine.mxu_count


def _made(spec: MatmulSpec, config: KernelConfig) -> tuple[float, float]:
    """Registers of operands that a slice makes on the way, and the cycles of the vector unit which that takes."""
    registers = cycles = 0.0
    for side, across in zip(SIDES, (config.subtile_m, config.subtile_n), strict=True):
        if is_made(spec, side) and not is_staged(spec, config.tiles, side):
            its = across * config.tiles.tile_k / _VECTOR_ELEMENTS
            registers += its * (2 if is_split(spec) else 1)  # two halves
            cycles += its * (_made_ops(spec, side) + _MADE_OPS) / _VECTOR_SLOTS
    return registers, cycles


def _made_ops(spec: MatmulSpec, side: Literal["lhs", "rhs"]) -> float:
    """Vector operations an element to make what is multiplied of what is stored."""
    prologue = spec.prologue(side)
    ops = _CAST_OPS if prologue is None else prologue.op_count
    for operand in prologue.operands if prologue is not None else ():
        if operand.rows:
            ops += _MATRIX_OPS if operand.columns else _COLUMN_OPS
    return ops + (_SPLIT_OPS if is_split(spec) else 0)


def _listing_type(dtype: str) -> str:
    return {"float32": "f32", "bfloat16": "bf16", "int8": "s8"}.get(dtype, "f8")


def _vector_cycles(spec: MatmulSpec, tiles: Tiles) -> float:
    """Cycles of a step in which the vector unit works while no product can run: staging operands, the epilogue."""
    cycles = 0.0
    for side in SIDES:
        if is_staged(spec, tiles, side):
            rows, columns = block_shape(spec, tiles, side)
            cycles += (1 + _made_ops(spec, side) / _VECTOR_SLOTS) * rows * columns / _VECTOR_ELEMENTS
    grid_k = tiles.grid(spec)[2]
    # Most of an epilogue runs beside products.
    registers = tiles.tile_m * tiles.tile_n / _VECTOR_ELEMENTS
    return cycles + _EPILOGUE_SHARE * registers * spec.epilogue.op_count / _VECTOR_SLOTS / grid_k
