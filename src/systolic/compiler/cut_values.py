"""Values that `jax.shard_map` cuts over the devices of a mesh, as one device knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from systolic.compiler.deferred import Deferred, Missing, applied
from systolic.compiler.mesh_place import MeshPlace


class _Cut(Deferred):
    """A result of all devices of a `jax.shard_map`; this device knows its own part."""

    __slots__ = ("part", "place", "spec")

    def __init__(self, part: Deferred, place: MeshPlace, spec: Sequence[Any]) -> None:
        super().__init__(lambda: Missing("what the devices of a shard_map compute together"))
        self.part, self.place, self.spec = part, place, spec


def part_of(value: Deferred, place: MeshPlace, spec: Sequence[Any]) -> Deferred:
    """Return a device's part of a value that is cut by a `PartitionSpec`."""
    if isinstance(value, _Cut) and (value.place, value.spec) == (place, spec):
        return value.part
    return applied(lambda array: place.part(np.asarray(array), spec), value, local=any(spec))


def whole_of(part: Deferred, place: MeshPlace, spec: Sequence[Any]) -> Deferred:
    """Return the whole value, from the part that a device has."""
    return _Cut(part, place, spec) if any(spec) else part
