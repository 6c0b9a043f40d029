"""The tables of `systolic calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from systolic.chips.constants import is_cycles
from systolic.cli.output import SIMULATED, heading
from systolic.cli.published import PROGRAM, reason_lines
from systolic.cli.tables import console, show_table
from systolic.cli.validation_tables import ERROR_COLUMNS, error_of
from systolic.report.columns import NOTHING, Column, numeric, of_part, textual
from systolic.validation.calibration import BRACKET, SPLIT, Calibration, FittedConstant
from systolic.validation.errors import ComparedRow, ErrorStatistics


def show_fit(
    calibration: Calibration,
    statistics: Mapping[str, tuple[ErrorStatistics, ErrorStatistics]],
    dispatch_us: float,
    fit_s: float,
) -> None:
    """Print the verdict, the constants and their brackets, and both halves' errors before and after."""
    out = console()
    heading(out, [calibration.chip.name], f"predicted {SIMULATED}")
    out.print(_verdict(calibration, statistics))
    out.print(
        f"split: {SPLIT}; {dispatch_us:g} µs of dispatch taken off wall-clock rows; "
        f"{calibration.rounds} rounds in {fit_s:.0f} s\n"
    )
    show_table(out, _CONSTANTS, calibration.constants)
    out.print("")
    show_table(out, _HALVES, [(half, *both) for half, both in statistics.items()])


def _verdict(calibration: Calibration, statistics: Mapping[str, tuple[ErrorStatistics, ErrorStatistics]]) -> str:
    parts = [
        f"{half} {_percent(old.median_error)} → {_percent(new.median_error)}" for half, (old, new) in statistics.items()
    ]
    verdict = f"median error with the shipped → with the fitted constants: {', '.join(parts)}"
    old, new = statistics["check"]
    if (new.median_error or 0) >= (old.median_error or 0):
        verdict += "; the other half is no better: keep the shipped ones"
    elif len(calibration.fitted_on) < len(calibration.constants):
        verdict += f"; {len(calibration.fitted_on)} programs cannot determine {len(calibration.constants)} constants"
    return verdict


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"


def _value(name: str, value: float) -> str:
    if is_cycles(name):
        return f"{value:.0f}"
    if name.endswith("_cycles"):
        return f"{value:.2f}"
    return f"{value / 1e9:,.3f} GHz" if name.endswith("_hz") else f"{value / 1e9:,.1f} GB/s"


def show_rows(before: Sequence[ComparedRow], after: Sequence[ComparedRow], halves: Sequence[str | None]) -> None:
    """Print every row with its program's half, and its error with the shipped and the fitted constants."""
    out = console()
    out.print("")
    show_table(out, _ROWS, list(zip(after, before, halves, strict=True)))
    for line in reason_lines(after):
        out.print(line, markup=False, soft_wrap=True)


_CONSTANTS: tuple[Column[FittedConstant], ...] = (
    textual("constant", lambda constant: constant.name),
    numeric("shipped", lambda constant: _value(constant.name, constant.shipped)),
    numeric("fitted", lambda constant: _value(constant.name, constant.fitted)),
    numeric(
        f"within {BRACKET:.0%} of the best fit",
        lambda constant: f"{_value(constant.name, constant.low)} – {_value(constant.name, constant.high)}",
    ),
    numeric(
        "looked for in",
        lambda constant: f"{_value(constant.name, constant.least)} – {_value(constant.name, constant.most)}",
    ),
    textual("", lambda constant: "" if constant.determined else "these rows do not determine it"),
)
# The name of a half, its statistics with the shipped constants, and with the fitted ones.
_Half = tuple[str, ErrorStatistics, ErrorStatistics]
_HALVES: tuple[Column[_Half], ...] = (
    textual("half", lambda row: row[0]),
    numeric("rows", lambda row: row[1].rows),
    numeric("programs", lambda row: row[1].programs),
    *(
        numeric(title, error_of(part, name), form)
        for label, name, form in ERROR_COLUMNS
        for title, part in ((label, 1), ("→", 2))
    ),
)
# A row with the fitted constants, with the shipped ones, and the half that its program was in.
_Pair = tuple[ComparedRow, ComparedRow, str | None]
_ROWS: tuple[Column[_Pair], ...] = (
    *(of_part(column, lambda row: row[0]) for column in PROGRAM),
    textual("half", lambda row: row[2]),
    numeric("published µs", lambda row: row[0].published_us, ",.1f"),
    numeric("dispatch µs", lambda row: row[0].dispatch_us, "g", droppable=True),
    numeric("shipped: simulated µs", lambda row: row[1].predicted_us, ",.1f", droppable=True),
    numeric("error", lambda row: row[1].error, "+.1%"),
    numeric("fitted: simulated µs", lambda row: row[0].predicted_us, ",.1f", droppable=True),
    numeric("error", lambda row: row[0].error, "+.1%"),
)
