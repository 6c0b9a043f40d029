"""`systolic compare RESULT.json TRACE`: a simulated run next to a profile of the same program on a TPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from systolic.chips import UnknownChipError, chip
from systolic.cli.output import give, note
from systolic.cli.saved_answers import SavedAnswer
from systolic.cli.tables import chosen_format, console, show_table
from systolic.explaining import Explanation
from systolic.report.columns import Column, numeric, textual
from systolic.report.trace_comparison import ModuleError, OpTimes, TraceComparison, compare_with_trace, module_of
from systolic.report.written import percent
from systolic.simulator import SimulatedRun, SliceRun
from systolic.timing.device_trace import read_trace
from systolic.timing.traced_modules import DeviceTrace

_MIN_SHARE = 0.01  # of the measured time: shorter operations do not decide
_MAX_OPS = 40  # rows of a table, which a screen or two show


def compare_trace(
    answers: Sequence[SavedAnswer],
    path: Path,
    *,
    module: str | None,
    fail_above: float | None,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Compare one of the answers with a profile, print or write it, and return the exit code.

    Raises:
      TraceFileError: the profile cannot be read, or was not taken on a TPU.
      ModuleError: it is not certain which of the answers, or of the profile's programs, is meant.
    """
    runs = [(answer, run) for answer in answers if (run := _run(answer)) is not None]
    if not runs:
        reasons = "; ".join(dict.fromkeys(answer.reason for answer in answers if answer.reason))
        raise ModuleError(f"no result in the first file has a time: {reasons or 'rerun the command that wrote it'}")
    trace = read_trace(path)
    answer, run = _fitting(runs, trace, module)
    traced = module_of(trace, [_module(run)], module)
    comparison = compare_with_trace(run, traced)
    failed = fail_above is not None and not comparison.slower <= fail_above / 100
    error, main_error = comparison.median_error(), comparison.median_error(_MIN_SHARE)
    summary = {
        "provenance": {"before": run.provenance, "after": comparison.provenance},
        "fail_above_percent": fail_above,
        "failed": failed,
        "slower_percent": {f"{comparison.chip} {answer.function}".strip(): comparison.slower * 100},
        "median_error_percent": _in_percent(error),
        "median_error_of_long_operations_percent": _in_percent(main_error),
        "without_time": [],
        "not_compared": [],
    }

    provenance = run.provenance

    def show() -> None:
        _show(comparison, answer.function, provenance)
        if failed:
            out = console()
            out.print(f"\n[bold]slower than simulated by more than {fail_above:g}%[/]: {comparison.slower:.1%}")

    give(json_file, "compare", [_record(comparison, answer.function)], summary, show)
    if json_file not in (None, "-"):
        note(f"written {json_file}", quiet=quiet)
    return 1 if failed else 0


def _run(answer: SavedAnswer) -> SimulatedRun | SliceRun | None:
    return answer.result.slice_run or answer.result.run if isinstance(answer.result, Explanation) else answer.result


def _module(run: SimulatedRun | SliceRun) -> str:
    return run.slowest.module if isinstance(run, SliceRun) else run.module


def _fitting(
    runs: Sequence[tuple[SavedAnswer, SimulatedRun | SliceRun]], trace: DeviceTrace, module: str | None
) -> tuple[SavedAnswer, SimulatedRun | SliceRun]:
    """Return the only run, or of several the one of the trace's chip and module."""
    kinds = {traced.device_type.casefold() for traced in trace.modules}
    names = {traced.base_name for traced in trace.modules if module in (None, traced.name, traced.base_name)}
    fitting = list(runs)
    for fits in (
        lambda run: _device_kind(run.chip).casefold() in kinds,
        lambda run: _module(run) in names,
    ):
        fitting = [(answer, run) for answer, run in fitting if fits(run)] or fitting
    if len(fitting) > 1:
        texts = ", ".join(f"{answer.chip} {answer.function}" for answer, _ in fitting)
        raise ModuleError(
            f"several results in the first file may be meant ({texts}): simulate one function for one chip"
        )
    return fitting[0]


def _device_kind(name: str) -> str:
    try:
        return chip(name).device_kind
    except UnknownChipError:
        return ""


def _record(comparison: TraceComparison, function: str) -> dict[str, Any]:
    module = comparison.module
    return {
        "chip": comparison.chip,
        "function": function,
        "module": module.name,
        "device": module.device,
        "device_type": module.device_type or None,
        "executions": len(module.times_us),
        "before_us": comparison.simulated_us,
        "after_us": comparison.measured_us,
        "fastest_us": min(module.times_us),
        "slowest_us": max(module.times_us),
        "slower_percent": comparison.slower * 100,
        "error_percent": comparison.error_percent,
        "inside_error": comparison.inside_error,
        "operations": [{**dataclasses.asdict(op), "ratio": op.ratio} for op in comparison.ops],
    }


def _columns(provenance: str) -> tuple[Column[OpTimes], ...]:
    trace = "measured" if provenance == "measured" else "trace's"
    return (
        textual("operation", lambda op: op.name, kind="code"),
        textual(
            "in the trace", lambda op: op.traced_name if op.traced_name != op.name else "", kind="code", optional=True
        ),
        textual("category", lambda op: op.category, droppable=True),
        numeric("calls", lambda op: op.simulated_calls),
        numeric(f"{trace} calls", lambda op: op.measured_calls, "g", droppable=True),
        numeric("simulated µs", lambda op: op.simulated_us, ",.2f"),
        numeric(f"{trace} µs", lambda op: op.measured_us, ",.2f"),
        numeric("simulated / " + trace, lambda op: op.ratio, ".3f"),
    )


def _show(comparison: TraceComparison, function: str, provenance: str) -> None:
    out, module, kind = console(), comparison.module, comparison.provenance
    times = module.times_us
    spread = f", {min(times):,.1f} to {max(times):,.1f}" if len(times) > 1 else ""
    traced = f"{'measured' if kind == 'measured' else 'in the trace'} {comparison.measured_us:,.1f} µs"
    out.print(
        f"[bold]{escape(comparison.chip)}[/] {escape(function)}: {provenance} {comparison.simulated_us:,.1f} µs, "
        f"[bold]{traced}[/] (median of {len(times)}{spread})",
        soft_wrap=True,
    )
    out.print(_verdict(comparison), markup=False, soft_wrap=True)
    where = f"{module.name} on {module.device}" + (f", {module.device_type}" if module.device_type else "")
    out.print(f"in the trace: {where}", markup=False, soft_wrap=True)
    if module.is_simulated:
        out.print("the trace was written by systolic: nothing here is measured")
    expected = _device_kind(comparison.chip)
    if module.device_type and expected and module.device_type.casefold() != expected.casefold():
        out.print(f"another chip: the run is of {comparison.chip}, {expected}", markup=False)
    ops = comparison.ops if chosen_format() == "csv" else comparison.ops[:_MAX_OPS]
    show_table(out, _columns(kind), ops)
    if len(ops) < len(comparison.ops):
        out.print(f"and {len(comparison.ops) - len(ops):,} shorter operations; --format csv has all")
    for text in _remarks(comparison):
        out.print(text, markup=False, soft_wrap=True)


def _verdict(comparison: TraceComparison) -> str:
    ratio = comparison.simulated_us / comparison.measured_us - 1
    change = f"{percent(abs(ratio))} {'longer' if ratio > 0 else 'shorter'}" if abs(ratio) >= 0.0005 else "the same"
    text = f"the simulated time is {change}"
    if comparison.error_percent is None:
        return f"{text}; the error of such programs is not known yet"
    inside = "inside" if comparison.inside_error else "outside"
    return f"{text}, {inside} its error of ± {comparison.error_percent:.0f}%"


def _remarks(comparison: TraceComparison) -> list[str]:
    remarks = []
    error, pairs, long = comparison.median_error(), comparison.paired(), comparison.paired(_MIN_SHARE)
    if error is None:
        remarks.append("no operation is in both: the trace is of another program, or of another compiler")
    else:
        text = f"median error {percent(error)} of {len(pairs)} operation{'s' * (len(pairs) > 1)} in both"
        main_error = comparison.median_error(_MIN_SHARE)
        if main_error is not None and len(long) < len(pairs):
            text += f", {percent(main_error)} of the {len(long)} with at least 1% of the time"
        remarks.append(text)
    by_order = sum(op.paired_by == "order" for op in comparison.ops)
    if by_order:
        names = "1 operation has another name" if by_order == 1 else f"{by_order} operations have other names"
        remarks.append(
            f"{names} in the trace and {'is' if by_order == 1 else 'are'} paired by kind and order: "
            "was it compiled with another version of libtpu, or other flags?"
        )
    for side, here, time_us in (
        ("simulated", [op for op in comparison.ops if op.measured_us is None], lambda op: op.simulated_us),
        ("in the trace", [op for op in comparison.ops if op.simulated_us is None], lambda op: op.measured_us),
    ):
        if here:
            count = f"{len(here)} operation{'s are' if len(here) > 1 else ' is'}"
            remarks.append(f"{count} only {side}: {sum(time_us(op) for op in here):,.1f} µs")
    return remarks


def _in_percent(share: float | None) -> float | None:
    return None if share is None else share * 100
