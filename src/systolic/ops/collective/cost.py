"""The time of a ring's schedule by arithmetic, and the fastest schedule.

All devices do the same at the same time, so one device's timeline is enough: the copies of a direction leave one after
another, an arrival was sent one hop earlier, and a product waits for its operands, or for the sum that it is added to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.ops.collective.schedule import WAYS, RingSchedule
from systolic.ops.collective.sizes import RingSizes, core_shares, schedule_fields, violations_of
from systolic.ops.collective.wire_cost import made_us
from systolic.schedule import total_bytes
from systolic.schedule.legality import LANES, IllegalTilesError, Violation, legal_sides
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import MIB
from systolic.spec import dtype_bytes

_PRODUCT = "a product on a ring"
_MAX_BLOCK = 4096  # columns multiplied at once: a block's sum of 256 rows takes 4 MiB
_MAX_PASS_ROWS = 1024
# Elements of a product whose rows have scales: its code has 15,000 bundles for 256 rows and 1,792 columns, and 77,000
# for 512 and 3,584 (libtpu 0.0.42.1).
_MAX_SCALED_ELEMENTS = 512 * 1024
# A block of weights that is converted before it is multiplied. With blocks [8192, 3584] of int8 a kernel took 183 µs on
# v6e, for 2,048 rows, and XLA's copy of the result 22 µs in place of 11, because the kernel leaves it no VMEM; with
# blocks of 1,792 columns 182 µs. Simulated with libtpu 0.0.42.1.
_MAX_WIDENED_BYTES = 32 * MIB
PIECES = (2, 4)  # of a part of a chunk
PARTS = (1, 2, 4, 8, 16, 32)  # of a chunk: the fewest that fit with pieces of a size
# Rows' worth of time that a product takes in addition for its weights, which the matrix unit loads: 16 passes of 128
# rows took 42 µs more than 8 of 256 on v6e, for k = 8192 and 3584 columns in 7 blocks.
WEIGHT_ROWS = 45
# A block of columns takes this time in addition, and so does each copy of its result: 14 blocks more in each of 8
# passes took 17 µs longer on v6e, and 4 blocks more with 16 copies each 2 µs. Simulated with libtpu 0.0.42.1.
BLOCK_US = 0.2
COPY_US = 0.12
# Until weights flow from HBM: the first block came 2.5 µs later than its bytes take, in a trace of reduce-scatter on
# v6e.
START_US = 2.5
# libtpu 0.0.42.1 has 2,048 bytes for semaphores, 8 for each, and needs some itself.
MAX_SEMAPHORES = 224
# VMEM for the compiler, for values between a product and its store: the minimum, and the amount to request. libtpu
# 0.0.42.1 takes 3.2 MiB more than the buffers and a sum of 256 rows and 896 columns.
_MIN_COMPILER_BYTES = 3 * MIB
_COMPILER_BYTES = 5 * MIB
# With blocks of so few columns libtpu 0.0.42.1 spills all rows of a pass: 4.0 MiB of [256, 8192] on v5p.
_SPILLING_BLOCK = 256


def fastest_schedule(sizes: RingSizes, chip: Chip) -> RingSchedule:
    """Return the schedule that takes least time by arithmetic.

    Raises:
      IllegalTilesError: there is none, with the reason.
    """
    return legal_schedules(sizes, chip)[0]


def legal_schedules(sizes: RingSizes, chip: Chip) -> list[RingSchedule]:
    """Return all legal schedules, the fastest by arithmetic first; raise IllegalTilesError if there is none."""
    if violations := violations_of(sizes, chip):
        raise IllegalTilesError(_PRODUCT, violations)
    if schedules := sorted(_schedules(sizes, chip), key=lambda schedule: schedule_us(schedule, sizes, chip)):
        return schedules
    rows_bytes = sizes.devices * sizes.padded_rows * sizes.k * dtype_bytes(sizes.dtype)
    value = f"all rows of x and w are {(rows_bytes + sizes.weight_bytes) / MIB:.0f} MiB"
    parts = "" if sizes.scatters else " and with more than four devices w and two parts of x,"
    limit = f"with blocks of results they,{parts} have to fit in {usable_bytes(chip) // MIB} MiB"
    raise too_large(_PRODUCT, value, limit, "cut them over more devices")


def too_large(product: str, value: str, limit: str, fix: str) -> IllegalTilesError:
    """Return the refusal of a product for which no schedule fits in VMEM."""
    return IllegalTilesError(product, [Violation(rule="VMEM", value=value, limit=limit, fix=fix)])


def usable_bytes(chip: Chip) -> int:
    """Return the bytes of VMEM that the buffers of a schedule may take."""
    return chip.usable_vmem_bytes_per_core - _MIN_COMPILER_BYTES


def vmem_limit_bytes(schedule: RingSchedule, sizes: RingSizes, chip: Chip) -> int:
    """Return the limit to ask the compiler for."""
    return compiler_limit_bytes(vmem_bytes(schedule, sizes), chip)


def compiler_limit_bytes(buffer_bytes: int, chip: Chip) -> int:
    return min(max(buffer_bytes + _COMPILER_BYTES, chip.scoped_vmem_bytes), chip.usable_vmem_bytes_per_core)


def vmem_bytes(schedule: RingSchedule, sizes: RingSizes) -> int:
    buffers_of = schedule.scatter_buffers if sizes.scatters else schedule.gather_buffers
    slots = schedule.first_slots if sizes.scatters else schedule.slots_at_once
    sum_bytes = slots * WAYS * schedule.piece_rows * schedule.block * dtype_bytes("float32")
    # The compiler copies the rows that were converted: with [512, 8192] of bfloat16 it took 7.3 MiB more.
    is_converted = sizes.rows_wire_dtype is not None and not sizes.multiplies_bytes
    is_copied = is_converted or (not sizes.scatters and schedule.block <= _SPILLING_BLOCK)
    copied_rows = schedule.pass_rows if is_copied else 0
    copied_bytes = copied_rows * sizes.k * dtype_bytes(sizes.dtype) + _widened_bytes(sizes, schedule.block)
    return total_bytes(buffers_of(sizes.k, sizes.dtype_out)) + copied_bytes + sizes.sums * sum_bytes


def _widened_bytes(sizes: RingSizes, block: int) -> int:
    """Return the bytes of a block of weights after its conversion to the dtype of x; 0 if there is none."""
    return sizes.k * block * dtype_bytes(sizes.dtype) if sizes.widens else 0


def schedule_us(schedule: RingSchedule, sizes: RingSizes, chip: Chip) -> float:
    """Return the modeled time of a schedule."""
    times = _Times.of(schedule, sizes, chip)
    return _scatter_us(schedule, times) if sizes.scatters else _gather_us(schedule, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Times in µs of the parts of a schedule."""

    row: float  # product of a row and a block of columns
    block: float  # time that the product takes in addition, for any number of rows
    copy: float  # of a part of its result
    weights: float  # of a block of w, from HBM
    sent: float  # the bytes that a step sends at once in one direction: a piece of x, or a block of sums
    made: float  # values of a slot that travel in eight bits: the rows', or a block's sums
    hop: float

    @staticmethod
    def of(schedule: RingSchedule, sizes: RingSizes, chip: Chip) -> _Times:
        assert chip.links is not None  # a rule of `violations_of`
        multiplied = padded(schedule.block, chip.machine.mxu_columns)
        # At the rate of one TensorCore. Cores share HBM and the links, all with the same of each at the same time.
        row = 2 * sizes.k * multiplied * sizes.sums * sizes.passes * chip.cores_per_device * 1e6
        row /= chip.peak_ops_per_s(sizes.dtype_multiplied)
        width_bytes = sizes.sent_row_bytes(schedule.block if sizes.scatters else sizes.k)
        return _Times(
            row=row,
            block=WEIGHT_ROWS * row + sizes.sums * BLOCK_US,
            copy=sizes.outs * COPY_US,
            weights=schedule.row_cores * sizes.weight_bytes / schedule.blocks / chip.hbm_bytes_per_s * 1e6,
            sent=schedule.cores * schedule.piece_rows * width_bytes / chip.links.bytes_per_s * 1e6,
            made=WAYS * schedule.piece_rows * made_us(schedule, sizes, chip),
            hop=chip.links.hop_s * 1e6,
        )


class _Link:
    """Copies one after another in one direction."""

    def __init__(self, times: _Times) -> None:
        self._times, self._free = times, 0.0

    def arrival(self, ready: float) -> float:
        """Return when a copy arrives that is ready to be sent at a time."""
        self._free = max(self._free, ready) + self._times.sent
        return self._free + self._times.hop


def _gather_us(schedule: RingSchedule, times: _Times) -> float:
    link, now = _Link(times), times.hop  # of the barrier
    all_steps = schedule.parts * schedule.steps
    arrivals = [link.arrival(now) for _ in range(min(schedule.pieces, all_steps))]
    pass_us = schedule.blocks * (
        schedule.pass_rows * times.row + times.block + WAYS * schedule.slots_at_once * times.copy
    )
    pass_us += schedule.slots_at_once * times.made
    for number in range(schedule.parts * schedule.groups):
        part, group = divmod(number, schedule.groups)
        for slot in range(group * schedule.slots_at_once, (group + 1) * schedule.slots_at_once):
            if slot >= schedule.own_slots:
                now = max(now, arrivals[part * schedule.steps + slot - schedule.own_slots])
                if len(arrivals) < all_steps:
                    arrivals.append(link.arrival(now))
        if number == 0:  # its last block waits for the last weights
            columns = schedule.columns // schedule.first_block
            now = max(now, START_US + schedule.blocks * times.weights - pass_us * (columns - 1) / columns)
        now += pass_us
    return now


def _scatter_us(schedule: RingSchedule, times: _Times) -> float:
    link, now = _Link(times), times.hop
    slot_rows = WAYS * schedule.piece_rows
    arrivals: dict[tuple[int, int], float] = {}
    for block in range(schedule.blocks):
        product = schedule.first_slots * slot_rows * times.row + times.block
        now = max(now, START_US + (block + 1) * times.weights) + product
        for slot in range(schedule.fresh_slots):
            now += WAYS * times.copy + times.made
            arrivals[slot, block] = link.arrival(now)

    def add(slot: int, block: int) -> None:
        nonlocal now
        # The last sums come in the steps before the device's own rows are finished.
        before = min(slot, schedule.steps) - schedule.pieces
        now = max(now, arrivals.get((before, block), 0.0)) + WAYS * times.copy + times.made
        if slot < schedule.steps:
            arrivals[slot, block] = link.arrival(now)

    def add_all(slots: range) -> None:
        for slot in slots:
            for block in range(schedule.blocks):
                add(slot, block)

    add_all(range(schedule.fresh_slots, schedule.first_slots))
    for first in range(schedule.first_slots, schedule.slots, schedule.slots_at_once):
        for block in range(schedule.blocks):
            now += schedule.slots_at_once * slot_rows * times.row + times.block
            if schedule.adds_at_once:
                add(first, block)
        if not schedule.adds_at_once:
            add_all(range(first, first + schedule.slots_at_once))
    return max(now, *arrivals.values())


def require_fit(schedule: RingSchedule, sizes: RingSizes, chip: Chip) -> None:
    """Raise IllegalTilesError if a schedule takes more VMEM or more semaphores than the chip has."""
    if sizes.scatters and not schedule.scatters_evenly:
        limit = f"{schedule.slots - schedule.first_slots} slots follow the first pass"
        value = f"slots_at_once={schedule.slots_at_once}"
        violation = Violation(rule="slots", value=value, limit=limit, fix="use a divisor")
        raise IllegalTilesError(str(schedule), [violation])
    semaphores = schedule.scatter_semaphores if sizes.scatters else 0  # the gather's are few
    require_room(vmem_bytes(schedule, sizes), semaphores, str(schedule), chip)


def require_room(buffer_bytes: int, semaphores: int, schedule: str, chip: Chip) -> None:
    """Raise IllegalTilesError if buffers or semaphores are more than the chip has."""
    violations: list[Violation] = []
    if buffer_bytes > usable_bytes(chip):
        limit = f"{usable_bytes(chip) / MIB:.1f} MiB"
        value = f"{buffer_bytes / MIB:.1f} MiB of buffers"
        violations.append(Violation(rule="VMEM", value=value, limit=limit, fix="use smaller blocks"))
    if semaphores > MAX_SEMAPHORES:
        value, limit = f"{semaphores} semaphores", f"{MAX_SEMAPHORES}"
        violations.append(Violation(rule="semaphores", value=value, limit=limit, fix="use larger blocks"))
    if violations:
        raise IllegalTilesError(schedule, violations)


def _schedules(sizes: RingSizes, chip: Chip) -> Iterator[RingSchedule]:
    """Yield all legal schedules in the best way to share the product that has any."""
    yielded: set[tuple[int, int, int]] = set()  # the same with fewer parts
    for share, parts in itertools.product(core_shares(sizes, chip), (1,) if sizes.scatters else PARTS):
        if yielded and parts == 1:  # cores share it another way
            return
        columns = share.get("columns", sizes.columns)
        blocks = [
            block
            for block in legal_sides(columns, LANES)
            if block <= _MAX_BLOCK and block % LANES == 0 and _widened_bytes(sizes, block) <= _MAX_WIDENED_BYTES
        ]
        for pieces in PIECES:
            for at_once, block in itertools.product(range(1, sizes.devices * pieces // 2 + 1), blocks):
                with suppress(IllegalTilesError):
                    schedule = ring_schedule(
                        sizes, share, parts=parts, pieces=pieces, slots_at_once=at_once, block=block
                    )
                    require_fit(schedule, sizes, chip)
                    products = schedule.piece_rows, schedule.pass_rows, block
                    if sizes.rows_wire_dtype is not None and schedule.pass_rows * block > _MAX_SCALED_ELEMENTS:
                        continue
                    if (at_once == 1 or schedule.pass_rows <= _MAX_PASS_ROWS) and products not in yielded:
                        yielded.add(products)
                        yield schedule
        if parts == 1 and yielded:  # without parts there is less to wait for
            return


def ring_schedule(
    sizes: RingSizes, share: dict[str, Any], *, pieces: int, slots_at_once: int, block: int, parts: int = 1
) -> RingSchedule:
    """Return the schedule of these sizes with one of `core_shares`.

    Raises:
      IllegalTilesError: a size is not cut evenly.
    """
    return RingSchedule(
        **schedule_fields(sizes) | share,
        pieces=pieces,
        slots_at_once=slots_at_once,
        block=block,
        parts=parts,
        wire_dtype=sizes.wire_dtype,
        weight_dtype=sizes.weight_dtype,
    )
