"""One device's place on a mesh: its part of an array, and the operations that depend on a place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# They change nothing but what JAX knows of a value.
KEEPS_VALUE = frozenset(
    {"pvary", "pcast", "sharding_constraint", "reshard", "mesh_cast", "device_put", "optimization_barrier"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlace:
    """The place of a device on a mesh."""

    sizes: Mapping[str, int]  # of the mesh's axes, by name, in the mesh's order
    at: Mapping[str, int]  # the device's index along each
    mesh: Any  # as JAX has it

    @staticmethod
    def of(mesh: Any, partition: int) -> MeshPlace:
        """Return the place of a partition's device, counted in the order of the mesh."""
        sizes = dict(mesh.shape)
        indices = np.unravel_index(partition, tuple(sizes.values()))
        return MeshPlace(
            sizes=sizes, at={name: int(index) for name, index in zip(sizes, indices, strict=True)}, mesh=mesh
        )

    def along(self, axis: str) -> list[int]:
        """Return the partitions of the devices along an axis through this place."""
        places = (({**self.at, axis: index}) for index in range(self.sizes[axis]))
        return [int(np.ravel_multi_index(tuple(at.values()), tuple(self.sizes.values()))) for at in places]

    def part(self, array: np.ndarray, spec: Sequence[Any]) -> np.ndarray:
        """Return the device's part of an array that is cut by a `PartitionSpec`."""
        for dimension, names in enumerate(spec):
            axes = () if names is None else (names,) if isinstance(names, str) else tuple(names)
            size = array.shape[dimension] // math.prod(self.sizes[axis] for axis in axes)
            index = 0
            for axis in axes:
                index = index * self.sizes[axis] + self.at[axis]
            array = np.take(array, range(index * size, (index + 1) * size), axis=dimension)
        return array


def names_axis(equation: Any) -> bool:
    """True if an operation is about an axis of the mesh: it needs the device's index, or values of other devices."""
    names = equation.params.get("axis_name", equation.params.get("axes", ()))
    return any(isinstance(name, str) for name in (names if isinstance(names, tuple | list) else (names,)))
