"""`systolic compare`: what changed from one explanation to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from systolic.chips import flags_text
from systolic.cli.compare_trace import compare_trace
from systolic.cli.options import FiniteFloat, output_options
from systolic.cli.output import check_target, give, note
from systolic.cli.saved_answers import SavedAnswer, read_answers
from systolic.cli.tables import chosen_format, console, show_table
from systolic.explaining import Explanation, ExplanationError
from systolic.report.columns import Column, numeric, textual
from systolic.report.compared import ComparedRow, Comparison, compare_explanations, compare_runs
from systolic.report.time_errors import verdict_text
from systolic.schedule import MIB
from systolic.timing.device_trace import is_trace

_COLUMNS: tuple[Column[ComparedRow], ...] = (
    textual("of", lambda row: row.group),
    textual("quantity", lambda row: row.quantity),
    numeric("before", lambda row: _value(row, row.before)),
    numeric("after", lambda row: _value(row, row.after)),
    numeric("change", lambda row: _change(row)),
)
# As numbers, for what reads CSV.
_NUMBERS: tuple[Column[ComparedRow], ...] = (
    *_COLUMNS[:2],
    textual("unit", lambda row: row.unit),
    numeric("before", lambda row: row.before),
    numeric("after", lambda row: row.after),
    numeric("change", lambda row: row.change),
)


@click.command()
@click.argument("before", metavar="A.json", type=click.Path(exists=True, path_type=Path))
@click.argument("after", metavar="B.json|TRACE", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--fail-above",
    type=FiniteFloat(min=0),
    metavar="PERCENT",
    help="Exit code 1 if B takes more than PERCENT longer than A on any chip, or has no time where A has one.",
)
@click.option(
    "--module",
    metavar="NAME",
    help="With TRACE: the program in it, as XProf names it, such as jit_f; needed where it has several.",
)
@output_options
def compare(
    before: Path, after: Path, fail_above: float | None, module: str | None, json_file: str | None, quiet: bool
) -> int:
    """Compare what `systolic explain --json` wrote of a function before and after a change.

    Rows are matched by chip, and by the function's name where a file holds several. Files of `systolic simulate --json`
    and `systolic step --json` can be compared as well: time and waiting. Times are simulated.

    TRACE is a profile of the same program on a TPU, which jax.profiler.trace wrote: a file NAME.xplane.pb or the
    profiler's folder. Then simulated and measured times are compared operation by operation.

    \b
    Examples:
      systolic explain kernel.py:mine --arg "bf16[4096,4096]" --chip v5e,v6e --json before.json
      systolic compare before.json after.json
      systolic compare before.json after.json --fail-above 2 --json -
      systolic compare run.json profile/ --module jit_mlp
    """
    check_target(json_file)
    if is_trace(before):
        raise click.UsageError(f"{before} is a trace: give the result of `systolic simulate --json` first")
    if is_trace(after):
        return compare_trace(
            read_answers(before), after, module=module, fail_above=fail_above, json_file=json_file, quiet=quiet
        )
    if module is not None:
        raise click.UsageError(f"--module names a program in a trace, and {after} is none")
    first, second = read_answers(before), read_answers(after)
    pairs, unmatched = _matched(first, second)
    comparisons = [_compared(mine, other) for mine, other in pairs if mine.result and other.result]
    lost = [other for mine, other in pairs if mine.result is not None and other.result is None]
    if not comparisons and not lost:
        raise ExplanationError(
            f"{before} and {after} have no chip in common of which both know the time: "
            f"{_chips(first)} and {_chips(second)}"
        )
    limit = None if fail_above is None else fail_above / 100
    slower = [row for row in comparisons if limit is not None and not row.slower <= limit]
    failed = bool(slower) or (limit is not None and bool(lost))
    summary = {
        "provenance": "simulated",
        "fail_above_percent": fail_above,
        "failed": failed,
        "slower_percent": {f"{row.chip} {row.after}": row.slower * 100 for row in comparisons},
        "without_time": [f"{answer.chip} {answer.function}: {answer.reason}" for answer in lost],
        "not_compared": unmatched,
    }

    def show() -> None:
        _show(comparisons, lost, unmatched)
        if slower:
            names = ", ".join(f"{escape(row.chip)} by {row.slower:.1%}" for row in slower)
            console().print(f"\n[bold]slower by more than {fail_above:g}%[/]: {names}")

    give(json_file, "compare", map(_record, comparisons), summary, show)
    if json_file not in (None, "-"):
        note(f"written {json_file}", quiet=quiet)
    return 1 if failed else 0


def _matched(
    first: list[SavedAnswer], second: list[SavedAnswer]
) -> tuple[list[tuple[SavedAnswer, SavedAnswer]], list[str]]:
    """Pair answers of the same chip and function, or of the chip alone if either file has one function left on it."""
    pairs, alone, left = [], [], list(second)
    for mine in first:
        same = next((other for other in left if (other.chip, other.function) == (mine.chip, mine.function)), None)
        if same is None:
            alone.append(mine)
        else:
            pairs.append((mine, same))
            left.remove(same)
    for mine in list(alone):
        others = [other for other in left if other.chip == mine.chip]
        if len(others) == 1 and sum(answer.chip == mine.chip for answer in alone) == 1:
            pairs.append((mine, others[0]))
            alone.remove(mine)
            left.remove(others[0])
    unmatched = [f"{answer.chip} {answer.function} is only in the first file".replace("  ", " ") for answer in alone]
    unmatched += [f"{answer.chip} {answer.function} is only in the second file".replace("  ", " ") for answer in left]
    return pairs, unmatched


def _compared(mine: SavedAnswer, other: SavedAnswer) -> Comparison:
    before, after = mine.result, other.result
    if isinstance(before, Explanation) and isinstance(after, Explanation):
        return compare_explanations(before, after)
    runs = [answer.slice_run or answer.run if isinstance(answer, Explanation) else answer for answer in (before, after)]
    assert runs[0] is not None
    assert runs[1] is not None
    return compare_runs(runs[0], runs[1], names=(mine.function, other.function))


def _chips(answers: Sequence[SavedAnswer]) -> str:
    return ", ".join(dict.fromkeys(answer.chip for answer in answers))


def _record(comparison: Comparison) -> dict[str, Any]:
    return {
        "chip": comparison.chip,
        "before": comparison.before,
        "after": comparison.after,
        "before_us": comparison.before_us,
        "after_us": comparison.after_us,
        "slower_percent": comparison.slower * 100,
        "error_percent_before": comparison.error_before.percent if comparison.error_before is not None else None,
        "error_percent_after": comparison.error_after.percent if comparison.error_after is not None else None,
        "same_kernel": comparison.same_kernel,
        "topology_before": comparison.topology_before or None,
        "topology_after": comparison.topology_after or None,
        "ratio_error_percent": comparison.ratio_error_percent,
        "verdict": comparison.verdict,
        "flags_before": comparison.flags_before,
        "flags_after": comparison.flags_after,
        "findings_gone": comparison.findings_gone,
        "findings_new": comparison.findings_new,
        "quantities": [{**dataclasses.asdict(row), "change": row.change} for row in comparison.rows],
    }


def _show(comparisons: Sequence[Comparison], lost: Sequence[SavedAnswer], unmatched: Sequence[str]) -> None:
    out = console()
    for at, comparison in enumerate(comparisons):
        if at:
            out.print("")
        names = dict.fromkeys((comparison.before, comparison.after))
        slices = dict.fromkeys((comparison.topology_before, comparison.topology_after))
        chip = f"{comparison.chip} {' → '.join(text or 'one device' for text in slices) if any(slices) else ''}".strip()
        out.print(f"[bold]{escape(chip)}[/] {escape(' → '.join(filter(None, names)))}: {_verdict(comparison)}")
        flags = dict.fromkeys(map(flags_text, (comparison.flags_before, comparison.flags_after)))
        if any(flags):
            out.print(f"compiled with {' → '.join(text or 'no flags' for text in flags)}", markup=False, soft_wrap=True)
        show_table(out, _NUMBERS if chosen_format() == "csv" else _COLUMNS, comparison.rows)
        for title in comparison.findings_gone:
            out.print(f"finding gone: {escape(title)}")
        for title in comparison.findings_new:
            out.print(f"finding new: {escape(title)}")
    for answer in lost:
        name = f"[bold]{escape(answer.chip)}[/] {escape(answer.function)}"
        out.print(f"{name}: no time in the second file: {escape(answer.reason)}")
    for text in unmatched:
        out.print(f"not compared: {escape(text)}")


def _verdict(comparison: Comparison) -> str:
    error = comparison.ratio_error_percent
    times = f"simulated {comparison.before_us:,.2f} → {comparison.after_us:,.2f} µs"
    times += f", {verdict_text(comparison.verdict, error, same_kernel=comparison.same_kernel)}"
    if abs(comparison.slower) < 0.0005:
        return f"[bold]as fast as before[/], {times}"
    word = "slower" if comparison.slower > 0 else "faster"
    change = f"{abs(comparison.slower):.1%} {word}"
    # Within the error of the ratio, the difference rests on the model alone.
    return f"[bold]{change}[/], {times}" if comparison.verdict in ("faster", "slower") else f"{change}, {times}"


def _value(row: ComparedRow, value: float | None) -> str | None:
    if value is None:
        return None
    if row.unit == "share":
        return f"{value:.1%}"
    if row.unit == "bytes":
        moved = row.group in ("traffic", "communication") or "HBM" in row.quantity
        return f"{value / 1e6:,.2f} MB" if moved else f"{value / MIB:,.2f} MiB"
    return f"{value:,.2f} {row.unit}" if row.unit in ("µs", "Tflop/s") else f"{value:,.0f}"


def _change(row: ComparedRow) -> str | None:
    if row.change is None:
        return None
    if abs(row.change) < 0.0005:
        return "="
    return f"{row.change * 100:+.1f} points" if row.unit == "share" else f"{row.change:+.1%}"
