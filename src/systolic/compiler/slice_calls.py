"""Check that a call is sharded over the slice that it asks for, before any worker starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from systolic.chips import SliceError
from systolic.compiler.arguments import slice_sharding
from systolic.compiler.jit_options import with_jit_options, without_jit_options
from systolic.compiler.program import Topology
from systolic.compiler.slice_devices import StandInDevice


def check_sharded_call(fn: Any, args: Sequence[Any], topology: Topology | None) -> None:
    """Compare the devices of the shardings of arguments and of a `jax.jit` with the slice's.

    Args:
        fn: the function; what is sharded inside of it shows only when it is traced.
        args: its arguments.
        topology: of the slice; None: the function is to run on one device.

    Raises:
        SliceError: they are sharded over a slice and none is asked for, or over other devices than the slice's.
    """
    for what, sharding in _shardings(fn, args):
        devices = _devices(sharding)
        stand_ins = [device for device in devices if isinstance(device, StandInDevice)]
        if topology is None:
            if stand_ins:
                name = stand_ins[0].topology.name
                raise SliceError(
                    f"{what} is sharded over {len(devices)} devices of {name}: name the slice with "
                    f"topology={name.rpartition(':')[2]!r}"
                )
        elif len(stand_ins) < len(devices):
            kind = next(device for device in devices if not isinstance(device, StandInDevice)).platform
            raise SliceError(
                f"{what} is sharded over {kind} devices of this process, not over {topology.name}: make the mesh with "
                "systolic.slice_mesh"
            )
        elif stand_ins and stand_ins[0].topology != topology:
            raise SliceError(
                f"{what} is sharded over a mesh of {stand_ins[0].topology.name}; the slice is {topology.name}"
            )


def with_slice_options(fn: Any) -> Any:
    """Return the function with the options of its `jax.jit`, and the mesh over a slice that `jax.set_mesh` has set."""
    import jax

    mesh = jax.sharding.get_mesh()
    has_mesh = without_jit_options(fn)[1].mesh is not None or mesh.empty
    ours = not has_mesh and all(isinstance(device, StandInDevice) for device in mesh.devices.flat)
    return with_jit_options(fn, mesh if ours else None)


def _shardings(fn: Any, args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    import jax

    for path, leaf in jax.tree_util.tree_leaves_with_path(tuple(args)):
        yield f"argument {jax.tree_util.keystr(path)}", slice_sharding(leaf)
    _, options = without_jit_options(fn)
    for name, shardings in options.shardings.items():
        for sharding in jax.tree.leaves(shardings):
            yield f"{name} of jax.jit", sharding


def _devices(sharding: Any) -> Sequence[Any]:
    import jax

    if isinstance(sharding, jax.sharding.NamedSharding) and isinstance(sharding.mesh, jax.sharding.Mesh):
        return list(sharding.mesh.devices.flat)
    return list(sharding.device_set) if isinstance(sharding, jax.sharding.Sharding) else []
