"""Simulate a function on a chip that is not there: compile it in a worker, then execute it on the chip's model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, overload

from systolic.chips import Chip, FlagValue, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import CompiledProgram, NamedFunction, WorkerPool, at_stage, function_name, with_options_of
from systolic.simulator import SimulatedRun, with_source_lines
from systolic.simulator.slice.records import SliceRun
from systolic.support.bugs import reports_bugs
from systolic.timing.call import Call, run_on_chip, run_on_slice
from systolic.timing.measurement import Measurement
from systolic.timing.unknown_values import naming_arguments


def simulate_in_worker(call: Call, cached: bool, spans: int, lines: bool = False) -> Measurement:
    """Compile and simulate a call. Only for a worker: compiling may abort the process.

    Args:
      spans: number of timeline spans to keep; see `PreparedProgram.run`.
      lines: record the source lines of each region's instructions; not on a slice.

    Raises:
      CompilerRefusal: the compiler refused.
      SimulationError: the program contains something that the simulator does not know.
    """
    program = call.compiled(cached=cached, lines=lines)
    measurement = measured_run(call, program, spans)
    if not lines or measurement.run is None or measurement.slice_run is not None:
        return measurement
    return replace(measurement, run=with_source_lines(measurement.run, program.listings))


def measured_run(call: Call, program: CompiledProgram, spans: int) -> Measurement:
    """Run a call, which `compile_function` compiled to the program, on its chip or slice."""
    with at_stage("simulating"), naming_arguments(call):
        prepared = call.read(program)
        contents = call.contents(program, prepared)
        slice_run = None
        if call.shape is None:
            run = run_on_chip(prepared, contents[0], call.chip, spans)
        else:
            slice_run = run_on_slice(prepared, contents, call.shape, program.assignment, spans)
            run = slice_run.slowest
    return Measurement(
        chip=call.chip.name,
        provenance=run.provenance,
        time_us=run.time_us,
        run=run,
        slice_run=slice_run,
        jax_version=program.jax_version,
        libtpu_version=program.libtpu_version,
        compile_s=program.compile_s,
        from_cache=program.from_cache,
    )


def submit_simulation(
    pool: WorkerPool,
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    chip: Chip,
    *,
    label: str,
    cached: bool = True,
    spans: int = 0,
    topology: str | None = None,
    lines: bool = False,
) -> Future[Measurement]:
    """Let a worker compile and simulate `fn(*args)`.

    Args:
      fn: a JAX function; bind static arguments with `functools.partial`.
      args: arrays or `jax.ShapeDtypeStruct`s; the contents of small arrays are known to the simulation.
      label: names the job in errors.
      cached: reuse stored programs, and store new ones.
      spans: number of timeline spans of each kind to keep, from the beginning and from the end.
      topology: the slice that it is sharded over, "2x4"; None: it runs on one device.
      lines: see `simulate_in_worker`.

    Raises:
      SliceError: no such slice, or the call is sharded over other devices than the slice's.
    """
    return pool.submit(simulate_in_worker, Call.of(fn, args, chip, topology), cached, spans, lines, label=label)


@overload
def simulate(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: None = None,
    flags: Mapping[str, FlagValue] | None = None,
    spans: int = 200,
    cached: bool = True,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
    **keywords: Any,
) -> SimulatedRun: ...


@overload
def simulate(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: str,
    flags: Mapping[str, FlagValue] | None = None,
    spans: int = 200,
    cached: bool = True,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
    **keywords: Any,
) -> SliceRun: ...


@reports_bugs
def simulate(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: str | None = None,
    flags: Mapping[str, FlagValue] | None = None,
    spans: int = 200,
    cached: bool = True,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
    **keywords: Any,
) -> SimulatedRun | SliceRun:
    """Return the time of `fn(*args)` on a chip that is not there, and why: compiled for it, executed on its model.

    With `topology` it is a slice of such chips, over which the function is sharded: its arguments have a
    `NamedSharding` over a mesh of `systolic.slice_mesh`, or it is a `jax.jit` with shardings, or a `jax.shard_map`.

    The compiler runs in a process of its own, so that it may crash without harm. On v4 and v5p one device is two cores;
    on the others, and on v7x, it is one.

    Args:
      fn: any function that `jax.jit` takes, with or without Pallas calls. Bind static arguments with
        `functools.partial`. Donated arguments (`jax.jit(fn, donate_argnums=…)`) are donated: state that is updated in
        place counts once.
      args: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them. Contents matter only if a program branches on them:
        kernels with scalar prefetch, dynamic grids, `lax.cond`. Contents of arrays of more than 16 MiB are not used.
      chip: a name such as "v6e" or, with a clock state, "v7x@p7" (`systolic chips` lists them), or a record of your
        own.
      topology: chips of the slice along each axis, "2x4" on v5e and v6e, "2x2x1" on the others; None: one device.
      flags: compiler flags by name, such as `{"xla_tpu_scoped_vmem_limit_kib": 65536}`.
      spans: number of timeline spans of each kind to keep, from the beginning and from the end.
      cached: reuse stored programs, and store new ones.
      time_limit_s: seconds of CPU time after which the compiler is stopped.
      memory_limit_bytes: for a compiler process and its children; None: chosen by the machine's memory.
      keywords: keyword arguments of `fn`, such as sizes of its blocks: they are static, as by `functools.partial`.

    Returns:
      Cycles, time, stalls by cause, each unit's work, each operation's share, copies, and a timeline. For a slice,
      these of each class of devices that behave alike, each collective and each link, and the share of communication
      that nothing hides.

    Raises:
      UnknownChipError: no such chip, or it has no such clock state.
      SliceError: no such slice, or the function is sharded over nothing, or over other devices than the slice's.
      FlagError, CompilerFlagError: such a flag cannot be given, or the compiler does not know it.
      CompilerRefusal: the compiler refused; its reason is the message.
      CompilerCrash, CompilerTimeout, CompilerOutOfMemory, CompilerMissing: it gave no answer.
      UnknownValueError: control flow depends on contents that were not given; the message names the argument.
      UnknownTimeError: how long XLA's own operations take depends on values that they compute.
      SimulationError: the program holds something that is not understood; the message quotes it.
      DeadlockError: the program waits for something that never comes; the message names the wait.
      SystolicBug: this package is at fault, and not the function.
    """
    target_chip = with_flags(chip_named(chip), flags)
    label = " ".join(filter(None, (function_name(fn), "for", target_chip.name, topology)))
    bound = with_options_of(fn, functools.partial(fn, **keywords)) if keywords else fn
    with WorkerPool(max_workers=1, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        job = submit_simulation(
            pool, bound, args, target_chip, label=label, cached=cached, spans=spans, topology=topology
        )
        measurement = job.result()
    run = measurement.slice_run or measurement.run
    assert run is not None
    return run
