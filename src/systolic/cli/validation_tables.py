"""Tables of `systolic validate`: rows with their errors, and the errors by chip and by kind of program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.markup import escape

from systolic.accuracy.kind_errors import KindErrors
from systolic.accuracy.time_error import TimeErrors
from systolic.chips import with_clock_state
from systolic.chips.constants import FittedConstants
from systolic.cli.output import SIMULATED, heading
from systolic.cli.published import PROGRAM, reason_lines
from systolic.cli.tables import console, show_table
from systolic.report.columns import Column, numeric, textual
from systolic.report.time_errors import error_column, error_lines
from systolic.validation.errors import ChipStatistics, ComparedRow, ErrorStatistics, collective_statistics

_COLUMNS: tuple[Column[ComparedRow], ...] = (
    *PROGRAM,
    textual("timing", lambda row: row.timing, droppable=True),
    numeric("published µs", lambda row: row.published_us, ",.1f"),
    numeric("simulated µs", lambda row: row.predicted_us, ",.1f"),
    error_column(lambda row: row.time_error),
    numeric("error", lambda row: row.error if row.counted or row.error is None else f"({row.error:+.1%})", "+.1%"),
    textual("in view", lambda row: "yes" if row.in_view else "", droppable=True),
)
# The name, the field of `ErrorStatistics` and the format.
ERROR_COLUMNS = (
    ("median", "median_error", ".1%"),
    ("90th percentile", "p90_error", ".1%"),
    ("worst", "worst_error", ".1%"),
    ("bias", "bias", "+.1%"),
)


def error_of(part: int, name: str) -> Callable[[tuple[Any, ...]], float | None]:
    """Return a function that reads a statistic of the `ErrorStatistics` at position `part` of a row."""
    return lambda row: getattr(row[part], name)


# A chip, the sizes that count, and the errors at these sizes.
_Part = tuple[str, str, ErrorStatistics]
_STATISTICS: tuple[Column[_Part], ...] = (
    textual("chip", lambda row: row[0]),
    textual("sizes", lambda row: row[1]),
    numeric("rows", lambda row: row[2].rows),
    numeric("programs", lambda row: row[2].programs),
    *(numeric(label, error_of(2, name), form) for label, name, form in ERROR_COLUMNS),
    numeric("rank correlation", lambda row: row[2].rank_correlation, ".3f", droppable=True),
)
_KINDS: tuple[Column[KindErrors], ...] = (
    textual("chip", lambda kind: kind.chip),
    textual("kind of program", lambda kind: kind.kind),
    textual("half", lambda kind: "in view" if kind.in_view else "held out"),
    numeric("rows", lambda kind: kind.rows),
    numeric("no time", lambda kind: kind.refused or ""),
    numeric("another program", lambda kind: kind.other_programs or ""),
    numeric("median %", lambda kind: kind.median_percent, ".1f"),
    numeric("90th percentile %", lambda kind: kind.p90_percent, ".1f"),
    numeric("bias %", lambda kind: kind.bias_percent, "+.1f"),
    numeric("worst %", lambda kind: kind.worst_percent, "+.1f", droppable=True),
    numeric("covered", lambda kind: f"{kind.covered} of {kind.with_interval}" if kind.with_interval else "?"),
)


def show_comparison(
    rows: Sequence[ComparedRow],
    statistics: Mapping[str, ChipStatistics],
    dispatch_us: float,
    constants: FittedConstants | None,
    kinds: Sequence[KindErrors],
) -> None:
    """Print every row, and the errors by chip; of recorded operations, by kind and half as well."""
    out = console()
    heading(out, statistics, f"predicted {SIMULATED}")
    counted = sum(row.counted for row in rows)
    out.print(
        f"{len(rows)} rows: {counted} counted, {len(rows) - counted} not; {dispatch_us:g} µs of dispatch taken off "
        "wall-clock rows, in the error only"
    )
    if constants is not None:
        values = ", ".join(f"{name} {value:,}" for name, value in constants.constants.items())
        out.print(f"{constants.chip} with {constants.source}: {values}", markup=False)
    out.print("in view: the row, or similar products, were known when constants of the model were chosen\n")
    for name in statistics:
        of_chip = [row for row in rows if row.chip == name]
        out.print(f"[bold]{escape(with_clock_state(name))}[/]: {len(of_chip)} row{'s' * (len(of_chip) != 1)}")
        show_table(out, _COLUMNS, of_chip)
        out.print("")
    parts = [
        (name, sizes, part)
        for name, chip_statistics in statistics.items()
        for sizes, part in (
            ("all", chip_statistics.all_rows),
            ("from 2048", chip_statistics.from_2048),
            ("from 2048, not in view", chip_statistics.from_2048_not_in_view),
        )
        if part.rows
    ]
    parts += [("all", name, part) for name, part in collective_statistics(rows).items()]
    show_table(out, _STATISTICS, parts)
    if kinds:
        show_table(out, _KINDS, kinds)
        out.print(
            "in view: the half of the operations that constants may be fitted to; "
            "covered: published times in the interval"
        )
    for line in (*error_lines(row.time_error for row in rows), *reason_lines(rows)):
        out.print(line, markup=False, soft_wrap=True)


def coverage_text(intervals: TimeErrors) -> str:
    """Return the number of held-out programs, and pairs of them, within the intervals, in words."""
    programs, pairs = (
        f"{sum(part.covered for part in parts)} of {sum(part.held_out for part in parts)} held-out {name}"
        for parts, name in ((intervals.kinds, "programs"), (intervals.ratios, "pairs of one kernel"))
    )
    return f"they cover {programs} and {pairs}"
