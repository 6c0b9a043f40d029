"""The time of products with quantized weights by arithmetic, and the configurations to choose from."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from systolic.chips import Chip
from systolic.cost.pipeline import ModelledTime
from systolic.cost.ranking import TimedConfig, legal_configs
from systolic.ops.quantized.routes import route_of
from systolic.ops.quantized.schedule import SUBLANES, QuantizedSchedule, rows_multiple, stretch_cycles
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import LANES, REGISTER_BYTES, KernelConfig, Tiles
from systolic.schedule.sizes import largest_divisor, padded
from systolic.spec import dtype_bytes, format_bytes

_COPIES_OF_A_WEIGHT = 2  # that a step starts and waits for, values and scales, in addition to one of the result
_MAX_ROWS = (512, 256, 128, 64, 16)  # of a block, where not all of m is one
# Products of narrow rows take half of the time: with 512 rows they would wait for the weight.
_MAX_NARROW_ROWS = (2048, 1024, *_MAX_ROWS)
# The most integers of a subtile's sums, or 256 columns: 2048 × 512 takes a tenth longer than twice 2048 × 256 on v6e.
_MAX_SUMS = 2**18
_COLUMNS = (512, 1024, 1792, 2048, 3584)  # of a tile, at most
_SUBTILES = (256, 512, 1024)
_DEPTHS = (8192, 4096, 2048)
# Code is about as long as its cycles: 4000 bundles more must save 2 % of the time, because they take long to compile.
_BUNDLES_FOR_ALL_OF_IT = 2e5


def product_time(spec: QuantizedSpec, config: KernelConfig, chip: Chip) -> ModelledTime:
    """Return the time. Products and copies overlap, because the ring has many tiles under way; the ends do not."""
    schedule, machine, estimate = QuantizedSchedule.of(spec, config, chip), chip.machine, chip.step_estimate
    us = 1e6 / machine.clock_hz
    stretches = schedule.tile_m // schedule.subtile_m * (schedule.tile_n // schedule.subtile_n)
    ends = spec.weights * (estimate.fill_cycles + estimate.drain_cycles_per_row * schedule.subtile_m)
    held = (_COPIES_OF_A_WEIGHT * spec.weights + 1) * (machine.dma_issue_cycles + machine.dma_wait_cycles)
    step = (
        stretches * (stretch_cycles(spec, config, schedule.route, chip) + ends)
        + chip.code_costs.ring_step_cycles
        + held
    )
    if schedule.keeps_weights:  # the weights that are made are stored in VMEM, a register a cycle
        step += spec.weights * schedule.tile_k * schedule.tile_n * dtype_bytes(schedule.route.pushed) / REGISTER_BYTES
    quantized = schedule.tile_m * spec.k * dtype_bytes("float32") / REGISTER_BYTES if spec.quantize_lhs else 0
    quantized_us = quantized * chip.code_costs.quantized_register_cycles * us
    compute_us = schedule.steps * step * us + schedule.grid_m * quantized_us
    rows_us = _copy_us(schedule.tile_m * spec.k * dtype_bytes(spec.dtype_lhs), 1, chip)
    values_bytes = format_bytes(spec.dtype_rhs, schedule.tile_k * schedule.tile_n)
    # A register of 32 bits holds eight rows of them.
    runs = schedule.tile_k * values_bytes // (schedule.tile_k * schedule.tile_n) // 8 if schedule.grid_n > 1 else 1
    tile_us = _copy_us(values_bytes, max(runs, 1), chip)
    tile_us += _copy_us(schedule.tile_blocks * schedule.tile_n * dtype_bytes(spec.dtype_scale), 1, chip)
    tile_us *= spec.weights
    out_us = _copy_us(schedule.tile_m * schedule.tile_n * dtype_bytes(spec.dtype_out), schedule.tile_m // 8 + 1, chip)
    results = schedule.grid_m * schedule.grid_n
    copy_us = schedule.grid_m * rows_us + schedule.steps * tile_us + results * out_us * (2 if spec.residual else 1)
    # A tile arrives no earlier than its copy takes, and all slots but one are under way at a time.
    waited_us = schedule.steps * (tile_us + machine.dma_latency_cycles * us) / (schedule.slots - 1)
    # The first rows are quantized as they arrive, and the first tile arrives after them.
    ramp_us = max(rows_us + tile_us, quantized_us) + out_us + 2 * machine.dma_latency_cycles * us + step * us
    if schedule.grid_k > 1 and spec.blocks > 1 and schedule.tile_blocks % SUBLANES:
        scales_bytes = spec.weights * spec.blocks * spec.n * dtype_bytes(spec.dtype_scale)
        ramp_us += _copy_us(2 * scales_bytes, 1, chip)  # XLA copies them before the kernel
    time_us = ramp_us + max(compute_us - quantized_us - step * us, copy_us - rows_us - tile_us - out_us, waited_us)
    return ModelledTime(time_us=time_us, compute_us=compute_us, copy_us=copy_us, ramp_us=ramp_us)


def product_configs(spec: QuantizedSpec, chip: Chip) -> list[TimedConfig]:
    """Return legal configurations, the fastest by arithmetic first; raise IllegalTilesError if none is legal."""
    return list(_product_configs(spec, chip))


@functools.lru_cache(maxsize=64)  # the planner asks for several configurations of a product
def _product_configs(spec: QuantizedSpec, chip: Chip) -> tuple[TimedConfig, ...]:
    def with_code(candidate: TimedConfig) -> float:
        route = route_of(spec, candidate.config.subtile_m, chip)
        return candidate.modelled.time_us * (
            1 + stretch_cycles(spec, candidate.config, route, chip) / _BUNDLES_FOR_ALL_OF_IT
        )

    return tuple(sorted(legal_configs(_space(spec), lambda config: timed(spec, config, chip)), key=with_code))


def timed(spec: QuantizedSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
    """Return a configuration with its time; raise IllegalTilesError if it breaks rules."""
    return TimedConfig(config=config, modelled=product_time(spec, config, chip), provenance="modelled")


def _space(spec: QuantizedSpec) -> Iterator[KernelConfig]:
    rows, most_rows = rows_multiple(spec), _MAX_NARROW_ROWS if spec.row_format else _MAX_ROWS
    heights = [spec.m] if spec.m <= most_rows[0] else []
    heights += [padded(-(-spec.m // -(-spec.m // row)), rows) for row in most_rows if row < spec.m]
    widths = dict.fromkeys(largest_divisor(spec.n, LANES, max_columns) for max_columns in _COLUMNS)
    deep = math.lcm(SUBLANES * spec.block, LANES) if spec.blocks > 1 else LANES
    if deep > LANES and largest_divisor(spec.k, deep, spec.k - 1) == spec.k:
        deep = math.lcm(spec.block, LANES)  # the scales are copied before the kernel
    depths = dict.fromkeys(
        [spec.k, *(largest_divisor(spec.k, deep, max_depth) for max_depth in _DEPTHS if max_depth < spec.k)]
    )
    for tile_m in dict.fromkeys(heights):
        parts = [tile_m, *(padded(tile_m // 2, rows) for _ in range(tile_m % (2 * rows) == 0))]
        for tile_k in depths:
            for tile_n in widths:
                tiles = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
                for columns in dict.fromkeys(largest_divisor(tile_n, LANES, max_columns) for max_columns in _SUBTILES):
                    for subtile_m in parts:
                        if spec.sums_integers and subtile_m * columns > max(_MAX_SUMS, _SUBTILES[0] * subtile_m):
                            continue
                        yield KernelConfig(tiles=tiles, subtile_m=subtile_m, subtile_n=columns, pipeline="manual")


def _copy_us(size_bytes: float, runs: int, chip: Chip) -> float:
    machine = chip.machine
    return size_bytes / machine.hbm_bytes_per_s * 1e6 + machine.hbm_run_cycles * runs / machine.clock_hz * 1e6
