"""The time of a blocked matmul by arithmetic: traffic, ramp, what a slice costs besides its products, the last store.

It ranks blockings, and it says which of these is the larger part. How far it is from simulated times, and the sweep
from which its few constants are, `benchmarks/blocked_model.py` prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.problem import MatmulProblem, dtype_bytes
from systolic.tiling.blocking import Blocking, block_shape, extra_block, has_accumulator, is_staged
from systolic.tiling.tiles import Tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCost:
    """What a slice costs on one chip, in cycles of a core: fitted to simulated times of this kernel."""

    fill_cycles: float  # to load the first weights and to drain the last results
    bundles_per_cycle: float  # of straight code, for each cycle that its products keep the matrix units busy
    weight_cycles: float  # to load one tile of weights into a matrix unit; hides behind as many rows


# From simulated runs of this kernel in bfloat16 at 4096³ with 16 to 256 slices (`benchmarks/blocked_model.py`).
_SLICE_COSTS = {
    "v4": SliceCost(fill_cycles=200, bundles_per_cycle=0.95, weight_cycles=128),
    "v5e": SliceCost(fill_cycles=200, bundles_per_cycle=0.95, weight_cycles=128),
    "v5p": SliceCost(fill_cycles=200, bundles_per_cycle=0.95, weight_cycles=128),
    "v6e": SliceCost(fill_cycles=480, bundles_per_cycle=1.05, weight_cycles=128),
    "v7x": SliceCost(fill_cycles=270, bundles_per_cycle=0.6, weight_cycles=64),
}
_STEP_CYCLES = 150  # scalar code of one step of the pipeline: read off steps that multiply almost nothing
_VECTOR_ELEMENTS = 1024  # of 32 bits in a register
_VECTOR_SLOTS = 3  # arithmetic instructions that a bundle really gets filled with
_STORE_SLOTS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes over HBM."""

    lhs_bytes: int
    rhs_bytes: int
    extra_bytes: int
    out_bytes: int

    @property
    def hbm_bytes(self) -> int:
        """All together, read and written."""
        return self.lhs_bytes + self.rhs_bytes + self.extra_bytes + self.out_bytes


def blocked_traffic(problem: MatmulProblem, blocking: Blocking) -> Traffic:
    """Bytes that the pipeline copies. A block is fetched when its index differs from the step before.

    With rows outermost: lhs once for each column of blocks, unless all of k is one block; rhs once for each row of
    blocks, unless it is one block as a whole. With columns outermost the other way round. The output once.
    """
    grid_m, grid_n, grid_k = blocking.tiles.grid(problem)
    inner, outer = (grid_n, grid_m) if blocking.outer == "m" else (grid_m, grid_n)
    kept = inner if grid_k > 1 else 1  # reads of the operand whose block stays
    streamed = outer if grid_k > 1 or inner > 1 else 1
    lhs_reads, rhs_reads = (kept, streamed) if blocking.outer == "m" else (streamed, kept)
    lhs_whole = grid_k == 1 and grid_m == 1
    rhs_whole = grid_k == 1 and grid_n == 1
    lhs = problem.lhs_bytes // problem.batch_lhs * (problem.batch_lhs if lhs_whole else problem.batch)
    rhs = problem.rhs_bytes // problem.batch_rhs * (problem.batch_rhs if rhs_whole else problem.batch)
    extra = 0
    for one in problem.fusion.extras:
        reads = {"lhs": lhs_reads, "rhs": rhs_reads, "out": 1}[one.beside]
        rows, columns = extra_block(problem, blocking.tiles, one)
        blocks = {"lhs": grid_m * grid_k, "rhs": grid_k * grid_n, "out": grid_m * grid_n}[one.beside]
        extra += problem.batch * blocks * reads * rows * columns * dtype_bytes(one.dtype)
    return Traffic(lhs_bytes=lhs * lhs_reads, rhs_bytes=rhs * rhs_reads, extra_bytes=extra, out_bytes=problem.out_bytes)


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


def bundles(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> float:
    """Size of the kernel's code at a guess: one slice's straight code, and the rest."""
    cost = _SLICE_COSTS[chip.name]
    products = _slice_cycles(problem, blocking, chip) * cost.bundles_per_cycle
    elements = blocking.slice_m * blocking.slice_n / _VECTOR_ELEMENTS
    after = elements * (2 + problem.fusion.epilogue_ops / _VECTOR_SLOTS)
    return products + (after if not has_accumulator(problem, blocking.tiles) else elements * 2) + 600


def blocked_time(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> ModelledTime:
    """The time on one device; on two cores each has half of the blocks and HBM is shared."""
    machine, cost, tiles = chip.machine, _SLICE_COSTS[chip.name], blocking.tiles
    grid_m, grid_n, grid_k = tiles.grid(problem)
    outputs = problem.batch * grid_m * grid_n
    cores = chip.cores_per_device if blocking.buffers == 2 else 1
    runs = -(-outputs // cores)  # over k, of the busier core
    steps = runs * grid_k
    traffic = blocked_traffic(problem, blocking)
    second = machine.clock_hz

    slice_cycles = _slice_cycles(problem, blocking, chip) + cost.fill_cycles
    step_cycles = blocking.slices * slice_cycles + _STEP_CYCLES + _vector_cycles(problem, tiles)
    input_bytes = (traffic.lhs_bytes + traffic.rhs_bytes + traffic.extra_bytes) / (outputs * grid_k)
    output_bytes = traffic.out_bytes / outputs
    first_bytes = _block_bytes(problem, blocking)
    held_up = 2 * (machine.dma_issue_cycles + machine.dma_wait_cycles)
    compute_s = (step_cycles + held_up) / second
    shared = machine.hbm_bytes_per_s / cores
    copy_s = input_bytes / shared
    store_s = output_bytes / shared
    # With two buffers the store of a block and the next inputs share one step; with three, one run over k.
    if blocking.buffers == 2:
        run_s = (grid_k - 1) * max(compute_s, copy_s) + max(compute_s, copy_s + store_s)
        # Where a block of the operand that stays is exchanged, all of it arrives within one step.
        exchanged = max(0.0, (first_bytes / shared - copy_s - compute_s)) if grid_k == 1 else 0.0
        exchanges = (grid_m if blocking.outer == "m" else grid_n) * problem.batch / cores
    else:
        run_s = max(grid_k * compute_s, grid_k * copy_s + store_s)
        exchanged = max(0.0, (first_bytes / shared - copy_s - 2 * compute_s)) if grid_k == 1 else 0.0
        exchanges = (grid_m if blocking.outer == "m" else grid_n) * problem.batch
    latency_s = 2 * machine.dma_latency_cycles / second
    ramp_s = first_bytes / shared + store_s + latency_s
    total_s = runs * run_s + exchanged * max(0.0, exchanges - 1) + ramp_s
    return ModelledTime(
        time_us=total_s * 1e6,
        compute_us=steps * compute_s * 1e6,
        copy_us=traffic.hbm_bytes / machine.hbm_bytes_per_s * 1e6,
        ramp_us=ramp_s * 1e6,
        bundles=bundles(problem, blocking, chip),
    )


def _slice_cycles(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> float:
    """Cycles for which a slice's products keep the matrix units of a core busy."""
    machine, cost = chip.machine, _SLICE_COSTS[chip.name]
    rows = -(-blocking.slice_m // 8) * 8
    weights = math.ceil(blocking.tiles.tile_k / machine.mxu_rows) * math.ceil(blocking.slice_n / machine.mxu_columns)
    rate = machine.mxu_rows_per_cycle.get(_listing_type(problem.dtype_multiplied), machine.mxu_rows_per_cycle["bf16"])
    each = max(rows / rate, cost.weight_cycles)
    return problem.passes * weights * each / machine.mxu_count


def _listing_type(dtype: str) -> str:
    return {"float32": "f32", "bfloat16": "bf16", "int8": "s8"}.get(dtype, "f8")


def _vector_cycles(problem: MatmulProblem, tiles: Tiles) -> float:
    """Cycles of a step in which the vector unit works while no product can run: staging operands, the epilogue."""
    cycles = 0.0
    for side in ("lhs", "rhs"):
        if is_staged(problem, side):
            rows, columns = block_shape(problem, tiles, side)
            cycles += 2 * rows * columns / _VECTOR_ELEMENTS
    grid_k = tiles.grid(problem)[2]
    epilogue = tiles.tile_m * tiles.tile_n / _VECTOR_ELEMENTS * (1 + problem.fusion.epilogue_ops) / _VECTOR_SLOTS
    if grid_k > 1 and problem.fusion.epilogue_ops <= 1:
        return cycles  # beside the products
    return cycles + epilogue / grid_k


def _block_bytes(problem: MatmulProblem, blocking: Blocking) -> float:
    """Bytes that have to arrive before the first product."""
    total = 0.0
    total += math.prod(block_shape(problem, blocking.tiles, "lhs")) * dtype_bytes(problem.dtype_lhs)
    total += math.prod(block_shape(problem, blocking.tiles, "rhs")) * dtype_bytes(problem.dtype_rhs)
    for extra in problem.fusion.extras:
        rows, columns = extra_block(problem, blocking.tiles, extra)
        total += rows * columns * dtype_bytes(extra.dtype)
    return total
