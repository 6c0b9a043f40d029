"""The time of block-sparse products by arithmetic, and the configurations to choose from.

The places of blocks are known when a program runs. So tiles are chosen for equally many blocks in every line.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from systolic.chips import Chip
from systolic.cost.pipeline import ModelledTime
from systolic.cost.ranking import TimedConfig, legal_configs
from systolic.cost.roofline import mxu_rows_per_cycle
from systolic.ops.sparse.call_lists import calls_of, one_call
from systolic.ops.sparse.schedule import MAX_BUNDLES, ProductSchedule, SampledSchedule, most_joined
from systolic.ops.sparse.spec import SparseSpec
from systolic.schedule import LANES, REGISTER_BYTES, KernelConfig, Tiles
from systolic.schedule.sizes import largest_divisor
from systolic.spec import dtype_bytes

_MORE_CODE = 0.002  # share of the time that code for one more block must save
_TILES = (128, 256, 512, 1024, 2048)
_SUBTILES = (256, 512, 1024, 2048)
_ROW_SUBTILES = (128, 256, 512, 1024)


class Stretch(NamedTuple):
    """One stretch of straight code: rows of one operand, and the weights that they meet."""

    rows: int
    depth: int
    columns: int


def stretch_cycles(spec: SparseSpec, stretch: Stretch, chip: Chip) -> float:
    """Return the matrix units' time: rows pass, and weights are loaded; a unit is used whole or not at all."""
    machine, item = chip.machine, dtype_bytes(spec.dtype)
    deep, wide = -(-stretch.depth // machine.mxu_rows), -(-stretch.columns // machine.mxu_columns)
    rows = spec.passes * stretch.rows * deep * wide / machine.mxu_count / mxu_rows_per_cycle(spec.dtype, chip)
    registers = spec.passes * stretch.depth * stretch.columns * item / REGISTER_BYTES
    return rows + registers * machine.weight_push_cycles / machine.mxu_count


def configs(spec: SparseSpec, chip: Chip) -> list[TimedConfig]:
    """Return legal configurations, the fastest by arithmetic first; raise IllegalTilesError if none is legal."""
    return list(_configs(spec, chip))


@functools.lru_cache(maxsize=64)  # the planner asks for several configurations of a product
def _configs(spec: SparseSpec, chip: Chip) -> tuple[TimedConfig, ...]:
    space = (_sampled_space if spec.kind == "sdd" else _product_space)(one_call(spec, chip), chip)

    def with_code(timed_config: TimedConfig) -> float:
        return timed_config.modelled.time_us * (1 + _joined(spec, timed_config.config) * _MORE_CODE)

    # Of configurations that are about as fast, the one with less code.
    return tuple(sorted(legal_configs(space, lambda config: timed(spec, config, chip)), key=with_code))


def timed(spec: SparseSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
    """Return a configuration with its time; raise IllegalTilesError if it breaks rules."""
    call = one_call(spec, chip)
    modelled = (_sampled_time if spec.kind == "sdd" else _product_time)(call, config, chip)
    return TimedConfig(config=config, modelled=_of_calls(modelled, spec, call, chip), provenance="modelled")


def bytes_between(spec: SparseSpec, call: SparseSpec) -> int:
    """Return the bytes that XLA moves around several calls: it adds up their sums, or joins their blocks."""
    if call is spec:
        return 0
    if spec.kind == "sdd":
        flops = 2 * spec.most_blocks * spec.block_rows * spec.block_columns
        return (flops + (spec.m * spec.n if spec.dense_out else 0)) * dtype_bytes(spec.dtype_out)
    # Two arrays are read and one is written for each call, and the last one is read once more.
    return spec.m * spec.n * (3 * calls_of(spec, call) + 1) * dtype_bytes(call.dtype_out)


def _of_calls(call_time: ModelledTime, spec: SparseSpec, call: SparseSpec, chip: Chip) -> ModelledTime:
    calls, between_us = calls_of(spec, call), bytes_between(spec, call) / chip.machine.hbm_bytes_per_s * 1e6
    return ModelledTime(
        time_us=calls * call_time.time_us + between_us,
        compute_us=calls * call_time.compute_us,
        copy_us=calls * call_time.copy_us + between_us,
        ramp_us=calls * call_time.ramp_us,
    )


def product_stretch(spec: SparseSpec, subtile: int, joined: float) -> Stretch:
    depth = int(joined * spec.place_size)
    return Stretch(subtile, depth, spec.line_size) if spec.kind == "dds" else Stretch(spec.line_size, depth, subtile)


def chunks_of(spec: SparseSpec, capacity: int) -> int:
    """Return how often a dense operand is read, with this many blocks at a time."""
    return max(-(-spec.blocks // capacity), 1)


def _product_time(spec: SparseSpec, config: KernelConfig, chip: Chip) -> ModelledTime:
    schedule = ProductSchedule.of(spec, config, chip)
    line_blocks = spec.blocks / spec.lines
    items = _items(line_blocks, schedule.joined)
    stretch = stretch_cycles(spec, product_stretch(spec, schedule.subtile, max(line_blocks / items, 1)), chip)
    if line_blocks < items:
        stretch *= line_blocks
    grid = -(-schedule.grid // chip.cores_per_device)
    lines = grid * spec.lines
    stretches = lines * items * (schedule.tile // schedule.subtile)
    item, out = dtype_bytes(spec.dtype), dtype_bytes(spec.dtype_out)
    panel = spec.k * schedule.tile * item
    chunks = chunks_of(spec, schedule.capacity)
    sparse = spec.blocks * spec.block_rows * spec.block_columns * item * chip.cores_per_device
    moved = sparse + chunks * (schedule.grid if schedule.grid > 1 else 1) * panel + spec.m * spec.n * out
    return _time(spec, chip, stretches * stretch, stretches, lines, moved, panel)


def _items(blocks: float, joined: int) -> float:
    """Return the stretches of a line with about this many blocks: some have one more than is full."""
    return max((blocks - 1) / joined + 0.5, 1.0)


def _sampled_time(spec: SparseSpec, config: KernelConfig, chip: Chip) -> ModelledTime:
    schedule = SampledSchedule.of(spec, config, chip)
    lines = min(spec.lines, max(spec.blocks, 1))
    line_blocks = spec.blocks / lines
    items = _items(line_blocks, schedule.joined)
    joined_blocks = max(line_blocks / items, 1)
    stretch = stretch_cycles(
        spec, Stretch(schedule.subtile, schedule.tile_k, int(joined_blocks * spec.block_columns)), chip
    )
    chunks = -(-chunks_of(spec, schedule.slots) // chip.cores_per_device)
    visits = lines * schedule.grid_k / chip.cores_per_device
    stretches = visits * items * (spec.block_rows // schedule.subtile)
    item, out = dtype_bytes(spec.dtype), dtype_bytes(spec.dtype_out)
    panels = chunks * schedule.grid_k * chip.cores_per_device if schedule.grid_k > 1 else chip.cores_per_device
    panel = schedule.tile_k * spec.n * item
    elements = spec.m * spec.n if spec.dense_out else spec.blocks * spec.block_rows * spec.block_columns
    moved = panels * panel + lines * spec.block_rows * spec.k * item + elements * out
    return _time(spec, chip, stretches * stretch, stretches, visits, moved, panel)


def _time(
    spec: SparseSpec, chip: Chip, mxu_cycles: float, stretches: float, lines: float, moved: float, panel: float
) -> ModelledTime:
    """Return the time: products and copies overlap; the first panel does not."""
    machine, us = chip.machine, 1e6 / chip.machine.clock_hz
    held = machine.dma_issue_cycles + machine.dma_wait_cycles  # one copy of a line
    code_cycles = chip.step_estimate.fill_cycles + chip.code_costs.stretch_cycles
    around = stretches * code_cycles + lines * held
    compute_us = (mxu_cycles + around) * us
    bytes_per_us = machine.hbm_bytes_per_s / 1e6
    copy_us, ramp_us = moved / bytes_per_us, panel / bytes_per_us + 2 * machine.dma_latency_cycles * us
    return ModelledTime(
        time_us=ramp_us + max(compute_us, copy_us), compute_us=compute_us, copy_us=copy_us, ramp_us=ramp_us
    )


def _product_space(spec: SparseSpec, chip: Chip) -> Iterator[KernelConfig]:
    turned = spec.kind == "dds"
    multiple = 32 // dtype_bytes(spec.dtype) if turned else LANES
    for tile in dict.fromkeys(largest_divisor(spec.sweep, multiple, max_tile) for max_tile in _TILES):
        for subtile in dict.fromkeys(largest_divisor(tile, multiple, max_subtile) for max_subtile in _SUBTILES):
            cycles = stretch_cycles(spec, product_stretch(spec, subtile, 1), chip)
            if cycles > MAX_BUNDLES and subtile > _SUBTILES[0]:
                continue
            max_joined = _filling(spec, most_joined(spec, cycles), chip)
            for joined_blocks in dict.fromkeys((max_joined, _filling(spec, (max_joined + 1) // 2, chip))):
                line, k = spec.line_size, joined_blocks * spec.place_size
                tiles = Tiles(tile_m=tile if turned else line, tile_k=k, tile_n=line if turned else tile)
                subtiles = (subtile, line) if turned else (line, subtile)
                yield KernelConfig(tiles=tiles, subtile_m=subtiles[0], subtile_n=subtiles[1], pipeline="manual")


def _joined(spec: SparseSpec, config: KernelConfig) -> int:
    return (config.tiles.tile_n if spec.kind == "sdd" else config.tiles.tile_k) // spec.place_size


def _filling(spec: SparseSpec, joined: int, chip: Chip) -> int:
    """Return the most blocks whose rows all fill the matrix units' rows."""
    multiple = max(chip.machine.mxu_rows // spec.place_size, 1)
    return max(joined // multiple * multiple, 1)


def _sampled_space(spec: SparseSpec, chip: Chip) -> Iterator[KernelConfig]:
    rows = 32 // min(dtype_bytes(spec.dtype), dtype_bytes(spec.dtype_out))
    for tile_k in dict.fromkeys(largest_divisor(spec.k, LANES, max_tile) for max_tile in _TILES):
        for subtile in dict.fromkeys(largest_divisor(spec.block_rows, rows, max_rows) for max_rows in _ROW_SUBTILES):
            cycles = stretch_cycles(spec, Stretch(subtile, tile_k, spec.block_columns), chip)
            if cycles > MAX_BUNDLES and subtile > _ROW_SUBTILES[0]:
                continue
            tiles = Tiles(tile_m=spec.block_rows, tile_k=tile_k, tile_n=most_joined(spec, cycles) * spec.place_size)
            yield KernelConfig(tiles=tiles, subtile_m=subtile, subtile_n=tiles.tile_n, pipeline="manual")
