"""The time of the loss kernels by arithmetic, and the configurations to choose from."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from systolic.chips import Chip
from systolic.cost.pipeline import ModelledTime
from systolic.cost.ranking import TimedConfig, legal_configs
from systolic.ops.cross_entropy.schedule import MAX_STRETCH_CYCLES, ROWS, LossSchedule, stretch_cycles
from systolic.ops.cross_entropy.spec import CrossEntropySpec
from systolic.schedule import LANES, KernelConfig, Tiles
from systolic.schedule.sizes import padded
from systolic.spec import dtype_bytes

# The smallest comes last: if nothing is legal, its reasons are reported.
_TILE_ROWS = (2048, 1024, 512, 256, 128)
_TILE_COLUMNS = (1024, 512, 256, 128)
_SUBTILES = (2048, 1024, 512, 256, 128)
# The columns of a matrix unit of v6e and v7x: parts of 640 features fill three units to 83 %.
_DEPTH = 256
# Of the products of a step of the gradients: 10,000 to 17,000 bundles.
_MAX_STEP_CYCLES = 16_384
# Sums of more columns are spilled: 2048·4096·151936 with kept logits takes 9.6 ms on v6e with 1,024 (simulated).
_MAX_GRADIENTS_COLUMNS = 512
# Of a step of the gradients, in which the matrix units fill and drain and scalar code starts copies, and of a register
# that is added to x's gradient, for which its product waits (simulated on v6e and v7x: 950 to 1,350 together).
_GRADIENTS_STEP_CYCLES, _ADDED_REGISTER_CYCLES = 800, 0.1
# Of a register of logits, to which each part of the features adds, on chips that load weights slowly. Simulated on v6e:
# steps of several parts take 1,450 to 2,080 cycles more than their products with 512 columns, 1,240 with 256, and steps
# that have all features 1,030 to 1,440.
_SUMMED_LOGITS_CYCLES = 0.65
# Cycles of a stretch of straight code in which the matrix units fill and drain, and of a grid step with its copies
# (simulated on v6e: 400 to 560, and 100).
_STRETCH_CYCLES, _STEP_CYCLES = 400, 100
# Of the shorter one of products and copies, as if it were not hidden. Chosen by one pair of tiles on v7x: gradients of
# 16384·4096·151936 took 76 ms with 1,024 rows and 256 columns, and 78 ms with 512 of each, which copies twice as much
# (simulated).
_COPY_SHARE = 0.1
# Gradients whose times by arithmetic differ by less are equally fast, and those with longer parts of the features come
# first: 2048·4096·32064 takes 1.97 ms on v6e with 2,048 features and 256 columns, 2.05 with 1,024 and 512 (simulated;
# 2.100 and 2.104 by arithmetic).
_EQUALLY_FAST = 1.002


def configs(spec: CrossEntropySpec, chip: Chip) -> list[TimedConfig]:
    """Return legal configurations, the fastest by arithmetic first; raise IllegalTilesError if none is legal."""
    return list(_configs(spec, chip))


@functools.lru_cache(maxsize=64)  # the planner asks for several configurations of a spec
def _configs(spec: CrossEntropySpec, chip: Chip) -> tuple[TimedConfig, ...]:
    legal = list(legal_configs(_space(spec, chip), lambda config: timed(spec, config, chip)))
    fastest_us = min((candidate.modelled.time_us for candidate in legal), default=0.0)

    # Of configurations that are equally fast, the one with the longer subtiles: weights are loaded for more rows.
    def by_time(candidate: TimedConfig) -> tuple[float, int, int]:
        time_us, config = candidate.modelled.time_us, candidate.config
        features = 0
        if spec.kind == "gradients" and time_us < fastest_us * _EQUALLY_FAST:
            time_us, features = fastest_us, config.tiles.tile_k
        return time_us, -features, config.subtile_n

    return tuple(sorted(legal, key=by_time))


def timed(spec: CrossEntropySpec, config: KernelConfig, chip: Chip) -> TimedConfig:
    """Return a configuration with its time; raise IllegalTilesError if it breaks rules."""
    schedule, machine, tiles = LossSchedule.of(spec, config, chip), chip.machine, config.tiles
    grid_m, grid_n = schedule.grid
    if spec.kind == "gradients":
        tiles_cycles = (grid_n + schedule.lag) * _gradients_cycles(schedule, chip)
    else:
        product = stretch_cycles(spec, tiles.tile_m, tiles.tile_n, schedule.depth, chip)
        tiles_cycles = grid_n * (product + config.subtiles * _STRETCH_CYCLES + _STEP_CYCLES)
    us = 1e6 / machine.clock_hz
    bytes_per_us = machine.hbm_bytes_per_s / 1e6
    first = (tiles.tile_m + tiles.tile_n) * schedule.depth * dtype_bytes(spec.dtype)
    compute_us = -(-grid_m // chip.cores_per_device) * tiles_cycles * us
    copy_us = schedule.hbm_bytes / bytes_per_us
    ramp_us = first / bytes_per_us + 2 * machine.dma_latency_cycles * us
    modelled = ModelledTime(
        time_us=ramp_us + max(compute_us, copy_us) + _COPY_SHARE * min(compute_us, copy_us),
        compute_us=compute_us,
        copy_us=copy_us,
        ramp_us=ramp_us,
    )
    return TimedConfig(config=config, modelled=modelled, provenance="modelled")


def _gradients_cycles(schedule: LossSchedule, chip: Chip) -> float:
    """Return the cycles of a tile of the vocabulary."""
    spec, tiles = schedule.spec, schedule.config.tiles
    product = stretch_cycles(spec, tiles.tile_m, tiles.tile_n, tiles.tile_k, chip)
    added = tiles.tile_m * tiles.tile_k / (8 * LANES) * _ADDED_REGISTER_CYCLES
    moved = 0 if schedule.alternates else tiles.tile_m * tiles.tile_n / (ROWS * LANES)
    step = spec.products * product + added + _GRADIENTS_STEP_CYCLES
    if schedule.parts > 1 and not _loads_quickly(chip):
        step += tiles.tile_m * tiles.tile_n / (8 * LANES) * _SUMMED_LOGITS_CYCLES
    return schedule.parts * step + (moved if spec.keep_logits else 0)


def _space(spec: CrossEntropySpec, chip: Chip) -> Iterator[KernelConfig]:
    rows, columns = padded(spec.m, ROWS), padded(spec.n, LANES)
    for tile_m in dict.fromkeys(min(tile, rows) for tile in _TILE_ROWS):
        for tile_n in dict.fromkeys(min(tile, columns) for tile in _TILE_COLUMNS):
            if spec.kind == "gradients":
                if tile_m > _max_rows(chip) or tile_n > _MAX_GRADIENTS_COLUMNS:
                    continue
                yield from _gradients_space(spec, tile_m, tile_n, chip)
                continue
            tiles = Tiles(tile_m=tile_m, tile_k=spec.k, tile_n=tile_n)
            for subtile_m in dict.fromkeys(min(subtile, tile_m) for subtile in _SUBTILES):
                for subtile_n in dict.fromkeys((min(512, tile_n), min(256, tile_n))):
                    if tile_m % subtile_m or tile_n % subtile_n or subtile_m > _max_rows(chip):
                        continue
                    cycles = stretch_cycles(spec, subtile_m, subtile_n, padded(spec.k, LANES), chip)
                    if cycles > MAX_STRETCH_CYCLES and subtile_m > _SUBTILES[-1]:
                        continue
                    yield KernelConfig(tiles=tiles, subtile_m=subtile_m, subtile_n=subtile_n)


def _gradients_space(spec: CrossEntropySpec, tile_m: int, tile_n: int, chip: Chip) -> Iterator[KernelConfig]:
    for parts in range(1, -(-spec.k // LANES) + 1):
        part = -(-spec.k // parts)
        part = padded(part, _DEPTH if part > _DEPTH else LANES)
        if spec.products * stretch_cycles(spec, tile_m, tile_n, part, chip) <= _MAX_STEP_CYCLES or part <= _DEPTH:
            tiles = Tiles(tile_m=tile_m, tile_k=part, tile_n=tile_n)
            yield KernelConfig(tiles=tiles, subtile_m=tile_m, subtile_n=tile_n)
            if part <= _DEPTH:
                return


def _max_rows(chip: Chip) -> int:
    """Return the most rows of a subtile, or of a tile of the gradients.

    Chips that load weights quickly sum results in a buffer of 1,024 rows, and sums of more are spilled: v7x takes 22.2
    ms for 16384·4096·151936 with 1,024 × 512, 23.7 with 2,048 × 256. On the others more rows pass each weight: v6e
    takes 25.0 and 24.4 (simulated).
    """
    return 1024 if _loads_quickly(chip) else _SUBTILES[0]


def _loads_quickly(chip: Chip) -> bool:
    """True if the chip loads a register of weights in less than a cycle."""
    return chip.machine.weight_push_cycles < 1
