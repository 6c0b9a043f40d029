"""TPU interpret mode: its parameters, its errors, and a hook to watch a run."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

from systolic.support.bugs import runs_user_code


def interpret_params(**options: Any) -> Any:
    """`pltpu.InterpretParams` under which a race is reported and the kernel goes on; jax 0.12 raises unless told."""
    from jax.experimental.pallas import tpu as pltpu

    if "on_race" in {parameter.name for parameter in dataclasses.fields(pltpu.InterpretParams)}:
        options["on_race"] = "warn"
    return pltpu.InterpretParams(**options)


@contextmanager
def watched_interpreter(watch: Callable[..., Any]) -> Iterator[None]:
    """Let `watch` make every call by which a kernel in TPU interpret mode does something, while it is traced.

    Args:
      watch: gets what is done ("get", "swap", "dma_start" and so on), the source of what asks for it, as an equation of
        a jaxpr has it, or None, the function to call, and its arguments: a token, the device, the core, and more.
    """
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    calls: Any = interpret_pallas_call
    before = calls.callback

    @runs_user_code  # JAX raises here for parts of the user's kernel that it cannot interpret
    def io_callback(function: Any, *rest: Any, **kw: Any) -> Any:
        name = getattr(getattr(function, "func", function), "__name__", "")
        source = getattr(function, "keywords", {}).get("source_info")
        return before.io_callback(functools.partial(watch, name, source, function), *rest, **kw)

    calls.callback = SimpleNamespace(io_callback=io_callback)
    try:
        yield
    finally:
        calls.callback = before


@contextmanager
def cores_compiled_once(compiled: dict[int, tuple[Any, Any]]) -> Iterator[None]:
    """Let the cores of a kernel share one compiled program; jax 0.10 compiles it once for each of them.

    Args:
      compiled: kept between runs: each core's program as a jaxpr, so that its number stays its own, and compiled.
    """
    import jax
    from jax._src.pallas.mosaic.interpret import thread_map
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    module: Any = thread_map
    before = module._run_jaxpr
    lock = threading.Lock()

    def _run_jaxpr(jaxpr: Any, consts: Any, *args: Any) -> None:  # the name by which `semaphore_waits` knows a core
        with lock:
            if id(jaxpr) not in compiled:
                program = jax.jit(lambda *args: jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))(*args) and None)
                compiled[id(jaxpr)] = jaxpr, program.lower(*args).compile()
        compiled[id(jaxpr)][1](*args)

    module._run_jaxpr = _run_jaxpr
    try:
        yield
    finally:
        module._run_jaxpr = before


def left_over_memory() -> str:
    """Let kernels in TPU interpret mode find "nan", "zero" or "large" in memory that was never written."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    return interpret_pallas_call._get_shared_memory().uninitialized_memory


@functools.lru_cache(maxsize=4096)
def is_pipeline_write_back(source: Any) -> bool:
    """True if a copy is one by which `emit_pipeline` writes a block of an output back."""
    frames = source.traceback.frames if source.traceback is not None else ()
    return any(frame.function_name.split(".")[-1] == "copy_out" and "pipeline" in frame.file_name for frame in frames)


@contextmanager
def copies_between_devices_in_order() -> Iterator[None]:
    """Let copies from one device to a semaphore of another end in the order in which they were begun.

    Interpret mode ends them in reverse order, also on one device, where many engines copy at once. Copies between two
    devices go through the same links one after another, and JAX's own `all_gather` relies on that.
    """
    from jax._src.pallas.mosaic.interpret import shared_memory

    memory: Any = shared_memory.SharedMemory
    before = memory.append_semaphore_task
    waiting: dict[Any, deque[Callable[[], None]]] = {}

    def append(self: Any, semaphore: Any, core: Any, task: Any) -> None:
        dma = getattr(task, "__self__", None)
        if dma is not None and dma.src_device_id != dma.dst_device_id and task.__name__ == "execute_read_and_write":
            queue = waiting.setdefault((id(self), dma.src_device_id, semaphore, core), deque())
            queue.append(task)
            before(self, semaphore, core, lambda: queue.popleft()())
        else:
            before(self, semaphore, core, task)

    memory.append_semaphore_task = append
    try:
        yield
    finally:
        memory.append_semaphore_task = before


def swap_past_the_end(error: Exception) -> str:
    """Return the message of jax 0.12 for a store that ends past a buffer, which 0.10 merely asserts; or ""."""
    entry = error.__traceback__ if isinstance(error, AssertionError) else None
    while entry is not None:
        variables = entry.tb_frame.f_locals
        if "in_bounds_shape" in variables and "buff" in variables:
            memory, number, device, core = variables["key"]
            buffer = f"({device} {core} {memory} {number})"
            shape = variables["buff"].logical_shape
            return f"Out-of-bounds swap of {buffer}: swapping [{variables['rnge']}] but buffer has shape {shape} ."
        entry = entry.tb_next
    return ""


@contextmanager
def interpreter_reports() -> Iterator[StringIO]:
    """Collect TPU interpret mode's reports of races and semaphores in all threads: jax 0.12 logs some of it."""
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


def semaphore_waits() -> set[int]:
    """Return the threads in which a kernel in TPU interpret mode waits for a semaphore.

    None while another core's thread is at work, which may signal it. A thread whose wait executes pending copies, of
    which a loaded machine takes seconds for some hundred, is at work too.
    """

    semaphores, cores = set[int](), set[int]()
    for thread, innermost in sys._current_frames().items():
        frame, copies = innermost, False
        while frame is not None:
            name, inside = frame.f_code.co_name, "interpret" in frame.f_code.co_filename
            if inside and name == "wait" and frame.f_locals.get("task") is not None:
                copies = True
            elif inside and name in ("dma_wait", "semaphore_wait") and not copies:
                semaphores.add(thread)
            elif inside and name == "_run_jaxpr":
                cores.add(thread)
            frame = frame.f_back
    return set() if cores - semaphores else semaphores


def end_interpreted_kernel(reason: Exception) -> None:
    """Make the kernel that is running in TPU interpret mode fail, at its next access or while it waits."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    memory = interpret_pallas_call._shared_memory
    if memory is not None:
        memory.set_failed(reason, top_level=False)


def interpreted_failure() -> Exception | None:
    """Return the failure of the last kernel in TPU interpret mode, with the traceback that XLA loses."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    memory = interpret_pallas_call._shared_memory
    return memory._failure if memory is not None else None


def interpreted_effects() -> frozenset[Any]:
    """Return the effects that JAX gives to a kernel in TPU interpret mode."""
    from jax._src.pallas.mosaic.interpret.params import get_interpret_effects

    return frozenset(get_interpret_effects())


def interpret_mode_is_forced() -> bool:
    """True if `pltpu.force_tpu_interpret_mode` makes the CPU run kernels that ask for a TPU."""
    from jax._src import config

    return config.pallas_tpu_interpret_mode_context_manager.value is not None
