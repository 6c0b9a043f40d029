"""A mesh of devices that the CPU plays, for functions that copy between devices: `check(…, mesh={"x": 2, "y": 4})`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from systolic.chips import Chip, SliceError, SliceShape
from systolic.compat import abstract_mesh_in_all_threads, cpu_devices
from systolic.support.call_errors import WrongCallError
from systolic.timing import slice_of

# Slices to compile for, by chips along each axis, the smallest first.
_SLICES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
MAX_DEVICES = 64  # each has its own threads in interpret mode, and waits for the others


class MeshError(WrongCallError, ValueError):
    """A kernel cannot be run on such a mesh."""


def slice_of_devices(chip: Chip, devices: int) -> SliceShape | None:
    """Return the first slice of such chips with this number of devices; None: there is none."""
    for topology in _SLICES:
        try:
            shape = slice_of(chip, topology)
            if len(shape.devices) == devices:
                return shape
        except SliceError:  # of other dimensions than this chip's slices
            continue
    return None


def checked_axes(axes: Mapping[str, int]) -> dict[str, int]:
    """Return the axes of a mesh with their sizes.

    Raises:
      MeshError: it has no axis, an axis without devices, or more devices than can be run.
    """
    wrong = [name for name, size in axes.items() if not isinstance(size, int) or size < 1]
    devices = 0 if wrong or not axes else math.prod(axes.values())
    if not 1 <= devices <= MAX_DEVICES:
        text = ", ".join(f"{name}={size}" for name, size in axes.items()) or "none"
        raise MeshError(
            f"a mesh of axes {text}: give every axis a size of at least 1, and at most {MAX_DEVICES} devices in all, "
            "such as x=2,y=4"
        )
    return dict(axes)


@contextlib.contextmanager
def traced_as_on(chip: Chip, axes: Mapping[str, int] | None = None) -> Iterator[None]:
    """Make every thread trace and run as if its device were this chip.

    Args:
      chip: the chip of the device.
      axes: axes of the mesh that is set meanwhile, as by `jax.set_mesh`, over virtual devices of the CPU. None: one
        device, and no mesh.
    """
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh

    device = AbstractDevice(device_kind=chip.device_kind, num_cores=chip.cores_per_device, platform="tpu")
    sizes = dict(axes or {})
    abstract: Any = AbstractMesh(tuple(sizes.values()), tuple(sizes), abstract_device=device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(abstract_mesh_in_all_threads(abstract))
        if sizes:
            stack.enter_context(jax.set_mesh(_virtual_mesh(sizes)))
        yield


def _virtual_mesh(sizes: Mapping[str, int]) -> Any:
    import numpy as np
    from jax.sharding import Mesh

    devices = cpu_devices(math.prod(sizes.values()))
    return Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes))


def provide_devices(axes: Mapping[str, int] | None) -> None:
    """Make the CPU appear as the devices of a mesh, before anything asks JAX for its devices. For a worker."""
    if axes:
        cpu_devices(math.prod(axes.values()))
