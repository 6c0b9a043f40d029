"""Devices and meshes; some exist only while a program is made for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def assigned_devices(lowered: Any) -> list[Any]:
    """Return the devices that a lowered function is for, in the order of its partitions.

    JAX's public API states them only for a compiled program, and a program from a cache is not compiled again.
    """
    return list(lowered._lowering._device_list)


def _varying(array: Any) -> frozenset[Any]:
    """Mesh axes over which an array varies; none outside of `shard_map`."""
    import jax

    axis_type = getattr(jax.typeof(array), "manual_axis_type", None)
    return frozenset[Any](axis_type.varying) if axis_type is not None else frozenset()


def varying_alike(arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays, all varying over every mesh axis over which one of them varies."""
    import jax

    axes = frozenset[Any]().union(*map(_varying, arrays))
    missing = [tuple(sorted(axes - _varying(array))) for array in arrays]
    return [
        jax.lax.pcast(array, lacking, to="varying") if lacking else array
        for array, lacking in zip(arrays, missing, strict=True)
    ]


def all_gather_alike(array: Any, axis_name: str) -> Any:
    """All devices' parts along the first dimension, the same on each, also for the check of what varies over a mesh."""
    import inspect

    import jax

    gather: Any = jax.lax.all_gather
    if axis_name not in _varying(array):  # without that check a sum over devices is the transpose
        return gather(array, axis_name, tiled=True)
    if "to" in inspect.signature(gather).parameters:  # not in jax 0.10
        return gather(array, axis_name, tiled=True, to="invarying")
    from jax._src.lax import parallel

    gather_invariant: Any = parallel.all_gather_invariant
    return gather_invariant(array, axis_name, tiled=True)


def shape_with_mesh_axes(shape: Sequence[int], dtype: Any, inputs: Sequence[Any]) -> Any:
    """Return a `jax.ShapeDtypeStruct` that varies over the mesh axes of the inputs.

    Under `shard_map` a kernel has to declare these axes of its outputs.
    """
    import jax

    axes = frozenset[Any]().union(*map(_varying, inputs))
    if not axes:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    return jax.ShapeDtypeStruct(tuple(shape), dtype, manual_axis_type=jax.sharding.ManualAxisType(varying=axes))


def tensorcore_mesh(axis_name: str, *, num_cores: int | None = None) -> Any:
    """Return the mesh of a device's TensorCores for `pl.kernel`; by default of all of them."""
    from jax.experimental.pallas import tpu as pltpu

    # jax 0.10 has a function for it, which later versions deprecate.
    make: Any = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh
    return make(axis_name=axis_name) if num_cores is None else make(axis_name=axis_name, num_cores=num_cores)


@contextmanager
def abstract_mesh_in_all_threads(mesh: Any) -> Iterator[None]:
    """Set an abstract mesh for every thread: kernels in TPU interpret mode run in XLA's threads."""
    import jax

    global_mesh = _abstract_mesh_setting()
    before = global_mesh.get_global()
    global_mesh.set_global(mesh)
    try:
        with jax.sharding.use_abstract_mesh(mesh), _cpus_taken_for_this_device():
            yield
    finally:
        global_mesh.set_global(before)


@contextmanager
def _cpus_taken_for_this_device() -> Iterator[None]:
    """Answer questions for the TPU on a mesh of CPUs with the device of the mesh that is set now.

    `jax.shard_map` sets a mesh of its own, of the devices that the function runs on, and jax 0.12 asks while it lowers.
    """
    from jax._src.pallas.mosaic import tpu_info

    kind, registry = "cpu", tpu_info.registry
    ask: Any = tpu_info.get_tpu_info
    before, info = registry.get(kind), ask()
    registry[kind] = lambda: info
    try:
        yield
    finally:
        registry.pop(kind)
        if before is not None:
            registry[kind] = before
        ask.cache_clear()


def _abstract_mesh_setting() -> Any:
    """JAX's setting of the abstract mesh, with a value for each thread and one for all: it moved after jax 0.10."""
    from jax._src import config, mesh

    home: Any = mesh if hasattr(mesh, "abstract_mesh_context_manager") else config
    return home.abstract_mesh_context_manager


def attached_tpu_chips() -> int:
    """TPU chips that this machine has on its PCI bus. Starts none of them."""
    from jax._src import hardware_utils

    return hardware_utils.num_available_tpu_chips_and_device_id()[0]


def cpu_devices(count: int) -> list[Any]:
    """Return `count` devices of the CPU; restarts JAX's backends if they have fewer. For a worker's process."""
    import jax

    if len(jax.devices("cpu")) < count:
        from jax.extend import backend

        backend.clear_backends()
        jax.config.update("jax_num_cpu_devices", count)
    return jax.devices("cpu")[:count]
