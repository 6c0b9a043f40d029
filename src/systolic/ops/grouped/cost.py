"""The time of grouped products by arithmetic, for a distribution of group sizes, and the configurations to choose from.

Sizes of groups are known when a program runs, tiles before. So tiles are chosen for sizes drawn once from a Dirichlet
distribution (concentration 2, seed 0), about as uneven as routers of mixtures of experts leave them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from systolic.chips import Chip
from systolic.cost.pipeline import ModelledTime
from systolic.cost.ranking import TimedConfig, legal_configs
from systolic.ops.grouped.cycles import block_cycles, product_cycles
from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule, registers_rows
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.schedule import LANES, KernelConfig, Tiles
from systolic.schedule.legality import legal_sides
from systolic.schedule.sizes import largest_divisor, padded, ragged_sides
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

_CONCENTRATION = 2.0
_BLOCK_ROWS = (64, 128, 256, 512, 1024, 2048)
_MAX_COLUMNS = (256, 512, 1024)  # of a block
_MIN_COLUMNS = 256
_MIN_ROWS = 512  # of a tile of a gradient
_PANEL_SHARES = (0.2, 0.35)  # of the buffers, for rows, where not all fit
_MIN_PANEL_SHARE = 0.1  # where two tiles of weights take half of the buffers
_WHOLE_SHARE = 0.75  # up to which all rows are one panel
_VISIT_ROWS = (512, 1024, 1536, 2048, 4096)
_SMALL_VISIT_ROWS = 128  # where tiles cannot be cut, and leave little room
_DEPTHS = (128, 256, 512)
_ROWS_FOR_ALL_OF_IT = 2**17  # a block of 2048 rows must be 1.6 % faster than a small one
# Half the time when one group has all rows is worth 1.4 % of the typical time: chosen by the one-expert rows of
# `bench --suite moe`, as the least share that separates their tiles.
_SINGLE_GROUP_WEIGHT = 0.02
# The model follows at most this many rows and groups. Of more it follows a part, and times are in proportion.
_MAX_ROWS = 2**21
_MAX_GROUPS = 2**12


@functools.lru_cache(maxsize=256)
def typical_sizes(groups: int, m: int, rows_per_group: int) -> tuple[int, ...]:
    """Return sizes of groups to choose tiles for, with about `rows_per_group` rows in each group that has any."""
    used_groups = min(groups, -(-m // rows_per_group))
    m = min(m, groups * rows_per_group)  # the others are of groups that are elsewhere
    shares = np.random.default_rng(0).dirichlet([_CONCENTRATION] * used_groups)
    sizes = np.floor(shares * m).astype(int)
    sizes[0] += m - sizes.sum()
    return (*sizes.tolist(), *(0,) * (groups - used_groups))


def _sampled_sizes(spec: GroupedSpec | GroupedGradientSpec) -> tuple[int, ...]:
    """Return typical sizes of groups that have rows, limited to the rows and groups that the model follows."""
    groups = _groups_with_rows(spec)
    rows = spec.rows_of_groups
    parts = max(-(-rows // _MAX_ROWS), -(-groups // _MAX_GROUPS))
    return typical_sizes(-(-groups // parts), -(-rows // parts), spec.rows_per_group)


def _groups_with_rows(spec: GroupedSpec | GroupedGradientSpec) -> int:
    return min(spec.groups, -(-spec.m // spec.rows_per_group))


class _Visit(NamedTuple):
    rows: int
    compute_us: float
    copy_us: float


def product_time(
    spec: GroupedSpec, config: KernelConfig, chip: Chip, sizes: tuple[int, ...] | None = None
) -> ModelledTime:
    """Sum the time over panels: in each, products overlap with copies, more so the more tiles of weights VMEM holds.

    With two tiles, a step overlaps only with the next step's copy.

    Args:
      sizes: of groups; None: typical sizes.

    Raises:
      IllegalTilesError: the configuration breaks rules.
    """
    schedule = GroupedSchedule.of(spec, config, chip)
    item, item_out = dtype_bytes(spec.dtype), dtype_bytes(spec.dtype_out)
    item_beside = item_out + (dtype_bytes(spec.residual) if spec.residual else 0)
    strided = schedule.grid_n > 1 and not spec.transpose_rhs
    weights_bytes = schedule.cores * spec.weights_bytes(schedule.tile_n)  # cores share HBM
    weights_us = spec.products * _copy_us(weights_bytes, spec.k // 8 if strided else 1, chip)
    blocks = {
        block.rows: product_cycles(spec, block, chip)
        * (spec.products * -(-spec.k // block.depth) * -(-schedule.tile_n // block.columns))
        for block in schedule.blocks
    }
    limits = [(block.rows, block.above) for block in schedule.blocks]

    def visit(rows: int) -> _Visit:
        cycles = sum(blocks[block] for block in _cut(rows, limits))
        moved = schedule.cores * rows * (schedule.tile_n * item_beside + spec.k * item / schedule.core_n)
        compute_us = (cycles + chip.code_costs.ring_step_cycles) / chip.machine.clock_hz * 1e6
        return _Visit(rows, compute_us, weights_us + _copy_us(moved, 1, chip))

    panels: list[list[_Visit]] = []
    panel_rows = schedule.panel + 1
    sizes = sizes or _sampled_sizes(spec)
    for rows in _spans(sizes, schedule.row_multiple, schedule.panel, schedule.blocks[0].rows):
        if panel_rows + rows > schedule.panel:
            panels.append([])
            panel_rows = 0
        panels[-1].append(visit(rows))
        panel_rows += rows
    times = schedule.core_n * (spec.rows_of_groups / sum(sizes))
    compute_us = times * sum(step.compute_us for panel in panels for step in panel)
    copy_us = times * sum(step.copy_us for panel in panels for step in panel)
    unhidden = 1 / (schedule.weight_slots - 1) ** 2
    steps_us = times * sum(
        unhidden * sum(max(step.compute_us, step.copy_us) for step in panel)
        + (1 - unhidden) * max(sum(step.compute_us for step in panel), sum(step.copy_us for step in panel))
        for panel in panels
    )
    first = panels[0][0]
    ramp_us = weights_us + _copy_us(schedule.cores * first.rows * (spec.k * item + schedule.tile_n * item_out), 1, chip)
    return ModelledTime(time_us=steps_us + ramp_us, compute_us=compute_us, copy_us=copy_us, ramp_us=ramp_us)


def gradient_time(spec: GroupedGradientSpec, config: KernelConfig, chip: Chip) -> ModelledTime:
    """Sum the time over groups: products and copies overlap; stores do not with one tile of the result in VMEM."""
    schedule = GradientSchedule.of(spec, config, chip)
    item, item_out = dtype_bytes(spec.dtype), dtype_bytes(spec.dtype_out)
    tiles = schedule.grid_k * schedule.core_n
    blocks_of_tile = -(-schedule.tile_k // schedule.block_k) * -(-schedule.tile_n // schedule.block_n)
    depths = {
        depth: blocks_of_tile * block_cycles(spec, schedule.block_k, depth, schedule.block_n, chip)
        for depth in schedule.depths
    }
    store_us = _copy_us(schedule.cores * schedule.tile_k * schedule.tile_n * item_out, schedule.tile_k // 8, chip)
    limits = list(zip(depths, (*schedule.depths[1:], 0), strict=True))
    compute_us = copy_us = steps_us = 0.0
    multiple = schedule.row_multiple
    sizes = _sampled_sizes(spec)
    sampled = spec.rows_of_groups / sum(sizes)
    empty = spec.groups - _groups_with_rows(spec)
    for size, times in [*((size, sampled) for size in sizes), *_without_rows(empty)]:
        visits = _spans((size,), multiple, schedule.most_rows, schedule.depths[-1]) if size else []
        cycles = sum(depths[depth] for rows in visits for depth in _cut(rows, limits))
        step_cycles = chip.code_costs.ring_step_cycles * max(len(visits), 1)
        products_us = tiles * (cycles + step_cycles) / chip.machine.clock_hz * 1e6
        again = schedule.grid_k if len(visits) == 1 else tiles
        moved = schedule.cores * sum(visits) * item * (tiles * schedule.tile_n + again * schedule.tile_k)
        copies_us = tiles * store_us + _copy_us(moved, 1, chip)
        compute_us, copy_us = compute_us + times * products_us, copy_us + times * copies_us
        alone_us = tiles * store_us if schedule.out_slots == 1 else 0.0
        steps_us += times * (max(products_us, copies_us - alone_us) + alone_us)
    ramp_us = store_us + _copy_us(min(schedule.most_rows, spec.m) * (schedule.tile_k + schedule.tile_n) * item, 1, chip)
    return ModelledTime(time_us=steps_us + ramp_us, compute_us=compute_us, copy_us=copy_us, ramp_us=ramp_us)


def _without_rows(groups: int) -> list[tuple[int, float]]:
    """Return the size of a group without rows, 0, and the number of such groups it represents."""
    alone = min(groups, _MAX_GROUPS)
    return [(0, groups / max(alone, 1))] * alone


def product_configs(spec: GroupedSpec, chip: Chip) -> list[TimedConfig]:
    """Return legal configurations of a product, the fastest by arithmetic first.

    Of two that are about as fast for typical sizes, the one that is faster when one group has all rows comes first.
    """

    def order(candidate: TimedConfig) -> float:
        in_one = product_time(spec, candidate.config, chip, (min(spec.rows_of_groups, _MAX_ROWS),))
        return max(in_one.compute_us, in_one.copy_us) ** _SINGLE_GROUP_WEIGHT * _with_code(candidate)

    return sorted(_timed(spec, chip, _product_space(spec, chip)), key=order)


def gradient_configs(spec: GroupedGradientSpec, chip: Chip) -> list[TimedConfig]:
    return sorted(_timed(spec, chip, _gradient_space(spec, chip)), key=_with_code)


def timed(spec: GroupedSpec | GroupedGradientSpec, config: KernelConfig, chip: Chip) -> TimedConfig:
    """Return a configuration with its time; raise IllegalTilesError if it breaks rules."""
    is_product = isinstance(spec, GroupedSpec)
    modelled = product_time(spec, config, chip) if is_product else gradient_time(spec, config, chip)
    return TimedConfig(config=config, modelled=modelled, provenance="modelled")


def _timed(spec: GroupedSpec | GroupedGradientSpec, chip: Chip, configs: Iterator[KernelConfig]) -> list[TimedConfig]:
    return legal_configs(configs, lambda config: timed(spec, config, chip))


def _with_code(candidate: TimedConfig) -> float:
    """Return the time that orders configurations: of two about equally fast ones, shorter blocks are less code."""
    return candidate.modelled.time_us * (1 + candidate.config.subtile_m / _ROWS_FOR_ALL_OF_IT)


def _product_space(spec: GroupedSpec, chip: Chip) -> Iterator[KernelConfig]:
    item, bytes_free = dtype_bytes(spec.dtype), buffer_bytes(chip)
    multiple = registers_rows(*spec.row_dtypes)
    most_rows = padded(spec.m, multiple) + 2 * multiple * min(spec.groups, spec.m)
    sides_n = _column_sides(spec.n, chip)
    column_bytes = spec.products * spec.k * dtype_bytes(spec.dtype_rhs or spec.dtype)  # of int4 as well, in VMEM
    sides = [side for side in sides_n if column_bytes * side <= bytes_free / 4]
    for tile_n in sides or sides_n[:1]:
        crowded = 4 * column_bytes * tile_n > bytes_free
        shares = (*_PANEL_SHARES, _MIN_PANEL_SHARE) if crowded else _PANEL_SHARES
        for block_rows in _BLOCK_ROWS:
            rows = min(block_rows, padded(spec.m, multiple))
            row_bytes = spec.k * item + (tile_n * dtype_bytes(spec.residual) if spec.residual else 0)
            panels = [padded(max(int(bytes_free * share / 2 / row_bytes), 1), rows) for share in shares]
            if most_rows * (2 * row_bytes - spec.k * item) <= bytes_free * _WHOLE_SHARE:
                panels.append(most_rows)
            for panel in panels:
                tiles = Tiles(tile_m=padded(min(panel, most_rows), rows), tile_k=spec.k, tile_n=tile_n)
                for columns in {
                    largest_divisor(tile_n, _least_columns(chip), columns_most) for columns_most in _MAX_COLUMNS
                }:
                    yield KernelConfig(tiles=tiles, subtile_m=rows, subtile_n=columns, pipeline="manual")


def _gradient_space(spec: GroupedGradientSpec, chip: Chip) -> Iterator[KernelConfig]:
    multiple = registers_rows(*spec.row_dtypes)
    most_rows = padded(spec.m, multiple) + 2 * multiple
    visit_rows = _VISIT_ROWS if spec.k % LANES == spec.n % LANES == 0 else (_SMALL_VISIT_ROWS, *_VISIT_ROWS)
    for depth in {min(rows_of_block, padded(most_rows, 2 * multiple)) for rows_of_block in _DEPTHS}:
        sides_k, sides_n = legal_sides(spec.k, _MIN_ROWS), _column_sides(spec.n, chip)
        for tile_k in sides_k:
            for tile_n in sides_n:
                # If not even the sum fits, the smallest tile raises the error.
                if tile_k * tile_n * 4 > buffer_bytes(chip) and (tile_k, tile_n) != (sides_k[0], sides_n[0]):
                    continue
                for columns in {
                    largest_divisor(tile_n, _least_columns(chip), columns_most) for columns_most in _MAX_COLUMNS
                }:
                    for rows in dict.fromkeys(padded(min(row, most_rows), depth) for row in visit_rows):
                        tiles = Tiles(tile_m=rows, tile_k=tile_k, tile_n=tile_n)
                        yield KernelConfig(tiles=tiles, subtile_m=depth, subtile_n=columns, pipeline="manual")


def _least_columns(chip: Chip) -> int:
    """Return the columns of the narrowest tile; cores that share tiles need an even number of them if possible."""
    return _MIN_COLUMNS // chip.cores_per_device


def _column_sides(n: int, chip: Chip) -> list[int]:
    return sorted((*legal_sides(n, _least_columns(chip)), *ragged_sides(n, _least_columns(chip))))


def _spans(sizes: Sequence[int], multiple: int, max_rows: int, block: int) -> list[int]:
    """Return the rows of the visits of groups, in whole registers; a group's visits but the last are whole blocks."""
    spans, start = [], 0
    for size in sizes:
        if size:
            span = padded(start + size, multiple) - start // multiple * multiple
            blocks = -(-span // max_rows)
            visit_rows = padded(-(-span // blocks), block) if blocks > 1 else span
            spans += [min(visit_rows, span - at) for at in range(0, span, visit_rows)]
        start += size
    return spans


def _cut(rows: int, blocks: Sequence[tuple[int, int]]) -> list[int]:
    """Return the blocks that a kernel cuts rows into: each while more rows than its `above` are left."""
    result: list[int] = []
    for size, limit in blocks:
        count = max(-(-(rows - limit) // size), 0)
        result += [size] * count
        rows -= count * size
    return result


def _copy_us(size_bytes: float, runs: int, chip: Chip) -> float:
    machine = chip.machine
    held = machine.hbm_run_cycles * runs + machine.dma_issue_cycles
    return size_bytes / machine.hbm_bytes_per_s * 1e6 + held / machine.clock_hz * 1e6
