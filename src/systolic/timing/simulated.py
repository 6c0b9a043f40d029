"""The time of a function on a chip that is not there: compiled for it in a worker, then executed on its model."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, overload

import numpy as np

from systolic.bugs import reports_bugs
from systolic.chips import Chip, FlagValue, SliceShape, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import (
    CompiledProgram,
    NamedFunction,
    PallasOperands,
    ProgramCache,
    Target,
    WorkerPool,
    abstract_arguments,
    argument_values,
    at_stage,
    check_sharded_call,
    compile_function,
    function_name,
    pallas_operands,
    topology_of,
    traced_jaxpr,
    tracing_settings,
    with_jit_options,
)
from systolic.simulator import PreparedProgram, SimulatedRun, TopLevelHlo, VmemBuffer, prepare_listings
from systolic.simulator.slice.records import SliceRun
from systolic.timing.contents import KernelContents, parameter_contents
from systolic.timing.measurement import Measurement
from systolic.timing.sliced import check_offloading, device_parameters, slice_of


def target_of(chip: Chip, shape: SliceShape | None = None) -> Target:
    """The chip, or a slice of such chips, in the words that the compiler knows."""
    return Target(
        name=chip.name,
        topology=chip.topology,
        device_kind=chip.device_kind,
        cores_per_device=chip.cores_per_device,
        topology_config=chip.topology_config,
        flags=chip.compiler_flags,
        slice=None if shape is None else topology_of(shape),
    )


def simulate_in_worker(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    chip: Chip,
    cached: bool,
    settings: Mapping[str, Any],
    spans: int,
    shape: SliceShape | None = None,
) -> Measurement:
    """Compiles and simulates `fn(*args)`. Only for a worker: compiling may abort the process.

    Args:
      values: what the flat arguments hold; None where it is not known.
      settings: of JAX, to trace under; see `compiler.tracing_settings`.
      spans: of the timeline to keep; see `PreparedProgram.run`.
      shape: of the slice that it is sharded over; None: it runs on one device.

    Raises:
      CompilerRefusal: the compiler said no.
      SimulationError: the program holds something that the simulator does not understand.
    """
    cache = ProgramCache() if cached else None
    program = compile_function(fn, args, target_of(chip, shape), cache=cache, settings=settings)
    with at_stage("simulating"):
        if shape is not None:
            check_offloading(program)
        prepared = prepare_program(program, chip)
        slice_run = None
        if shape is None:
            parameters = parameter_contents(top_level_hlo(prepared), values)
            (contents,) = kernel_contents(prepared, fn, args, values, target_of(chip), settings)
            run = prepared.run(chip, parameters=parameters, operand_words=contents.operand_words, spans=spans)
        else:
            slice_run = prepared.run_slice(
                shape,
                program.assignment,
                chip=chip,
                parameters=device_parameters(program, top_level_hlo(prepared), values),
                operand_words=[
                    each.operand_words
                    for each in kernel_contents(
                        prepared, fn, args, values, target_of(chip, shape), settings, len(program.assignment)
                    )
                ],
                spans=spans,
            )
            run = slice_run.slowest
    return Measurement(
        chip=chip.name,
        provenance=run.provenance,
        time_us=run.time_us,
        run=run,
        slice_run=slice_run,
        jax_version=program.jax_version,
        libtpu_version=program.libtpu_version,
        compile_s=program.compile_s,
        from_cache=program.from_cache,
    )


def kernel_contents(
    prepared: PreparedProgram,
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    target: Target,
    settings: Mapping[str, Any],
    partitions: int = 1,
) -> list[KernelContents]:
    """What the kernels of a program find in their operands on each device, worked out when one asks."""

    @functools.cache
    def traced() -> Any:
        return traced_jaxpr(fn, args, target, settings=settings)

    def executions(partition: int) -> list[PallasOperands]:
        jaxpr = traced()
        names = [parameter_name(prepared, number) for number in range(len(values))]
        given = [shape if value is None else value for shape, value in zip(jaxpr.in_avals, values, strict=True)]
        return pallas_operands(jaxpr, given, names, partition=partition)

    hlo = top_level_hlo(prepared)
    return [KernelContents(hlo, functools.partial(executions, partition)) for partition in range(partitions)]


def top_level_hlo(prepared: PreparedProgram) -> TopLevelHlo:
    """What a compiled program's HLO says; `prepare_program` has always read it."""
    assert prepared.hlo is not None
    return prepared.hlo


def prepare_program(program: CompiledProgram, chip: Chip) -> PreparedProgram:
    """Reads what the compiler left of a program, to be run on the chip's model.

    Raises:
      SimulationError: it holds something that is not understood.
    """
    return prepare_listings(
        program.listings,
        chip,
        utilization=program.utilization,
        hlo_text=program.top_level_hlo,
        vmem=vmem_buffers(program.vmem_report),
        sparse_listings=program.sparse_listings,
        neighbour_tables=program.neighbour_tables,
    )


def parameter_name(prepared: PreparedProgram, number: int) -> str:
    """What the program calls one of its arguments."""
    parameter = prepared.hlo.parameters.get(number) if prepared.hlo is not None else None
    return parameter.name if parameter is not None else str(number)


def vmem_buffers(report: str) -> list[VmemBuffer]:
    """The compiler's account of VMEM as records. Entries of another form than is known are left out."""
    try:
        known = json.loads(report) if report else {}
    except (ValueError, RecursionError):
        known = {}
    return [
        buffer
        for op, breakdown in (known.items() if isinstance(known, dict) else ())
        if not op.startswith("<")  # the callers of inlined operations, which are listed by themselves
        for block in _records(breakdown, "blocks")
        for buffer in _buffers(op, block)
    ]


def _buffers(op: str, block: Mapping[str, Any]) -> Iterator[VmemBuffer]:
    kind, whole = str(block.get("block_type", "")), block.get("block_size", 0)
    for allocation in _records(block, "allocations") or [{"size": whole}]:
        tag, size = str(allocation.get("tag", "")), str(allocation.get("size", 0))
        if re.fullmatch(r"\d{1,18}", size, re.ASCII):  # also where it was written as text
            what = tag or str(allocation.get("shape", ""))
            yield VmemBuffer(op=op, kind=kind, size_bytes=int(size), is_spill=tag.upper() == "SPILL", what=what)


def _records(record: object, name: str) -> list[dict[str, Any]]:
    found = record.get(name) if isinstance(record, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


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
) -> Future[Measurement]:
    """Has a worker compile and simulate `fn(*args)`.

    Args:
      fn: a JAX function; bind what is static with `functools.partial`.
      args: arrays or `jax.ShapeDtypeStruct`s; the contents of small arrays are known to the simulation.
      label: names the job in errors.
      cached: use programs compiled before, and keep this one.
      spans: of the timeline to keep, of each kind, from its beginning and from its end.
      topology: of the slice that it is sharded over, "2x4"; None: it runs on one device.

    Raises:
      SliceError: no such slice, or the call is sharded over other devices than the slice's.
    """
    shape = None if topology is None else slice_of(chip, topology)
    check_sharded_call(fn, args, None if shape is None else topology_of(shape))
    shapes, values = abstract_arguments(args, shardings=shape is not None), argument_values(args)
    where = chip if shape is None else shape.chip
    job = (with_jit_options(fn), shapes, values, where, cached, tracing_settings(), spans, shape)
    return pool.submit(simulate_in_worker, *job, label=label)


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
) -> SimulatedRun | SliceRun:
    """How long `fn(*args)` takes on a chip that is not there, and why: compiled for it, then executed on its model.

    With `topology` it is a slice of such chips, over which the function is sharded: its arguments have a
    `NamedSharding` over a mesh of `systolic.slice_mesh`, or it is a `jax.jit` with shardings, or a `jax.shard_map`.

    The compiler runs in a process of its own, so that it may crash without harm. On v4 and v5p one device is two cores;
    on the others, and on v7x, it is one.

    Args:
      fn: any function that `jax.jit` takes, with or without Pallas calls. Bind what is static with `functools.partial`.
        What `jax.jit(fn, donate_argnums=…)` gives away is given away: state that is updated in place counts once.
      args: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them. Contents matter only where a program branches on
        them: kernels with scalar prefetch, dynamic grids, `lax.cond`. Of arrays of more than 16 MiB only the shape
        counts.
      chip: a name such as "v6e" or, with a clock state, "v7x@p7" (`systolic chips` lists them), or a record of your
        own.
      topology: chips of the slice along each axis, "2x4" on v5e and v6e, "2x2x1" on the others; None: one device.
      flags: compiler flags by name, such as `{"xla_tpu_scoped_vmem_limit_kib": 65536}`.
      spans: of the timeline to keep, of each kind, from its beginning and from its end.
      cached: use programs compiled before, and keep this one.
      time_limit_s: seconds of CPU time after which the compiler is stopped.
      memory_limit_bytes: of a compiler process and its children; None: what the machine can bear.

    Returns:
      Cycles, time, stalls by cause, what each unit did, each operation's share, copies, and a timeline. Of a slice, all
      that of each class of devices that behave alike, what each collective and each link did, and how much of the
      communication nothing hides.

    Raises:
      UnknownChipError: no such chip, or it has no such clock state.
      SliceError: no such slice, or the function is sharded over nothing, or over other devices than the slice's.
      FlagError, CompilerFlagError: such a flag cannot be given, or the compiler does not know it.
      CompilerRefusal: the compiler said no; its reason is the message.
      CompilerCrash, CompilerTimeout, CompilerOutOfMemory, CompilerMissing: it came to no answer.
      UnknownValueError: control flow depends on contents that were not given; the message says of which argument.
      UnknownTimeError: how long XLA's own operations take depends on values that they compute.
      SimulationError: the program holds something that is not understood; the message quotes it.
      DeadlockError: the program waits for something that never comes; the message names the wait.
      SystolicBug: this package is at fault, and not the function.
    """
    known = with_flags(chip_named(chip) if isinstance(chip, str) else chip, flags or {})
    label = " ".join(filter(None, (function_name(fn), "for", known.name, topology)))
    with WorkerPool(max_workers=1, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        job = submit_simulation(pool, fn, args, known, label=label, cached=cached, spans=spans, topology=topology)
        found = job.result()
    run = found.slice_run or found.run
    assert run is not None
    return run
