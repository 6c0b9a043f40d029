"""`systolic simulate`: how long any JAX function takes on a TPU that is not there, and why."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cattrs
import click

from systolic.accuracy.time_error import ratio_error_percent, ratio_verdict
from systolic.chips import Chip
from systolic.chips.constants import load_constants, with_constants
from systolic.cli.function import AskedFunction, function_options
from systolic.cli.options import Workers, chip_option, constants_option, flag_option, output_options, worker_options
from systolic.cli.output import SIMULATED, check_target, give, heading
from systolic.cli.progress import progress_bar
from systolic.cli.simulated_tables import show_run
from systolic.cli.slice_options import AskedSlice, slice_options
from systolic.cli.slice_tables import show_slice
from systolic.cli.tables import console
from systolic.cli.trace_option import trace_option, write_trace
from systolic.compiler import NamedFunctionError, check_available
from systolic.report.time_errors import verdict_text
from systolic.simulator import same_kernel
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner

# Of each kind, from the beginning and from the end: what a table needs, and what a picture can show.
_SPANS_OF_A_TABLE = 200
_SPANS_OF_A_TRACE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The outcome of one function on one chip."""

    function: str
    chip: Chip
    outcome: Outcome


@click.command()
@function_options
@chip_option()
@flag_option
@slice_options
@click.option("--against", metavar="FILE.py:OTHER", help="Another function of the same arguments to compare with.")
@trace_option
@constants_option
@worker_options()
@output_options
def simulate(
    requested: AskedFunction,
    chips: tuple[Chip, ...],
    asked_slice: AskedSlice,
    against: str | None,
    trace_file: Path | None,
    constants_file: Path | None,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Compile a JAX function for a TPU, execute the compiled program on a model of the chip, and show where time goes.

    FUNCTION is anything that jax.jit takes, from a file or as package.module:FUNCTION. Shapes are enough,
    except for arguments whose values decide what runs: bounds of while loops, operands of scalar prefetch. An error
    names these. Exit code 1: the compiler refused the function, or it cannot be simulated.

    \b
    Examples:
      systolic simulate jax.numpy:matmul --arg "bf16[4096,4096]" --arg "bf16[4096,4096]" --chip v6e
      systolic simulate kernel.py:mine --arg "bf16[2048,2048]" --arg "s32[4]=0,3,3,9" --chip v5e,v7x --trace run.json
      systolic simulate kernel.py:mine --against kernel.py:reference --arg "f32[1024,1024]" --param tile_m=256 --json -
      systolic simulate step.py:mlp --chip v6e --topology 2x4 --mesh data=2,model=4 --arg "bf16[8192,8192]@data,model"
    """
    check_target(json_file)
    functions = [fn for fn in (requested.named(), requested.other(against)) if fn is not None]
    names = [function.text for function in functions]
    if constants_file is not None:
        chips = _calibrated(chips, constants_file)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the parent only describes arguments
    asked_slice.check(chips)
    pairs = [(fn, chip) for chip in chips for fn in functions]
    calls = [asked_slice.call(fn, requested.arguments, chip) for fn, chip in pairs]
    check_available()
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        spans = _SPANS_OF_A_TRACE if trace_file is not None else _SPANS_OF_A_TABLE
        outcomes = Runner(pool, bar).run(
            Experiment(
                fn=called,
                args=values,
                chip=chip,
                topology=asked_slice.topology,
                label=f"{fn.text} for {chip.name}",
                spans=spans,
            )
            for (fn, chip), (called, values) in zip(pairs, calls, strict=True)
        )
    answers = [
        _Answer(function=fn.text, chip=chip, outcome=outcome)
        for (fn, chip), outcome in zip(pairs, outcomes, strict=True)
    ]
    for outcome in outcomes:
        if isinstance(outcome.error, NamedFunctionError):  # the call was wrong
            raise outcome.error
    summary = _summary(answers, names)
    if trace_file is not None:
        for answer in answers:
            run = answer.outcome.slice_run or answer.outcome.run
            if answer.function == requested.text and run is not None:
                name = answer.chip.name if len(chips) > 1 else None
                write_trace(run, trace_file, title=requested.text, chip=name, quiet=quiet)
    give(json_file, "simulate", map(_record, answers), summary, lambda: _show(answers, summary, requested.arguments))
    return 1 if any(answer.outcome.run is None for answer in answers) else 0


def _calibrated(chips: tuple[Chip, ...], constants_file: Path) -> tuple[Chip, ...]:
    """Return the chips, one of them with the user's constants."""
    fitted = load_constants(constants_file)
    if fitted.chip not in {chip.name for chip in chips}:
        raise click.UsageError(f"{constants_file} holds constants of {fitted.chip}, which is not among --chip")
    return tuple(with_constants(chip, fitted) if chip.name == fitted.chip else chip for chip in chips)


def _summary(answers: list[_Answer], names: list[str]) -> dict[str, Any]:
    """Return the ratio of the compared functions' times on each chip, and its error."""
    ratios, errors = {}, {}
    if len(names) == 2:
        for mine, other in zip(answers[::2], answers[1::2], strict=True):
            first, second = mine.outcome.run, other.outcome.run
            if first is not None and second is not None:
                ratios[mine.chip.name] = second.time_us / first.time_us
                first_run, second_run = (
                    answer.outcome.slice_run or answer.outcome.required() for answer in (mine, other)
                )
                errors[mine.chip.name] = ratio_error_percent(
                    first_run.error, second_run.error, same_kernel=same_kernel(first, second)
                )
    return {"provenance": "simulated", "speed_ratio_to_other": ratios, "ratio_error_percent": errors}


def _record(answer: _Answer) -> dict[str, Any]:
    outcome, measurement, run = answer.outcome, answer.outcome.measurement, answer.outcome.run
    row: dict[str, Any] = {
        "function": answer.function,
        "chip": answer.chip.name,
        "clock_state": answer.chip.clock_state.name if answer.chip.clock_state is not None else None,
        "flags": answer.chip.compiler_flags,
        "status": outcome.status,
        "reason": outcome.details,
    }
    if measurement is None or run is None:
        return {**row, "time_us": None}
    slice_run = measurement.slice_run
    if slice_run is not None:
        return {
            **row,
            "flags": slice_run.flags,
            "provenance": measurement.provenance,
            "topology": slice_run.topology,
            "devices": slice_run.devices,
            "assignment": slice_run.assignment,
            "way": slice_run.way,
            "why_all": slice_run.why_all,
            "time_us": slice_run.time_us,
            "error_percent": slice_run.error_percent,
            "time_error": dataclasses.asdict(slice_run.error),
            "prefetch_us": slice_run.prefetch_us,
            "skew_us": slice_run.skew_us,
            "exposed_us": slice_run.exposed_us,
            "hidden_us": slice_run.hidden_us,
            "link_busy_share": slice_run.link_busy_share,
            "assumptions": slice_run.assumptions,
            "compile_s": measurement.compile_s,
            "from_cache": measurement.from_cache,
            "run": cattrs.unstructure(slice_run),
        }
    return {
        **row,
        "provenance": measurement.provenance,
        "time_us": run.time_us,
        "error_percent": run.error_percent,
        "time_error": dataclasses.asdict(run.error),
        "prefetch_us": run.prefetch_us,
        "cycles": run.cycles,
        "core_share": [core.cycles / max(1, run.cycles) for core in run.cores],
        "busy": run.busy,
        "stalls": run.stalls,
        "hbm_read_bytes": run.hbm_read_bytes,
        "hbm_written_bytes": run.hbm_written_bytes,
        "vmem_bytes": run.vmem_bytes,
        "spill_bytes": run.spill_bytes,
        "assumptions": run.assumptions,
        "compile_s": measurement.compile_s,
        "from_cache": measurement.from_cache,
        "run": cattrs.unstructure(dataclasses.replace(run)),
    }


def _show(answers: list[_Answer], summary: dict[str, Any], arguments: tuple[str, ...]) -> None:
    out = console()
    heading(out, (answer.chip.name for answer in answers), SIMULATED, flags=answers[0].chip.given_flags)
    out.print(f"arguments: {', '.join(arguments) or 'none'}", markup=False)
    for answer in answers:
        out.print("")
        outcome = answer.outcome
        if outcome.run is None:
            out.print(f"{answer.chip.name} {answer.function}: {outcome.status}: {outcome.details}", markup=False)
        else:
            slice_run = outcome.slice_run
            show_run(out, answer.function, outcome.run) if slice_run is None else show_slice(
                out, answer.function, slice_run
            )
    for chip, ratio in summary["speed_ratio_to_other"].items():
        error = summary["ratio_error_percent"][chip]
        verdict = verdict_text(ratio_verdict(ratio, error), error)
        names = answers[0].function, answers[1].function
        out.print(f"\n{chip}: {names[0]} is {ratio:.2f} × as fast as {names[1]}, {verdict}", markup=False)
