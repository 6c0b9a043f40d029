"""Where versions of JAX differ: every difference that this package has to know is here, and nowhere else."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

from systolic.bugs import runs_user_code


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a `scan` equation's inputs are constants, and how many are carried from round to round.

    jax 0.10 and 0.11 have the numbers among the equation's parameters, 0.12 has the three groups of inputs.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


def low_jaxpr(closed: Any) -> Any:
    """A traced function as a parameter of a primitive of our own: jax 0.12 has types above those that it lowers."""
    if not getattr(closed, "is_high", False):
        return closed
    from jax._src.interpreters import partial_eval

    lower: Any = partial_eval
    return lower.lower_jaxpr2(closed)


def key_implementation(dtype: Any) -> str:
    """The name of the generator whose keys have this dtype; in public only a key's value tells it."""
    return str(dtype._impl.name)


def donated_arguments(fn: Any) -> tuple[int, ...]:
    """Numbers of the positional arguments that a function of `jax.jit` gives away; none of any other function.

    Only tracing says so in public, and an object of `jax.jit` that was sent to another process cannot be traced.
    """
    return tuple(getattr(getattr(fn, "_jit_info", None), "donate_argnums", ()))


def jit_shardings(fn: Any) -> tuple[Any, Any]:
    """Shardings of the arguments and of the results that a function of `jax.jit` was given; None where it has none.

    Only tracing says so in public, as of what it gives away.
    """
    info = getattr(fn, "_jit_info", None)
    if info is None:
        return None, None
    found = (
        info.in_shardings_treedef.unflatten(info.in_shardings_leaves) if info.user_specified_in_shardings else None,
        info.out_shardings_treedef.unflatten(info.out_shardings_leaves),
    )
    from jax._src.named_sharding import UnspecifiedValue

    return found[0], None if isinstance(found[1], UnspecifiedValue) else found[1]


def assigned_devices(lowered: Any) -> list[Any]:
    """The devices that a lowered function is for, in the order of its partitions.

    In public only what is compiled says so, and a program that was compiled before is not compiled again.
    """
    return list(lowered._lowering._device_list)


def _varying(array: Any) -> frozenset[Any]:
    """Mesh axes over which an array varies; none outside of `shard_map`."""
    import jax

    found = getattr(jax.typeof(array), "manual_axis_type", None)
    return frozenset[Any](found.varying) if found is not None else frozenset()


def varying_alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, each varying over all mesh axes over which one of them does."""
    import jax

    axes = frozenset[Any]().union(*map(_varying, arrays))
    missing = [tuple(sorted(axes - _varying(array))) for array in arrays]
    return [
        jax.lax.pcast(array, lacking, to="varying") if lacking else array
        for array, lacking in zip(arrays, missing, strict=True)
    ]


def shape_with_mesh_axes(shape: Sequence[int], dtype: Any, inputs: Sequence[Any]) -> Any:
    """A `jax.ShapeDtypeStruct` that varies over whatever mesh axes the inputs vary over.

    Under `shard_map` a kernel has to say so of its outputs.
    """
    import jax

    axes = frozenset[Any]().union(*map(_varying, inputs))
    if not axes:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    return jax.ShapeDtypeStruct(tuple(shape), dtype, manual_axis_type=jax.sharding.ManualAxisType(varying=axes))


def tensorcore_mesh(axis_name: str, *, num_cores: int | None = None) -> Any:
    """The mesh of a device's TensorCores for `pl.kernel`; without a number all of them."""
    from jax.experimental.pallas import tpu as pltpu

    # jax 0.10 has a function for it, which later versions deprecate.
    make: Any = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh
    return make(axis_name=axis_name) if num_cores is None else make(axis_name=axis_name, num_cores=num_cores)


def interpret_params(**options: Any) -> Any:
    """`pltpu.InterpretParams` under which a race is reported and the kernel goes on; jax 0.12 raises unless told."""
    from jax.experimental.pallas import tpu as pltpu

    if "on_race" in {each.name for each in dataclasses.fields(pltpu.InterpretParams)}:
        options["on_race"] = "warn"
    return pltpu.InterpretParams(**options)


@contextmanager
def unkind_interpreter(left_over: Callable[..., Any]) -> Iterator[None]:
    """Makes TPU interpret mode as unkind as a TPU is, while a function is traced and while it runs.

    A window that an output's block was written back from holds anything afterwards: the next block has another window.

    Args:
      left_over: makes what memory holds that nobody has written, by `uninitialized_memory`; see `checking.unkind`.
    """
    import jax.numpy as jnp
    import numpy as np
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call, utils

    calls: Any = interpret_pallas_call
    module: Any = utils
    get, pad = calls.get, module.pad_to_block_dimension
    before = {name: getattr(module, name) for name in ("get_uninitialized_value", "get_uninitialized_array")}
    hbm = calls.TPU_MEMORY_SPACE_IDXS[calls._HBM]

    @functools.wraps(get)
    def get_and_spoil(
        token: Any, device: Any, core: Any, memory: Any, buffer: Any, transforms: Any, *rest: Any, **kw: Any
    ) -> Any:
        found = get(token, device, core, memory, buffer, transforms, *rest, **kw)
        # Only as a block is written back a window is read whole, from outside of the kernel.
        if not rest and not kw and not transforms and int(memory) != hbm:
            value = found[1]
            spoiled = left_over(np, value.shape, value.dtype, calls._get_shared_memory().uninitialized_memory)
            calls.store(token, device, core, memory, buffer, (), spoiled)
        return found

    def padded(value: Any, block_shape: Any, memory: str) -> Any:
        made = pad(value, block_shape, memory)
        if memory != "large" or made.shape == value.shape:
            return made
        inside = tuple(slice(0, size) for size in value.shape)
        return left_over(jnp, made.shape, made.dtype, memory).at[inside].set(value)

    # Copies of the kernel's own call what is wrapped.
    get_and_spoil.__wrapped__ = get.__wrapped__  # type: ignore[attr-defined]
    module.get_uninitialized_value = lambda dtype, memory: left_over(np, (), dtype, memory)
    module.get_uninitialized_array = functools.partial(left_over, jnp)
    calls.get, module.pad_to_block_dimension = get_and_spoil, padded
    try:
        yield
    finally:
        calls.get, module.pad_to_block_dimension = get, pad
        for name, function in before.items():
            setattr(module, name, function)


@contextmanager
def watched_interpreter(watch: Callable[..., Any]) -> Iterator[None]:
    """Lets `watch` make every call by which a kernel in TPU interpret mode does something, while it is traced.

    Args:
      watch: gets what is done ("get", "swap", "dma_start" and so on), the source of what asks for it, as an equation of
        a jaxpr has it, or None, the function to call, and its arguments: a token, the device, the core, and more.
    """
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    calls: Any = interpret_pallas_call
    before = calls.callback

    @runs_user_code  # what JAX cannot interpret it says so in here, of the user's kernel
    def io_callback(function: Any, *rest: Any, **kw: Any) -> Any:
        name = getattr(getattr(function, "func", function), "__name__", "")
        source = getattr(function, "keywords", {}).get("source_info")
        return before.io_callback(functools.partial(watch, name, source, function), *rest, **kw)

    calls.callback = SimpleNamespace(io_callback=io_callback)
    try:
        yield
    finally:
        calls.callback = before


def swap_past_the_end(error: Exception) -> str:
    """What TPU interpret mode of jax 0.12 says of a store that ends past a buffer, and that of 0.10 asserts; or ""."""
    entry = error.__traceback__ if isinstance(error, AssertionError) else None
    while entry is not None:
        known = entry.tb_frame.f_locals
        if "in_bounds_shape" in known and "buff" in known:
            memory, number, device, core = known["key"]
            buffer = f"({device} {core} {memory} {number})"
            shape = known["buff"].logical_shape
            return f"Out-of-bounds swap of {buffer}: swapping [{known['rnge']}] but buffer has shape {shape} ."
        entry = entry.tb_next
    return ""


@contextmanager
def interpreter_reports() -> Iterator[StringIO]:
    """Collects what TPU interpret mode says of races and semaphores in all threads: jax 0.12 logs some of it."""
    text = StringIO()
    handler = logging.StreamHandler(text)
    handler.addFilter(lambda record: "RACE DETECTED" in record.getMessage())
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with redirect_stdout(text):
            yield text
    finally:
        root.removeHandler(handler)


def races_found() -> bool:
    """Whether the race detector of TPU interpret mode found one in the kernel that ran last."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    races = interpret_pallas_call.races
    return races is not None and races.races_found


def semaphore_waits() -> set[int]:
    """The threads in which a kernel in TPU interpret mode waits for a semaphore.

    None while another core's thread is at work, which may signal it.
    """
    import sys

    found, cores = set[int](), set[int]()
    for thread, innermost in sys._current_frames().items():
        frame = innermost
        while frame is not None:
            name, inside = frame.f_code.co_name, "interpret" in frame.f_code.co_filename
            if inside and name in ("dma_wait", "semaphore_wait"):
                found.add(thread)
            elif inside and name == "_run_jaxpr":
                cores.add(thread)
            frame = frame.f_back
    return set() if cores - found else found


def end_interpreted_kernel(reason: Exception) -> None:
    """Makes the kernel that is running in TPU interpret mode fail, at its next access or while it waits."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    memory = interpret_pallas_call._shared_memory
    if memory is not None:
        memory.set_failed(reason, top_level=False)


def interpreted_failure() -> Exception | None:
    """What made the last kernel in TPU interpret mode fail, with the traceback that is lost on its way through XLA."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    memory = interpret_pallas_call._shared_memory
    return memory._failure if memory is not None else None


@contextmanager
def abstract_mesh_in_all_threads(mesh: Any) -> Iterator[None]:
    """Makes an abstract mesh that of every thread: kernels in TPU interpret mode run in threads of XLA's."""
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
    """What asks for the TPU on a mesh of CPUs is told of the device of the mesh that is set now.

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


def interpreted_effects() -> frozenset[Any]:
    """The effects that JAX gives to a kernel in TPU interpret mode."""
    from jax._src.pallas.mosaic.interpret.params import get_interpret_effects

    return frozenset(get_interpret_effects())


def interpret_mode_is_forced() -> bool:
    """Whether `pltpu.force_tpu_interpret_mode` makes the CPU run kernels that ask for a TPU."""
    from jax._src import config

    return config.pallas_tpu_interpret_mode_context_manager.value is not None


@contextmanager
def intercepted(handle: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> Iterator[None]:
    """Has every operation that this thread traces or runs in the block go through `handle`, which does it instead.

    Functions that JAX transforms in the block come as what they are transformed to: a gradient as its products. Those
    of `custom_jvp`, `custom_vjp` and `shard_map` are followed into. Public JAX has no such hook for a block.

    Args:
      handle: is given a primitive, its arguments and its parameters, and returns what binding them would return.
    """
    from jax._src import core

    with core.set_current_trace(_interceptor()(handle, core.trace_ctx.trace)):
        yield


@functools.cache
def _interceptor() -> Any:
    """The class of traces that pass everything on to the one below them."""
    from jax._src import core, linear_util

    class Interceptor(core.Trace):
        __slots__ = ("below", "handle")

        def __init__(self, handle: Any, below: Any) -> None:
            super().__init__()
            self.handle, self.below, self.requires_low = handle, below, below.requires_low

        def process_primitive(self, primitive: Any, arguments: Any, params: Any, /) -> Any:
            with core.set_current_trace(self.below):
                return self.handle(primitive, arguments, params)

        def stage_value(self, val: Any) -> Any:
            with core.set_current_trace(self.below):
                return self.below.stage_value(val)

        def process_custom_jvp_call(self, primitive: Any, fn: Any, *rest: Any, **params: Any) -> Any:
            return self.below.process_custom_jvp_call(primitive, self._followed(fn), *rest, **params)

        def process_custom_vjp_call(self, primitive: Any, fn: Any, *rest: Any, **params: Any) -> Any:
            return self.below.process_custom_vjp_call(primitive, self._followed(fn), *rest, **params)

        def process_shard_map(self, primitive: Any, fn: Any, *rest: Any, **params: Any) -> Any:
            return self.below.process_shard_map(primitive, self._followed(fn), *rest, **params)

        def _followed(self, fn: Any) -> Any:
            wrapped = isinstance(fn, linear_util.WrappedFun)
            call = fn.call_wrapped if wrapped else fn

            @functools.wraps(call)
            def follow(*arguments: Any) -> Any:
                with intercepted(self.handle):
                    return call(*arguments)

            return linear_util.wrap_init(follow, debug_info=fn.debug_info) if wrapped else follow

    return Interceptor
