"""Find the ring of a mesh axis from the coordinates of its devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh

from systolic.chips import CHIPS
from systolic.ops.collective.rings import places, ring_through


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)  # JAX keeps parameters by weak references
class AxisRing:
    """The order of an axis' indices in which neighbors are one hop apart, as a function of the mesh.

    It is the order of the axis if there is no such ring, or if the coordinates of the devices are unknown.
    """

    axis_name: str
    size: int

    def __call__(self, mesh: Any) -> tuple[int, ...]:
        devices = mesh.devices if isinstance(mesh, Mesh) else None  # an abstract mesh has none
        if devices is None or any(getattr(device, "coords", None) is None for device in devices.flat):
            return tuple(range(self.size))
        kind = devices.flat[0].device_kind
        links = next((chip.links for chip in CHIPS.values() if chip.device_kind == kind), None)
        if links is None:
            return tuple(range(self.size))
        coords = [tuple(device.coords[: links.dimensions]) for device in devices.flat]  # libtpu counts three everywhere
        numbers = np.arange(math.prod(devices.shape)).reshape(devices.shape)
        groups = np.moveaxis(numbers, mesh.axis_names.index(self.axis_name), -1).reshape(-1, self.size)
        all_places = places(coords, links.wrap)
        return ring_through([[all_places[number] for number in group] for group in groups.tolist()])
