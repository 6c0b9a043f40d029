"""Trace a function for devices that this machine does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from systolic.compat.mesh_values import mesh_set_of
from systolic.compiler.arguments import abstract_arguments
from systolic.compiler.errors import CompilerError
from systolic.compiler.jit_options import JitOptions, without_jit_options
from systolic.compiler.named import NamedFunction
from systolic.compiler.named_calls import explained_call
from systolic.compiler.program import Target, Topology
from systolic.compiler.sharded import ShardedFunction
from systolic.compiler.slice_devices import libtpu_devices, new_libtpu_devices
from systolic.compiler.stage import at_stage
from systolic.support.bugs import runs_user_code


def traced_jaxpr(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    target: Target,
    *,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Return the closed jaxpr that `compile_function` would lower, for the same arguments."""
    with under_settings(settings or {}), device_context(target, fn):
        return trace(fn, args, devices_of(target), sharded=target.slice is not None).jaxpr


@contextmanager
def under_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Let JAX trace under these settings; see `tracing_settings`."""
    import jax

    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def devices_of(target: Target) -> Sequence[Any]:
    """Return libtpu's devices of a target; raise CompilerError if it does not know them, or knows others."""
    import jax

    topology = target.slice or Topology(name=target.topology, config=target.topology_config)
    if target.slice is None:
        # JAX keeps what it has compiled for a device, and that leaves no listing: each time it is another device.
        devices = new_libtpu_devices(topology)
    else:
        # Devices of a slice stay the same, as meshes hold them.
        jax.clear_caches()
        devices = libtpu_devices(topology)
    if (kind := devices[0].device_kind) != target.device_kind:
        raise CompilerError(f"a device of {topology.name!r} is a {kind!r}; {target.name!r} says {target.device_kind!r}")
    return devices


@contextmanager
def device_context(target: Target, fn: Any) -> Iterator[None]:
    """Let JAX trace for the target's devices, and set the mesh that the function is to be traced under."""
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    _, options = without_jit_options(fn)
    if target.slice is not None and options.mesh is not None:
        with jax.set_mesh(options.mesh):
            yield
        return
    # Pallas code that asks for the chip while it is traced (pltpu.get_tpu_info, emit_pipeline) gets its answer here.
    device = AbstractDevice(device_kind=target.device_kind, num_cores=target.cores_per_device, platform="tpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        yield


def trace(fn: Callable[..., Any] | NamedFunction, args: Sequence[Any], devices: Sequence[Any], *, sharded: bool) -> Any:
    """Return the function as JAX has traced it.

    Args:
        sharded: whether its arguments, or the function, say how they are sharded; else it is for the first device.
    """
    inner, options = without_jit_options(fn)
    if isinstance(inner, NamedFunction):
        loaded = inner.load()
        options = replace(without_jit_options(loaded)[1], mesh=options.mesh)
        with explained_call(inner, loaded, args):
            return _trace_loaded(loaded, options, args, devices, sharded=sharded)
    return _trace_loaded(inner, options, args, devices, sharded=sharded)


def _trace_loaded(
    inner: Callable[..., Any], options: JitOptions, args: Sequence[Any], devices: Sequence[Any], *, sharded: bool
) -> Any:
    import jax
    from jax.experimental.layout import Format, Layout

    if isinstance(inner, ShardedFunction):
        return _traced(inner.on(devices), abstract_arguments(args), options)
    if sharded:
        return _traced(inner, abstract_arguments(args, shardings=True), options, **options.shardings)

    sharding = jax.sharding.SingleDeviceSharding(devices[0])

    def place(leaf: Any) -> Any:
        if not options.is_row_major:
            return sharding
        return Format(Layout(tuple(range(len(leaf.shape)))), sharding)

    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place(leaf), weak_type=leaf.weak_type),
        abstract_arguments(args),
    )
    if options.is_row_major:
        return _traced(inner, placed, options, out_shardings=jax.tree.map(place, _results(inner, placed)))
    # Where no argument says which device it is for, results do.
    shardings = {} if jax.tree.leaves(placed) else {"out_shardings": sharding}
    return _traced(inner, placed, options, **shardings)


@runs_user_code
def _results(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    import jax

    with at_stage("tracing"):
        return jax.eval_shape(fn, *args)


@runs_user_code
def _traced(fn: Callable[..., Any], args: Sequence[Any], options: JitOptions, **shardings: Any) -> Any:
    import jax

    # An argument that is not used stays a parameter: the program's have the numbers of the call's.
    with at_stage("tracing"), mesh_set_of(args):
        return jax.jit(fn, keep_unused=True, donate_argnums=options.donated, **shardings).trace(*args)
