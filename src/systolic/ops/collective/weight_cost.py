"""The time of a product whose weight is gathered, by arithmetic, and the fastest schedule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

from systolic.chips import Chip
from systolic.ops.collective.cost import (
    BLOCK_US,
    COPY_US,
    START_US,
    WEIGHT_ROWS,
    compiler_limit_bytes,
    require_room,
    too_large,
    usable_bytes,
)
from systolic.ops.collective.schedule import WAYS, row_multiple
from systolic.ops.collective.sizes import WeightSizes, schedule_fields, violations_of
from systolic.ops.collective.weight_schedule import TRANSPOSED, WeightSchedule
from systolic.schedule import total_bytes
from systolic.schedule.legality import LANES, IllegalTilesError, legal_sides
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import MIB
from systolic.spec import dtype_bytes

_PRODUCT = "a product with a gathered weight"
_MAX_BLOCK_ROWS = 1024
_MAX_WIDTH = 1024  # columns of a piece: with more, the last product begins later


def fastest_weight_schedule(sizes: WeightSizes, chip: Chip) -> WeightSchedule:
    """Return the schedule that takes least time by arithmetic.

    Raises:
      IllegalTilesError: there is none, with the reason.
    """
    return legal_weight_schedules(sizes, chip)[0]


def legal_weight_schedules(sizes: WeightSizes, chip: Chip) -> list[WeightSchedule]:
    """Return all legal schedules, the fastest by arithmetic first; raise IllegalTilesError if there is none."""
    violations = violations_of(sizes, chip)
    if sizes.cut == "k" and sizes.transpose_rhs:
        violations.append(TRANSPOSED)
    if violations:
        raise IllegalTilesError(_PRODUCT, violations)
    if schedules := sorted(_schedules(sizes, chip), key=lambda schedule: weight_schedule_us(schedule, sizes, chip)):
        return schedules
    value = f"[{sizes.rows}, {sizes.k}] is {sizes.padded_rows * sizes.k * dtype_bytes(sizes.dtype) / MIB:.0f} MiB"
    limit = f"pieces of weights are whole registers, and x and some fit in {usable_bytes(chip) // MIB} MiB"
    raise too_large(_PRODUCT, value, limit, "cut the rows over more devices")


def weight_vmem_limit_bytes(schedule: WeightSchedule, sizes: WeightSizes, chip: Chip) -> int:
    """Return the limit to ask the compiler for."""
    return compiler_limit_bytes(weight_vmem_bytes(schedule, sizes), chip)


def weight_schedule_us(schedule: WeightSchedule, sizes: WeightSizes, chip: Chip) -> float:
    """Return the modeled time of a schedule: links that send all the time, and products that wait for their pieces."""
    assert chip.links is not None  # a rule of `violations_of`
    piece_us = sizes.chunk_bytes / (schedule.groups * WAYS) / chip.links.bytes_per_s * 1e6
    hop_us = chip.links.hop_s * 1e6
    row_us = 2 * sizes.k * padded(schedule.width, chip.machine.mxu_columns) * sizes.weights * sizes.passes
    row_us *= chip.cores_per_device / chip.peak_ops_per_s(sizes.dtype) * 1e6
    block_us = (schedule.block + WEIGHT_ROWS) * row_us + sizes.weights * BLOCK_US + sizes.outs * COPY_US
    # Of two pieces from HBM the second one comes while the first is multiplied.
    fetch_us = sizes.weights * sizes.k * schedule.width * dtype_bytes(sizes.dtype) / chip.hbm_bytes_per_s * 1e6
    product_us = schedule.blocks * block_us + (fetch_us / WAYS if schedule.in_hbm else 0.0)
    now = START_US + schedule.block * sizes.k * dtype_bytes(sizes.dtype) / chip.hbm_bytes_per_s * 1e6
    for group in range(schedule.groups):
        sent = group * schedule.steps
        if sizes.cut == "n":
            now += WAYS * product_us
            for step in range(1, schedule.steps + 1):
                hops = (step - 1) // WAYS + 1
                now = max(now, (sent + step) * piece_us + (1 + hops) * hop_us) + WAYS * product_us
        else:
            arrival = (sent + schedule.steps) * piece_us + (1 + (schedule.steps + 1) // WAYS) * hop_us
            now = max(now, arrival) + WAYS * product_us
    return now


def weight_vmem_bytes(schedule: WeightSchedule, sizes: WeightSizes) -> int:
    """Return the bytes of VMEM that a schedule takes."""
    # The compiler may copy what it multiplies: with libtpu 0.0.42.1 [1024, 4096] @ [4096, 512], of 12 MiB, took 8.3 MiB
    # more than the buffers.
    operand_bytes = (schedule.block + schedule.width) * sizes.k * dtype_bytes(sizes.dtype)
    sum_bytes = schedule.block * schedule.width * dtype_bytes("float32")
    return total_bytes(schedule.buffers(sizes.dtype_out)) + operand_bytes + sizes.weights * sum_bytes


def require_weight_fit(schedule: WeightSchedule, sizes: WeightSizes, chip: Chip) -> None:
    """Raise IllegalTilesError if a schedule takes more VMEM or more semaphores than the chip has."""
    require_room(weight_vmem_bytes(schedule, sizes), schedule.semaphores, str(schedule), chip)


def _schedules(sizes: WeightSizes, chip: Chip) -> Iterator[WeightSchedule]:
    """Yield all legal schedules."""
    rows = sizes.padded_rows
    multiple = max(row_multiple(sizes.dtype), row_multiple(sizes.dtype_out))
    blocks = [block for block in legal_sides(rows, multiple) if block <= _MAX_BLOCK_ROWS]
    for width in legal_sides(sizes.columns // WAYS, LANES):
        if width > _MAX_WIDTH or sizes.columns % (width * WAYS):
            continue
        for block, in_hbm in itertools.product(blocks[-3:], (False, True)):
            with suppress(IllegalTilesError):
                schedule = weight_schedule(sizes, width=width, block=block, in_hbm=in_hbm)
                require_weight_fit(schedule, sizes, chip)
                yield schedule


def weight_schedule(sizes: WeightSizes, *, width: int, block: int, in_hbm: bool) -> WeightSchedule:
    """Return the schedule of these sizes; raise IllegalTilesError if a size is not cut evenly."""
    groups = sizes.columns // (width * WAYS)
    shared = schedule_fields(sizes)
    return WeightSchedule(**shared, k=sizes.k, cut=sizes.cut, groups=groups, block=block, in_hbm=in_hbm)
