"""The ring that a kernel walks, as an array that is known when the program is lowered.

Traced code knows the sizes of mesh axes, not the devices on them. Lowering knows the mesh of the `shard_map`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir

from systolic.chips import CHIPS
from systolic.ops.collective.rings import places, ring_through

_axis_ring = Primitive("axis_ring")
_axis_ring.def_abstract_eval(lambda *, axis_name, size: jax.core.ShapedArray((size,), np.dtype("int32")))
_axis_ring.def_impl(lambda *, axis_name, size: jnp.arange(size, dtype=jnp.int32))


def axis_ring(axis_name: str, size: int) -> Array:
    """Return the axis indices in the order of a ring of neighbors: int32 [size].

    The order is that of the axis if no such ring exists, or if the coordinates of the devices are unknown.
    """
    return _axis_ring.bind(axis_name=axis_name, size=size)


def _lowered(context: Any, *, axis_name: str, size: int) -> Any:
    ring = _ring_on(getattr(context.module_context.axis_context, "mesh", None), axis_name, size)
    return mlir.lower_fun(lambda: jnp.asarray(ring, jnp.int32), multiple_results=False)(context)


def _ring_on(mesh: Any, axis_name: str, size: int) -> tuple[int, ...]:
    devices = getattr(mesh, "devices", None)  # an abstract mesh has none
    if devices is None or any(getattr(device, "coords", None) is None for device in devices.flat):
        return tuple(range(size))
    kind = devices.flat[0].device_kind
    links = next((chip.links for chip in CHIPS.values() if chip.device_kind == kind), None)
    if links is None:
        return tuple(range(size))
    dimensions = links.dimensions  # libtpu counts three axes on chips that have two
    coords = [tuple(device.coords[:dimensions]) for device in devices.flat]
    along_axis = np.arange(math.prod(devices.shape)).reshape(devices.shape)
    groups = np.moveaxis(along_axis, mesh.axis_names.index(axis_name), -1).reshape(-1, size)
    all_places = places(coords, links.wrap)
    return ring_through([[all_places[number] for number in group] for group in groups.tolist()])


mlir.register_lowering(_axis_ring, _lowered)
