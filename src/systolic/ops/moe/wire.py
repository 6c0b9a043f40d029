"""The time in which tokens and rows pass the links between devices, by arithmetic."""

from __future__ import annotations

import math

from systolic.chips import Chip
from systolic.chips.links import Links
from systolic.ops.moe.schedule import CombineSpec
from systolic.spec import SpecError, dtype_bytes


def ring_us(spec: CombineSpec, devices: int, chip: Chip) -> float:
    """Return the time in which half of all other devices' tokens pass a link in each direction.

    Raises:
      SpecError: a chip without links.
    """
    links = _links(chip)
    sent_bytes = (devices - 1) / 2 * (spec.tokens // devices) * spec.d * dtype_bytes(spec.dtype_out)
    return sent_bytes / links.bytes_per_s * 1e6


def all_to_all_us(sent_bytes: int, devices: int, chip: Chip) -> float:
    """Return the time in which rows pass the middle of the most compact slice of `devices` devices.

    Half of the devices send half of their rows to the other half, over the links between them.

    Args:
      sent_bytes: of a device, evenly to all devices and itself.

    Raises:
      SpecError: a chip without links.
    """
    links = _links(chip)
    passing_bytes = devices * sent_bytes / 4
    if devices <= chip.devices_per_chip:
        return passing_bytes / (links.die_bytes_per_s or links.bytes_per_s) * 1e6
    extents = _compact(devices // chip.devices_per_chip, links.dimensions)
    longest, wraps = max(zip(extents, links.wrap(extents), strict=True))
    ways = math.prod(extents) // longest * (2 if wraps else 1)
    return passing_bytes / (ways * links.bytes_per_s) * 1e6


def _compact(chips: int, dimensions: int) -> tuple[int, ...]:
    """Return extents of a slice, the shortest first."""
    if dimensions == 1:
        return (chips,)
    sides = (side for side in range(1, chips + 1) if chips % side == 0 and side**dimensions <= chips)
    shortest = max(sides)
    return (shortest, *_compact(chips // shortest, dimensions - 1))


def _links(chip: Chip) -> Links:
    if chip.links is None:
        raise SpecError(f"{chip.name} has no links to other chips that systolic knows; use devices=1")
    return chip.links
