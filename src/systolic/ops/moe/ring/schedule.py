"""The cutting of the kernel that adds up experts' rows and sends the sums round a ring of devices.

The sums for a device begin at the opposite device of the ring, half of its tokens each way, and each device on the way
adds its own. So they take half as many hops as there are devices, and a link carries (devices − 1) / 2 devices' tokens
in each direction, the least for a ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.chips import Chip
from systolic.ops.moe.schedule import GRANULE_TOKENS, CombineSchedule, CombineSpec, combine_schedule
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.legality import IllegalTilesError, Violation
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

WAYS = 2  # round the ring
STAGES = 4  # sums of pieces on their way to a neighbor, two each way
# Arrivals and stages of the kernel, each with its semaphore.
# Source: as `MAX_SEMAPHORES` of products on a ring, 2,048 bytes of libtpu 0.0.42.1.
MAX_ARRIVALS = 200


class Field:
    """Columns of the table of steps: a step adds up the choices of one piece, a block of tokens."""

    BLOCK = 0  # number of the block among all devices' tokens
    ARRIVED = 1  # and 2: the places of sums that arrive for this piece, one each way
    SENT = 3  # the place on the next device; of this device's own tokens: -1
    WAY = 4
    OWN = 5  # number of the piece among this device's tokens
    COUNT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A piece of the tokens of the device at a distance along a way."""

    distance: int  # 0: this device's own
    way: int
    piece: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterSchedule:
    devices: int
    combine: CombineSchedule  # of all devices' tokens; a block is a piece
    buffers: tuple[VmemBuffer, ...]

    @classmethod
    def of(cls, spec: CombineSpec, devices: int, chip: Chip, tiles: int = 1) -> ScatterSchedule:
        """Return the schedule with the smallest pieces, or raise IllegalTilesError.

        Args:
          tiles: of columns, whose sums arrive in places of their own.
        """
        halves = 2 * devices * GRANULE_TOKENS
        violations = []
        if devices % 2:
            limit, fix = "sums begin at an opposite device", "use an even number of devices"
            violations.append(Violation(rule="ring", value=f"{devices} devices", limit=limit, fix=fix))
        if spec.tokens % halves:
            value, fix = f"{spec.tokens} tokens of {devices} devices", f"use a multiple of {halves}"
            limit = f"pieces are half of a device's tokens, or less, and multiples of {GRANULE_TOKENS}"
            violations.append(Violation(rule="tokens", value=value, limit=limit, fix=fix))
        if not violations:
            schedule = _schedule(spec, devices, tiles)
            arrivals = tiles * schedule.arrivals
            if arrivals > MAX_ARRIVALS:
                value, limit = f"{arrivals} arrivals", f"there are semaphores for {MAX_ARRIVALS}"
                violations.append(Violation(rule="semaphores", value=value, limit=limit, fix="use fewer devices"))
            size, room = total_bytes(schedule.buffers), buffer_bytes(chip)
            if size <= room and not violations:
                return schedule
            if size > room:
                value, limit = f"sums on their way and rows are {size:,} bytes", f"VMEM has {room:,}"
                violations.append(Violation(rule="VMEM", value=value, limit=limit, fix="use fewer tokens at once"))
        raise IllegalTilesError("sums on a ring", violations)

    @property
    def pieces(self) -> int:
        """Pieces of a device's tokens."""
        return self.combine.blocks // self.devices

    @property
    def arrivals(self) -> int:
        """Pieces that arrive from both neighbors: half of the opposite device's tokens, and all of those between."""
        return WAYS * (self.devices - 1) * self.pieces // 2

    @property
    def steps(self) -> tuple[_Step, ...]:
        """The farthest pieces first, which travel longest."""
        half = self.pieces // 2
        halves = range(half), range(half, self.pieces)

        def order() -> Iterator[_Step]:
            opposite = self.devices // 2
            for pair in zip(*halves, strict=True):
                yield from (_Step(distance=opposite, way=way, piece=piece) for way, piece in enumerate(pair))
            for distance in range(opposite - 1, 0, -1):
                # First those that begin here: the others' sums are still on their way.
                for pair in zip((*halves[1], *halves[0]), (*halves[0], *halves[1]), strict=True):
                    yield from (_Step(distance=distance, way=way, piece=piece) for way, piece in enumerate(pair))
            yield from (_Step(distance=0, way=0, piece=piece) for piece in range(self.pieces))

        return tuple(order())

    def table(self, ring: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the steps of the device at each place of the ring: [places, steps, fields]."""
        steps, half = self.steps, self.arrivals // WAYS
        places = {}  # of the sums that a step sends, at the device that receives them
        for way in range(WAYS):
            sent = [step for step in steps if step.distance and step.way == way]
            places |= {step: way * half + number for number, step in enumerate(sent)}
        nothing = self.arrivals
        rows = np.zeros((self.devices, len(steps), Field.COUNT), np.int32)
        for number, step in enumerate(steps):
            ways = (step.way,) if step.distance else range(WAYS)
            before = (_Step(distance=step.distance + 1, way=way, piece=step.piece) for way in ways)
            arrived = [places.get(source, nothing) for source in before]
            for place in range(self.devices):
                device = ring[(place + (1 - 2 * step.way) * step.distance) % self.devices]
                fields = rows[place, number]
                fields[Field.BLOCK] = device * self.pieces + step.piece
                fields[Field.ARRIVED : Field.ARRIVED + WAYS] = (*arrived, nothing)[:WAYS]
                fields[Field.SENT] = places.get(step, -1)
                fields[Field.WAY] = step.way
                fields[Field.OWN] = 0 if step.distance else step.piece
        return rows

    def time_us(self, spec: CombineSpec, chip: Chip, used_rows: int | None = None) -> float:
        """Return the time: links are busy all the time but for the first piece's sums and the last one's."""
        assert chip.links is not None  # devices of a chip without links are no ring
        sums_us = self.combine.time_us(spec, chip, used_rows)
        piece_bytes = self.combine.tokens * spec.d * dtype_bytes(spec.dtype_out)
        links_us = self.arrivals / WAYS * piece_bytes / chip.links.bytes_per_s * 1e6
        return max(sums_us, links_us) + 2 * sums_us / self.combine.blocks + self.devices // 2 * chip.links.hop_s * 1e6


def _schedule(spec: CombineSpec, devices: int, tiles: int) -> ScatterSchedule:
    combine = combine_schedule(spec, GRANULE_TOKENS, spec.d)
    pieces = combine.blocks // devices
    while tiles * WAYS * (devices - 1) * pieces // 2 > MAX_ARRIVALS and pieces % 4 == 0:
        combine = combine_schedule(spec, 2 * combine.tokens, spec.d)
        pieces //= 2
    arrivals = WAYS * (devices - 1) * pieces // 2
    shape = (combine.tokens, spec.d)
    buffers = (
        *combine.buffers,
        # And one of zeros, for sums that begin here.
        VmemBuffer(name="arrivals", shape=shape, dtype=spec.dtype_out, copies=arrivals + 1),
        VmemBuffer(name="stages", shape=shape, dtype=spec.dtype_out, copies=STAGES),
    )
    return ScatterSchedule(devices=devices, combine=combine, buffers=buffers)
