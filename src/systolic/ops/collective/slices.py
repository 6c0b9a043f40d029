"""The slice that a mesh fills, with the axes that matter to a ring: trials of `tune` are kept by it."""

from __future__ import annotations

import math
from typing import Any

from systolic.chips import CHIPS, SliceError, SliceShape
from systolic.spec import SliceMesh

RING = "ring"  # the axis that a product sends over, whatever its name; others are before it or after it in the mesh


def ring_slice(topology: str, devices: int, *, before: int = 1, after: int = 1) -> SliceMesh:
    """Return a slice with a mesh in which `devices` follow one another on a ring.

    Args:
      before, after: devices along the axes of the mesh before and after the ring's axis.
    """
    axes = {"before": before, RING: devices, "after": after}
    return SliceMesh.of(topology, **{name: size for name, size in axes.items() if size > 1 or name == RING})


def slice_of(mesh: Any, axis_name: str) -> SliceMesh | None:
    """Return the slice of a mesh with devices, and the axis as its ring; None if they fill no slice of TPUs.

    The order of the devices is not in it: a kernel walks a ring of its own.
    """
    if mesh is None:
        return None
    devices = list(mesh.devices.flat)
    if any(getattr(device, "coords", None) is None for device in devices):
        return None
    chip = next((chip for chip in CHIPS.values() if chip.device_kind == devices[0].device_kind), None)
    if chip is None or chip.links is None:
        return None
    coords = {tuple(device.coords[: chip.links.dimensions]) for device in devices}
    extents = tuple(max(along) - min(along) + 1 for along in zip(*coords, strict=True))
    try:
        shape = SliceShape(chip=chip, extents=extents)
    except SliceError:
        return None
    if len(coords) != math.prod(extents) or len(shape.devices) != len(devices):
        return None
    sizes = list(dict(mesh.shape).values())
    place = mesh.axis_names.index(axis_name)
    before, after = math.prod(sizes[:place]), math.prod(sizes[place + 1 :])
    return ring_slice(shape.name, sizes[place], before=before, after=after)
