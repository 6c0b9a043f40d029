"""Make devices and meshes of an absent slice, for shardings, without a TPU compiler, and send them to one."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from systolic.chips import Chip, SliceError, SliceShape
from systolic.chips import chip as chip_named
from systolic.compiler.errors import CompilerError
from systolic.compiler.program import Topology
from systolic.compiler.worker import DUMP_VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInDevice:
    """A placeholder for a `jax.Device` of a slice, in meshes and shardings.

    When it is sent to a compiler's worker, it becomes libtpu's device.

    Attributes:
        topology: libtpu's name of the slice.
        id, coords, core_on_chip, device_kind, num_cores: as in a `jax.Device`.
        platform, process_index, slice_index: as in JAX's devices; the same for all.
    """

    topology: Topology
    id: int
    coords: tuple[int, ...]
    core_on_chip: int
    device_kind: str
    num_cores: int
    platform: str = field(default="tpu", init=False)
    process_index: int = field(default=0, init=False)
    slice_index: int = field(default=0, init=False)

    def __str__(self) -> str:
        return f"{self.topology.name}[{self.id}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _device_here, (self.topology, self.id, self.coords, self.core_on_chip, self.device_kind, self.num_cores)


def topology_of(shape: SliceShape) -> Topology:
    """Describe a slice in libtpu's terms."""
    return Topology(
        name=shape.topology,
        config=shape.chip.topology_config,
        wrap=shape.libtpu_wrap,
        host_bounds=shape.libtpu_host_bounds,
    )


def slice_devices(chip: str | Chip, topology: str) -> tuple[Any, ...]:
    """Return the devices of `jax.devices()` on a slice, in its order, for `jax.sharding.Mesh` and `jax.make_mesh`.

    Args:
        chip: a name such as "v6e", or your own record.
        topology: chips along each axis: "2x4" on v5e and v6e, "2x2x1" on the others.

    Raises:
        UnknownChipError: no such chip.
        SliceError: no such slice.
    """
    shape = SliceShape.parse(chip_named(chip), topology)
    slice_topology = topology_of(shape)
    # libtpu lists the chips of one host after the other.
    listed = sorted(shape.devices, key=lambda device: (*(at // 2 for at in device.coords[1::-1]), device.id))
    listed.sort(key=lambda device: device.coords[2:])
    return tuple(
        _device_here(
            slice_topology,
            device.id,
            (*device.coords, 0)[:3],
            device.core,
            shape.chip.device_kind,
            shape.chip.cores_per_device,
        )
        for device in listed
    )


def slice_mesh(chip: str | Chip, topology: str, /, **axes: int) -> Any:
    """Return a mesh over all devices of an absent slice, for `NamedSharding` and `jax.shard_map`.

    The devices are in the order of `jax.make_mesh` on such a slice. For another order, make the mesh from
    `slice_devices`; for other types of axes, use `jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=…)`.

    Args:
        chip: a name such as "v6e", or your own record.
        topology: chips along each axis: "2x4" on v5e and v6e, "2x2x1" on the others.
        axes: the mesh's axes with their sizes, such as `data=2, model=4`.

    Returns:
        A `jax.sharding.Mesh`, whose axes are of type Auto.

    Raises:
        UnknownChipError: no such chip.
        SliceError: no such slice, or the axes do not hold its devices.
    """
    import math

    from jax.sharding import Mesh

    devices = slice_devices(chip, topology)
    named = ", ".join(f"{name}={size}" for name, size in axes.items()) or "no axes"
    if any(not isinstance(size, int) or size < 1 for size in axes.values()):
        raise SliceError(f"a mesh with {named}: an axis has a whole number of devices, at least one")
    if math.prod(axes.values()) != len(devices):
        name = chip if isinstance(chip, str) else chip.name
        raise SliceError(
            f"a mesh with {named} has {math.prod(axes.values())} devices, and a slice {topology} of {name} has "
            f"{len(devices)}"
        )
    return Mesh(ordered_devices(tuple(axes.values()), devices), tuple(axes))


def ordered_devices(sizes: Sequence[int], devices: Sequence[Any]) -> Any:
    """Return all devices of a slice in the order of `jax.make_mesh`, as an array of these sizes."""
    from jax.experimental import mesh_utils

    try:
        return mesh_utils.create_device_mesh(sizes, devices)
    except NotImplementedError:
        # An axis of the mesh covers part of an axis of the slice: `jax.make_mesh` refuses this, too, by default.
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)


def explicit_axes(mesh: Any) -> Any:
    """Return the mesh with explicit axes: types of arrays on it state their shardings."""
    from jax.sharding import AxisType, Mesh

    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * len(mesh.axis_names))


@functools.cache
def libtpu_devices(topology: Topology) -> Sequence[Any]:
    """Return the devices of `new_libtpu_devices`, the same objects in every call."""
    return new_libtpu_devices(topology)


def new_libtpu_devices(topology: Topology) -> Sequence[Any]:
    """Return libtpu's devices of a slice, in a worker; raise CompilerError if libtpu does not know the slice."""
    import jax
    from jax.experimental import topologies

    # A program from JAX's own cache on disk is not compiled, and leaves no listing.
    jax.config.update("jax_enable_compilation_cache", False)
    attributes = {
        "chip_config_name": topology.config,
        "wrap": topology.wrap,
        "chips_per_host_bounds": topology.host_bounds,
    }
    options = {name: value for name, value in attributes.items() if value is not None}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise CompilerError(f"libtpu does not know the topology {topology.name!r}: {error}") from error


def _device_here(
    topology: Topology, number: int, coords: tuple[int, ...], core_on_chip: int, device_kind: str, num_cores: int
) -> Any:
    """Return the device: libtpu's in a worker, which compiles for it, and its placeholder anywhere else."""
    if DUMP_VARIABLE in os.environ:
        return next(device for device in libtpu_devices(topology) if device.id == number)
    return StandInDevice(
        topology=topology,
        id=number,
        coords=coords,
        core_on_chip=core_on_chip,
        device_kind=device_kind,
        num_cores=num_cores,
    )
