"""A slice whose devices are this process's CPU devices: a script shards its arrays over them as over the slice's."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.chips import Chip, SliceError
from systolic.compat.jaxprs import equations
from systolic.compiler import CompilerError, StandInDevice, ordered_devices, slice_devices
from systolic.running.replacing import Replacement
from systolic.support.bugs import runs_user_code

_DEVICES_FLAG = "xla_force_host_platform_device_count"
# TPU interpret mode can hang if a kernel runs on all devices of the process at once.
_SPARE_DEVICES = 1


class ShardedCallError(CompilerError):
    """A call has no time because of how it is sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSlice:
    """A slice, and the devices of this process in place of the slice's.

    Attributes:
      topology: chips along each axis, such as "2x4".
      stand_ins: the slice's device for each device of this process, in the order of `jax.devices()`.
    """

    topology: str
    stand_ins: Mapping[Any, StandInDevice]

    @staticmethod
    def of(chip: Chip, topology: str) -> HostSlice:
        """Let this process have as many CPU devices as the slice, if JAX has not started them yet.

        Raises:
          SliceError: no such slice, or JAX has started with fewer devices.
        """
        import jax

        devices = slice_devices(chip, topology)
        if _DEVICES_FLAG not in os.environ.get("XLA_FLAGS", ""):
            with contextlib.suppress(RuntimeError):  # they are there; their number decides
                jax.config.update("jax_num_cpu_devices", len(devices) + _SPARE_DEVICES)
        here = jax.devices()
        if len(here) < len(devices):
            raise SliceError(
                f"a slice {topology} of {chip.name} has {len(devices)} devices, and JAX has started with {len(here)}: "
                f"begin with jax.config.update('jax_num_cpu_devices', {len(devices) + _SPARE_DEVICES})"
            )
        return HostSlice(topology=topology, stand_ins=dict(zip(here, devices, strict=False)))

    def replacements(self) -> Iterator[Replacement]:
        """Yield replacements of functions of JAX: they count the slice's devices, and order meshes as on it."""
        import jax
        from jax.experimental import mesh_utils

        for name in ("devices", "local_devices", "device_count", "local_device_count"):
            yield Replacement(jax, name, self._limited(getattr(jax, name)))
        for module, name in ((jax, "make_mesh"), (mesh_utils, "create_device_mesh")):
            yield Replacement(module, name, self._ordering(getattr(module, name)))

    def mesh(self, mesh: Any) -> Any:
        """Return the mesh over the slice's devices for one over this process's devices."""
        devices = np.array([self.stand_ins[device] for device in mesh.devices.flat], object)
        return type(mesh)(devices.reshape(mesh.devices.shape), mesh.axis_names, axis_types=mesh.axis_types)

    def sharding(self, sharding: Any) -> Any:
        """Return a sharding over the slice's devices; None for one on a single device, which XLA may move.

        Specs of axes, and the mark of what is not specified, return as they are.

        Raises:
          ShardedCallError: it is a sharding, and not a `jax.sharding.NamedSharding`.
        """
        from jax.sharding import Mesh, NamedSharding, Sharding

        if not isinstance(sharding, Sharding):
            return sharding
        if isinstance(sharding, NamedSharding):
            mesh = self.mesh(sharding.mesh) if isinstance(sharding.mesh, Mesh) else sharding.mesh
            return NamedSharding(mesh, sharding.spec, memory_kind=_memory_kind(sharding))
        if len(sharding.device_set) == 1:
            return None
        raise ShardedCallError(f"{sharding} is not a NamedSharding, and only those are sent to the slice")

    def is_over(self, leaves: Sequence[Any], options: Sequence[Any], jaxpr: Any) -> bool:
        """Return whether a call runs on the slice rather than on its first device.

        Args:
          leaves: the call's arguments.
          options: shardings that its `jax.jit` was given.
          jaxpr: of the call.
        """
        import jax

        return (
            any(is_on_several(leaf) for leaf in leaves)
            or jax.sharding.get_mesh().size > 1
            or any(_names_devices(sharding) for sharding in jax.tree.leaves(options))
            or any(_names_devices(value) for equation in equations(jaxpr) for value in equation.params.values())
        )

    def _limited(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @runs_user_code
        @functools.wraps(ask)
        def limited(*args: Any, **kwargs: Any) -> Any:
            answer, count = ask(*args, **kwargs), len(self.stand_ins)
            return answer[:count] if isinstance(answer, list) else min(answer, count)

        return limited

    def _ordering(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return `make` with the slice's devices in their order there, for calls that name no devices."""
        signature = inspect.signature(make)

        @runs_user_code
        @functools.wraps(make)
        def ordering(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            if call.arguments.get("devices") is None:
                call.arguments["devices"] = self._ordered(next(iter(call.arguments.values())))
            return make(*call.args, **call.kwargs)

        return ordering

    def _ordered(self, sizes: Sequence[int]) -> list[Any]:
        here = {stand_in: device for device, stand_in in self.stand_ins.items()}
        if math.prod(sizes) != len(here):  # the first ones, or JAX says that they are too few
            return list(self.stand_ins)[: math.prod(sizes)]
        return [here[stand_in] for stand_in in ordered_devices(tuple(sizes), tuple(here)).flat]


def one_device_notes() -> Iterator[Replacement]:
    """Yield replacements of `jax.make_mesh` whose error says how a script gets several devices."""
    import jax

    make = jax.make_mesh

    @runs_user_code
    @functools.wraps(make)
    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            return make(*args, **kwargs)
        except ValueError as error:
            if jax.device_count() == 1:
                error.add_note("a script runs on one device: give it a slice with --topology, such as 2x4")
            raise

    yield Replacement(jax, "make_mesh", noting)


def is_on_several(leaf: Any) -> bool:
    """True for an array that lies on more than one device."""
    import jax

    return isinstance(leaf, jax.Array) and len(leaf.devices()) > 1


def cut_text(leaf: Any) -> str:
    """Write how an array is cut, as `--arg` takes it: "@data,-"; "" if it is on one device or whole on all."""
    from jax.sharding import NamedSharding

    if not is_on_several(leaf) or not isinstance(leaf.sharding, NamedSharding):
        return ""
    axes = [
        "+".join(entry) if isinstance(entry, tuple) else "-" if entry is None else str(entry)
        for entry in leaf.sharding.spec
    ]
    return f"@{','.join(axis or '-' for axis in axes)}" if any(axis not in ("-", "") for axis in axes) else ""


def _memory_kind(sharding: Any) -> str | None:
    """Return a memory other than the device's own; the CPU's names of the latter mean nothing on a TPU."""
    return sharding.memory_kind if sharding.memory_kind == "pinned_host" else None


def _names_devices(value: Any) -> bool:
    """True for a mesh, or a sharding over a mesh, of more than one device, and for a tuple with such a one."""
    from jax.sharding import AbstractMesh, Mesh, NamedSharding

    if isinstance(value, tuple | list):
        return any(map(_names_devices, value))
    mesh = value.mesh if isinstance(value, NamedSharding) else value
    return isinstance(mesh, Mesh | AbstractMesh) and mesh.size > 1
