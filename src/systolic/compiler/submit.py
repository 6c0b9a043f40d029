"""The parent's side of a compilation: takes along what the worker needs and nothing more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from systolic.compiler.arguments import abstract_arguments
from systolic.compiler.cache import ProgramCache
from systolic.compiler.driver import compile_function
from systolic.compiler.jit_options import with_jit_options
from systolic.compiler.named import NamedFunction, function_name
from systolic.compiler.pool import WorkerPool
from systolic.compiler.program import CompiledProgram, Target

# The settings of JAX that decide what a function is traced and lowered to. A worker starts with the settings of the
# environment, and would compile another program than the one that the caller's process runs.
_TRACING_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)


def tracing_settings() -> dict[str, Any]:
    """This process's settings of JAX that decide what a function compiles to, for `compile_function`."""
    import jax

    return {name: getattr(jax.config, name) for name in _TRACING_SETTINGS if hasattr(jax.config, name)}


def submit_compilation(
    pool: WorkerPool,
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    target: Target,
    *,
    cache: ProgramCache | None,
    label: str = "",
    time_limit_s: float | None = None,
) -> Future[CompiledProgram]:
    """Compile `fn(*args)` for one device of `target` in a worker of `pool`, under this process's JAX settings.

    Takes and raises what `compile_function` and `WorkerPool.submit` do. Without a label the job is called by the names
    of the function and the chip.
    """
    task = functools.partial(compile_function, cache=cache, settings=tracing_settings())
    name = label or f"{function_name(fn)} for {target.name}"
    arguments = abstract_arguments(args, shardings=target.slice is not None)
    return pool.submit(task, with_jit_options(fn), arguments, target, time_limit_s=time_limit_s, label=name)
