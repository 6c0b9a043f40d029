"""Schedules of products across chips as configurations of a kernel, in which planner, store and `tune` have them.

A tile is what is multiplied at once: the rows of some slots and a block of columns, or a block of rows and the columns
of a piece of a gathered weight. A subtile has the rows of one piece. The parts of the rows are the fewest that fit in
VMEM, and the pieces of a gathered weight that does not fit lie in HBM.
"""

from __future__ import annotations

import itertools

from systolic.chips import Chip
from systolic.ops.collective.cost import PARTS, PIECES, require_fit, ring_schedule
from systolic.ops.collective.schedule import OUT_SLOTS, WAYS, RingSchedule
from systolic.ops.collective.sizes import ProductSizes, RingSizes, WeightSizes, core_shares, violations_of
from systolic.ops.collective.weight_cost import require_weight_fit, weight_schedule
from systolic.ops.collective.weight_schedule import WeightSchedule
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles, Violation


def config_of(schedule: RingSchedule | WeightSchedule, sizes: ProductSizes) -> KernelConfig:
    """Return the configuration of a schedule."""
    if isinstance(schedule, WeightSchedule):
        rows, subtile_rows, columns = schedule.block, schedule.block, schedule.width
    else:
        rows, subtile_rows, columns = schedule.pass_rows, schedule.piece_rows, schedule.block
    return KernelConfig(
        tiles=Tiles(tile_m=rows, tile_k=sizes.k, tile_n=columns),
        subtile_m=subtile_rows,
        subtile_n=columns,
        pipeline="manual",
        num_stages=OUT_SLOTS,
    )


def schedule_of(sizes: RingSizes | WeightSizes, config: KernelConfig, chip: Chip) -> RingSchedule | WeightSchedule:
    """Return the schedule of a configuration; raise IllegalTilesError if it breaks rules."""
    if isinstance(sizes, WeightSizes):
        return weight_schedule_of(sizes, config, chip)
    return ring_schedule_of(sizes, config, chip)


def ring_schedule_of(sizes: RingSizes, config: KernelConfig, chip: Chip) -> RingSchedule:
    """Return the schedule of a configuration; raise IllegalTilesError if it breaks rules."""
    _require_form(sizes, config, chip)
    slot_rows, refusal = WAYS * config.subtile_m, None
    for share, parts in itertools.product(core_shares(sizes, chip), PARTS):
        all_pieces = share.get("rows", sizes.padded_rows) // config.subtile_m
        if all_pieces not in [parts * pieces for pieces in PIECES]:
            continue
        try:
            schedule = ring_schedule(
                sizes,
                share,
                parts=parts,
                pieces=all_pieces // parts,
                slots_at_once=config.tiles.tile_m // slot_rows,
                block=config.tiles.tile_n,
            )
            require_fit(schedule, sizes, chip)
        except IllegalTilesError as error:
            refusal = error
            continue
        if (schedule.piece_rows, schedule.pass_rows) == (config.subtile_m, config.tiles.tile_m):
            return schedule
    if refusal is not None:
        raise refusal
    limit = f"whole pieces of {sizes.padded_rows} rows, and tiles of whole slots, each of {WAYS} pieces"
    raise _illegal(config, "pieces", f"subtile_m={config.subtile_m}, tile_m={config.tiles.tile_m}", limit)


def weight_schedule_of(sizes: WeightSizes, config: KernelConfig, chip: Chip) -> WeightSchedule:
    """Return the schedule of a configuration; raise IllegalTilesError if it breaks rules."""
    _require_form(sizes, config, chip)
    width, block = config.tiles.tile_n, config.tiles.tile_m
    if sizes.columns % (width * WAYS) or config.subtile_m != block:
        limit = f"each of {WAYS} ways brings whole pieces of {sizes.columns} columns, and a tile is one subtile"
        raise _illegal(config, "pieces", f"tile_n={width}, subtile_m={config.subtile_m}", limit)
    schedule = weight_schedule(sizes, width=width, block=block, in_hbm=False)
    try:
        require_weight_fit(schedule, sizes, chip)
    except IllegalTilesError:
        schedule = weight_schedule(sizes, width=width, block=block, in_hbm=True)
        require_weight_fit(schedule, sizes, chip)
    return schedule


def _require_form(sizes: ProductSizes, config: KernelConfig, chip: Chip) -> None:
    """Raise IllegalTilesError for sizes without a kernel, and for a configuration that is not of `config_of`."""
    if violations := violations_of(sizes, chip):
        raise IllegalTilesError("a product across chips", violations)
    plain = KernelConfig(
        tiles=config.tiles,
        subtile_m=config.subtile_m,
        subtile_n=config.tiles.tile_n,
        pipeline="manual",
        num_stages=OUT_SLOTS,
    )
    if config != plain or config.tiles.tile_k != sizes.k:
        raise _illegal(config, "tiles", str(config), f"all of k={sizes.k}, whole columns, {plain.kernel}")


def _illegal(config: KernelConfig, rule: str, value: str, limit: str) -> IllegalTilesError:
    fix = "leave the tiles to the planner"
    return IllegalTilesError(str(config), [Violation(rule=rule, value=value, limit=limit, fix=fix)])
