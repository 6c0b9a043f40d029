"""The time of a function on a chip that is not there: compiled for it in a worker, then executed on its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from systolic.chips import Chip
from systolic.compiler import (
    ProgramCache,
    Target,
    WorkerPool,
    abstract_arguments,
    compile_function,
    tracing_settings,
)
from systolic.measure.measurement import Measurement
from systolic.simulator import simulate_listings


def target_of(chip: Chip) -> Target:
    """The chip in the words that the compiler knows."""
    return Target(
        name=chip.name,
        topology=chip.topology,
        device_kind=chip.device_kind,
        cores_per_device=chip.cores_per_device,
        topology_config=chip.topology_config,
    )


def simulate_in_worker(
    fn: Callable[..., Any], args: Sequence[Any], chip: Chip, cached: bool, settings: Mapping[str, Any]
) -> Measurement:
    """Compiles and simulates `fn(*args)`. Only for a worker: compiling may abort the process.

    Args:
      settings: of JAX, to trace under; see `compiler.tracing_settings`.

    Raises:
      CompilerRefusal: the compiler said no.
      SimulationError: the program holds something that the simulator does not understand.
    """
    program = compile_function(fn, args, target_of(chip), cache=ProgramCache() if cached else None, settings=settings)
    run = simulate_listings(program.listings, chip)
    return Measurement(
        chip=chip.name,
        provenance="simulated",
        time_us=run.time_us,
        run=run,
        jax_version=program.jax_version,
        libtpu_version=program.libtpu_version,
        compile_s=program.compile_s,
        from_cache=program.from_cache,
    )


def submit_simulation(
    pool: WorkerPool, fn: Callable[..., Any], args: Sequence[Any], chip: Chip, *, label: str, cached: bool = True
) -> Future[Measurement]:
    """Has a worker compile and simulate `fn(*args)`.

    Args:
      fn: a JAX function; bind what is static with `functools.partial`.
      args: arrays or `jax.ShapeDtypeStruct`s.
      label: names the job in errors.
      cached: use programs compiled before, and keep this one.
    """
    shapes = abstract_arguments(args)
    return pool.submit(simulate_in_worker, fn, shapes, chip, cached, tracing_settings(), label=label)
