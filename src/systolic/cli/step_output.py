"""Print predicted steps for `systolic step`, and write their traces and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cattrs
from rich.console import Console
from rich.markup import escape

from systolic.chips import Chip, flags_text
from systolic.cli.output import SIMULATED, heading, note, write_text
from systolic.cli.tables import console, show_section
from systolic.cli.trace_option import write_trace
from systolic.report.step_comparison import ComparedStep, comparison_table
from systolic.report.step_tables import (
    Prediction,
    changes_table,
    gain_text,
    kinds_table,
    memory_text,
    parts_table,
    passes_text,
)
from systolic.report.time_errors import time_text
from systolic.report.written import percent
from systolic.steps import DoesNotFitError, Step, StepMaker, StepRun
from systolic.timing.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStep:
    """One step to predict."""

    label: str
    chip: Chip
    topology: str | None
    source: Step | StepMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswer:
    """The run of a step, or the reason why there is none."""

    step: AskedStep
    run: StepRun | None
    outcome: Outcome | None  # None: there is a run


def step_record(answer: StepAnswer, prices: Mapping[str, float]) -> dict[str, Any]:
    run, outcome = answer.run, answer.outcome
    row: dict[str, Any] = {
        "step": answer.step.label,
        "chip": answer.step.chip.name,
        "topology": answer.step.topology,
        "flags": answer.step.chip.compiler_flags,
    }
    if run is None:
        assert outcome is not None
        row |= {"status": outcome.status, "reason": outcome.details, "time_us": None}
        if isinstance(error := outcome.error, DoesNotFitError):
            row |= {
                "hbm_needed_bytes": error.needed_bytes,
                "hbm_left_bytes": error.available_bytes - error.needed_bytes,
            }
        return row
    return {
        **row,
        "status": "ok",
        "devices": run.devices,
        "time_us": run.time_us,
        "tokens_per_s_per_device": run.tokens_per_s_per_device,
        "million_tokens_cost": _compared(answer, prices).million_tokens_cost,
        "mfu": run.mfu,
        "mfu_causal": run.mfu_causal,
        "hbm_needed_bytes": run.memory.needed_bytes,
        "hbm_left_bytes": run.memory.left_bytes,
        "run": cattrs.unstructure(run),
    }


def write_traces(answers: Sequence[StepAnswer], path: Path, *, several: bool, quiet: bool) -> None:
    for chip, answer in {answer.step.chip.name: answer for answer in reversed(answers)}.items():
        if answer.run is not None:
            run, name = answer.run.slice_run or answer.run.run, chip if several else None
            write_trace(run, path, title=answer.step.label, chip=name, quiet=quiet)


def write_pages(answers: Sequence[StepAnswer], path: Path, *, several: bool, quiet: bool) -> None:
    from systolic.report.step_page import step_page

    by_chip: dict[str, list[Prediction]] = {}
    for answer in answers:
        reason = "" if answer.outcome is None else f"{answer.outcome.status}: {answer.outcome.details}"
        prediction = Prediction(label=answer.step.label, run=answer.run, reason=reason)
        by_chip.setdefault(answer.step.chip.name, []).append(prediction)
    for chip, (first, *trials) in by_chip.items():
        if first.run is not None:
            target = path.with_stem(f"{path.stem}_{chip}") if several else path
            write_text(target, step_page(first.label, first.run, trials))
            note(f"page {target}", quiet=quiet)


def show_steps(answers: Sequence[StepAnswer], prices: Mapping[str, float]) -> None:
    """Print each chip's first step in full, its other steps in a line each, and all side by side."""
    out = console()
    chips = list(dict.fromkeys(answer.step.chip.name for answer in answers))
    heading(out, chips, SIMULATED, flags=answers[0].step.chip.given_flags)
    for chip in chips:
        base, *others = (answer for answer in answers if answer.step.chip.name == chip)
        out.print("")
        if base.run is None:
            _show_failure(out, base)
        else:
            _show_verdict(out, base.step.label, base.run)
            _show_tables(out, base.run)
        for answer in others:
            out.print("")
            if answer.run is None:
                _show_failure(out, answer)
            else:
                _show_verdict(out, answer.step.label, answer.run, base.run)
    if len(answers) > 1 or prices:
        title = "all steps, the cheapest first" if prices else "all steps, the fastest first"
        show_section(out, title, comparison_table([_compared(answer, prices) for answer in answers]))


def _compared(answer: StepAnswer, prices: Mapping[str, float]) -> ComparedStep:
    chip, run = answer.step.chip, answer.run
    error = answer.outcome and answer.outcome.error
    return ComparedStep(
        where=f"{chip.name} {answer.step.topology or ''}".strip(),
        label=answer.step.label,
        chips=max(1, run.devices // chip.devices_per_chip) if run is not None else 1,
        run=run,
        reason="" if answer.outcome is None else str(answer.outcome.status),
        shortage=error if isinstance(error, DoesNotFitError) else None,
        price=prices.get(chip.name, prices.get(chip.generation)),
    )


def _show_failure(out: Console, answer: StepAnswer) -> None:
    assert answer.outcome is not None
    title = f"{answer.step.chip.name} {answer.step.label}: {answer.outcome.status}: {answer.outcome.details}"
    out.print(title, markup=False, soft_wrap=True)


def _show_verdict(out: Console, label: str, run: StepRun, base: StepRun | None = None) -> None:
    time = time_text(run.time_us, run.error)
    where = f"{run.chip} {run.topology}".strip()
    parts = [f"{run.devices} devices"] if run.devices > 1 else []
    if run.tokens:
        parts.append(f"{run.tokens_per_s_per_device:,.0f} tokens/s per device")
    if run.flops:
        half = f", with half of causal attention {percent(run.mfu_causal)}" if run.flops_causal != run.flops else ""
        parts.append(f"MFU {percent(run.mfu)}{half}")
    if base is not None:
        parts.append(gain_text(base, run))
    details = f"; {'; '.join(parts)}" if parts else ""
    out.print(f"[bold]{where}[/] {escape(label)}: [bold]{run.run.provenance} {escape(time)}[/]{escape(details)}")
    out.print(memory_text(run), markup=False, soft_wrap=True)


def _show_tables(out: Console, run: StepRun) -> None:
    out.print(f"of the time: {passes_text(run)}", markup=False, soft_wrap=True)
    if run.run.flags:
        out.print(f"compiled with {flags_text(run.run.flags)}", markup=False, soft_wrap=True)
    show_section(out, "parts of the model, on the device that ends last", parts_table(run))
    show_section(out, "communication of that device", kinds_table(run))
    show_section(out, "what would help most", changes_table(run))
    for assumption in run.run.assumptions:
        out.print(f"assumed: {escape(assumption)}")
