"""Predict a step: compile it for chips that are not there, execute it on their model, and add up the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from systolic.chips import Chip, FlagValue, SliceShape, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import (
    CompilerRefusal,
    WorkerPool,
    check_sharded_call,
    function_name,
    topology_of,
    tracing_settings,
    with_jit_options,
    with_slice_options,
)
from systolic.simulator import parse_hlo, with_rare_collections
from systolic.steps.call import Step
from systolic.steps.changes import step_changes
from systolic.steps.grouping import part_runs
from systolic.steps.making import StepMaker
from systolic.steps.memory import refused_for_hbm, step_memory
from systolic.steps.records import StepRun
from systolic.support.bugs import reports_bugs
from systolic.timing import Call, measured_run, slice_of

# A step with the flags of published recipes takes the compiler up to half an hour, and the simulator minutes.
TIME_LIMIT_S = 3600.0


@with_rare_collections()
def predict_in_worker(
    source: Step | StepMaker,
    name: str,
    chip: Chip,
    shape: SliceShape | None,
    cached: bool,
    settings: Mapping[str, Any],
    spans: int,
) -> StepRun:
    """Compile and simulate a step. Only for a worker.

    Raises:
      DoesNotFitError: it needs more HBM than a device has.
      Exception: what `submit_simulation` gives.
    """
    step = source.make(chip) if isinstance(source, StepMaker) else source
    call = replace(Call.described(_with_options(step, shape), step.args, chip, shape), settings=settings)
    try:
        program = call.compiled(cached=cached)
    except CompilerRefusal as refusal:
        shortage = refused_for_hbm(refusal, call.args)
        if shortage is None:
            raise
        raise shortage from refusal
    began = time.perf_counter()
    simulation = measured_run(call, program, spans)
    assert simulation.run is not None
    hlo = parse_hlo(program.top_level_hlo)
    memory = step_memory(program, hlo, chip)
    collectives = () if simulation.slice_run is None else simulation.slice_run.collectives
    parts = part_runs(simulation.run, collectives, hlo.scopes, step.parts)
    return StepRun(
        name=name,
        chip=chip.name,
        topology="" if shape is None else shape.name,
        devices=1 if shape is None else len(shape.devices),
        tokens=step.tokens,
        flops=step.flops,
        flops_causal=step.flops_causal,
        peak_ops_per_s=chip.peak_ops_per_s("bfloat16"),
        memory=memory,
        parts=parts,
        changes=step_changes(simulation.run, parts, memory),
        run=simulation.run,
        slice_run=simulation.slice_run,
        compile_s=program.compile_s,
        from_cache=program.from_cache,
        simulate_s=time.perf_counter() - began,
    )


def submit_step(
    pool: WorkerPool,
    source: Step | StepMaker,
    chip: Chip,
    *,
    name: str,
    topology: str | None = None,
    cached: bool = True,
    spans: int = 0,
) -> Future[StepRun]:
    """Let a worker predict a step, or what its maker makes; takes and raises what `timing.submit_simulation` does."""
    shape = None if topology is None else slice_of(chip, topology)
    if isinstance(source, Step):
        check_sharded_call(source.fn, source.args, None if shape is None else topology_of(shape))
        source = replace(source, fn=_with_options(source, shape))
    where = chip if shape is None else shape.chip
    return pool.submit(predict_in_worker, source, name, where, shape, cached, tracing_settings(), spans, label=name)


def _with_options(step: Step, shape: SliceShape | None) -> Any:
    """Return the step's function, with the options of its `jax.jit` and the mesh to trace it under."""
    return with_jit_options(step.fn) if shape is None else with_slice_options(with_jit_options(step.fn, step.mesh))


@reports_bugs
def step(
    fn: Step | Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: str | None = None,
    flags: Mapping[str, FlagValue] | None = None,
    tokens: int = 0,
    flops: float = 0.0,
    flops_causal: float = 0.0,
    parts: tuple[str, ...] = (),
    spans: int = 0,
    cached: bool = True,
    time_limit_s: float = TIME_LIMIT_S,
    memory_limit_bytes: int | None = None,
) -> StepRun:
    """Predict the time of a whole training or decoding step on chips that are not there, and where it goes.

    In addition to `simulate`'s result it has the time of each part of the model in each pass over it (by
    `jax.named_scope`), the HBM that it needs, tokens per second, and the share of the peak.

    Args:
      fn: a `Step`, or a function with a `Step`'s fields as the other arguments.
      args: of the function, as `simulate` takes them; none with a `Step`.
      chip: a name such as "v6e", or your own record.
      topology: chips of the slice along each axis, "2x4" on v5e and v6e, "2x2x1" on the others; None: one device.
      flags: compiler flags by name.
      tokens, flops, flops_causal, parts: see `Step`.
      spans: number of timeline spans of each kind to keep, from the beginning and from the end.
      cached: reuse stored programs, and store new ones.
      time_limit_s: seconds of CPU time that compiling and simulating may take.
      memory_limit_bytes: for a compiler process and its children; None: chosen by the machine's memory.

    Raises:
      DoesNotFitError: it needs more HBM than a device has; the message says by how much, and what would make it fit.
      Exception: what `simulate` raises.
    """
    if isinstance(fn, Step):
        source = fn
    else:
        source = Step(fn=fn, args=args, tokens=tokens, flops=flops, flops_causal=flops_causal, parts=parts)
    target_chip = with_flags(chip_named(chip), flags)
    name = function_name(source.fn)
    with WorkerPool(max_workers=1, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        job = submit_step(pool, source, target_chip, name=name, topology=topology, cached=cached, spans=spans)
        return job.result()
