"""`systolic step`: how long a whole training or decoding step takes, what fits, and where the time goes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from systolic.chips import Chip, SliceError, SliceShape
from systolic.cli.function import AskedFunction, function_options, named
from systolic.cli.options import (
    FiniteFloat,
    Workers,
    chip_option,
    flag_option,
    output_options,
    page_option,
    worker_options,
)
from systolic.cli.output import check_drawing_target, check_target, give
from systolic.cli.progress import progress_bar, result_of
from systolic.cli.slice_options import AskedSlice, slice_options
from systolic.cli.step_choices import (
    MESH,
    Change,
    Changes,
    changes_of,
    check_prices,
    choice_options,
    label_of,
    slice_for,
)
from systolic.cli.step_output import AskedStep, StepAnswer, show_steps, step_record, write_pages, write_traces
from systolic.cli.trace_option import trace_option
from systolic.compiler import NamedFunction, NamedFunctionError, check_available
from systolic.compiler.named_shardings import mesh_axes
from systolic.steps import TIME_LIMIT_S, Step, StepMaker, submit_step
from systolic.timing.outcome import Outcome

_SPANS_OF_A_PAGE = 2_000
_SPANS_OF_A_TRACE = 20_000  # of each kind, from the beginning and from the end: what a picture can show
_SHORT = ("config", "batch", "seq", "remat")  # parameters that have options of their own


@click.command()
@function_options
@click.option("--config", help="Short for --param config=TEXT: the model.")
@click.option("--batch", type=click.IntRange(min=1), help="Short for --param batch=N: sequences per device.")
@click.option("--seq", type=click.IntRange(min=1), help="Short for --param seq=N: tokens per sequence.")
@click.option("--remat", help="Short for --param remat=TEXT: what is stored for the backward pass.")
@chip_option()
@flag_option
@slice_options
@click.option("--tokens", type=click.IntRange(min=0), default=0, help="With --arg: tokens of a step, on all devices.")
@click.option(
    "--flops", type=FiniteFloat(min=0), default=0.0, help="With --arg: the model's operations, on all devices."
)
@click.option("--parts", default="", metavar="NAME,…", help="With --arg: names of parts, by jax.named_scope.")
@choice_options
@trace_option
@page_option
@worker_options("one step", time_limit_s=TIME_LIMIT_S)
@output_options
def step(
    requested: AskedFunction,
    config: str | None,
    batch: int | None,
    seq: int | None,
    remat: str | None,
    chips: tuple[Chip, ...],
    asked_slice: AskedSlice,
    tokens: int,
    flops: float,
    parts: str,
    trials: tuple[Change, ...],
    grids: tuple[Changes, ...],
    prices: Mapping[str, float],
    trace_file: Path | None,
    page: Path | None,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Predict a whole step of a sharded model: its time, tokens per second, MFU, HBM, and where the time goes.

    FUNCTION makes the step: it is called with a mesh over the slice (None for one device) and the --param values, and
    returns a systolic.Step. With --arg it is the step itself. Without --mesh the mesh has one axis, fsdp.

    Compiling takes minutes, or half an hour with the flags of published recipes; the program is stored. Exit code 1:
    the step does not fit, the compiler refused, or it does something that is not simulated.

    \b
    Examples:
      systolic step examples/transformer:train --config llama3.1-8b --chip v6e --topology 2x4 --batch 1 --seq 2048
      systolic step examples/transformer:decode --config mistral-7b --chip v5e --topology 2x2 --mesh tensor=4 --batch 8
      systolic step examples/transformer:train --config llama3.1-8b --chip v6e,v5p --topology v6e=2x4,v5p=2x2x2 \\
        --batch 1 --grid 'remat=full|minimal' --price v6e=2.7,v5p=4.2
      systolic step step.py:step --chip v6e --topology 2x4 --mesh data=8 --arg "bf16[8192,4096]@data" --tokens 8192
    """
    check_target(json_file)
    check_drawing_target(page)
    short_parameters = {"config": config, "batch": batch, "seq": seq, "remat": remat}
    parameters = requested.parameters
    parameters += tuple((name, short_parameters[name]) for name in _SHORT if short_parameters[name] is not None)
    if (trials or grids) and requested.arguments:
        raise click.UsageError("--try and --grid change parameters of a function that makes the step: leave --arg out")
    check_prices(prices, chips)
    variants = changes_of(trials, grids)
    changed = dict.fromkeys(name for changes in variants for name, _ in changes if name != MESH)
    maker = named(requested.text, parameters, len(requested.arguments) or 1, list(changed))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the parent only describes arguments
    slices = {chip.name: slice_for(asked_slice, chip) for chip in chips}
    for chip in chips:
        slices[chip.name].check([chip])
    check_available()
    steps: list[AskedStep] = []
    for chip in chips:
        asked_slice = slices[chip.name]
        if requested.arguments:
            fn, args = asked_slice.call(maker, requested.arguments, chip)
            names = tuple(filter(None, parts.split(",")))
            source = Step(fn=fn, args=tuple(args), tokens=tokens, flops=flops, flops_causal=flops, parts=names)
            steps.append(AskedStep(label=requested.text, chip=chip, topology=asked_slice.topology, source=source))
            continue
        steps += [_made(maker, chip, asked_slice, changes) for changes in variants]
    spans = _SPANS_OF_A_TRACE if trace_file is not None else _SPANS_OF_A_PAGE if page is not None else 0
    answers = _answers(steps, workers, spans, quiet=quiet)
    for answer in answers:
        if answer.outcome is not None and isinstance(answer.outcome.error, NamedFunctionError | SliceError):
            raise answer.outcome.error  # the call was wrong
    if trace_file is not None:
        write_traces(answers, trace_file, several=len(chips) > 1, quiet=quiet)
    if page is not None:
        write_pages(answers, page, several=len(chips) > 1, quiet=quiet)
    summary = {"provenance": "simulated", "mfu": "flops / (time × devices × published bfloat16 peak of a device)"}
    records = (step_record(answer, prices) for answer in answers)
    give(json_file, "step", records, summary, lambda: show_steps(answers, prices))
    return 1 if any(answer.run is None for answer in answers) else 0


def _made(maker: NamedFunction, chip: Chip, asked_slice: AskedSlice, changes: Changes) -> AskedStep:
    """Return the step with these changes."""
    parameters = {**maker.parameters, **dict(changes)}
    mesh, topology = parameters.pop(MESH, asked_slice.mesh), asked_slice.topology
    axes = mesh_axes(mesh) if mesh else {}
    if topology is not None and not axes:
        axes = {"fsdp": len(SliceShape.parse(chip, topology).devices)}
    source = StepMaker(function=replace(maker, parameters=parameters), topology=topology, axes=axes)
    return AskedStep(label=label_of(changes) or maker.text, chip=chip, topology=topology, source=source)


def _answers(steps: list[AskedStep], workers: Workers, spans: int, *, quiet: bool) -> list[StepAnswer]:
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        bar.planned(len(steps))
        jobs = []
        for step in steps:
            name = f"{step.label} for {step.chip.name}"
            job = submit_step(pool, step.source, step.chip, name=name, topology=step.topology, spans=spans)
            job.add_done_callback(lambda _, name=name: bar.done(name))
            jobs.append(job)
        result = []
        for step, job in zip(steps, jobs, strict=True):
            try:
                result.append(StepAnswer(step=step, run=result_of(job, pool, bar), outcome=None))
            except Exception as error:  # noqa: BLE001 -- whatever the step raises is its outcome
                result.append(StepAnswer(step=step, run=None, outcome=Outcome.failed(step.label, error)))
    return result
