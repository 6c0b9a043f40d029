"""The tables of `systolic calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from systolic.chips.constants import is_cycles
from systolic.cli.output import console, table, versions
from systolic.cli.published import number, program_cells, reason_lines
from systolic.validation.calibration import BRACKET, SPLIT, Calibration
from systolic.validation.errors import ComparedRow, ErrorStatistics


def show_fit(
    found: Calibration,
    statistics: Mapping[str, tuple[ErrorStatistics, ErrorStatistics]],
    dispatch_us: float,
    fit_s: float,
) -> None:
    """The verdict, the constants and their brackets, and both halves' errors before and after."""
    out = console()
    packages = versions()
    out.print(
        f"[bold]{found.chip.name}[/] · jax {packages['jax']}, libtpu {packages['libtpu']} · predicted times are "
        "simulated: compiled for the chip, executed on its model"
    )
    out.print(_verdict(found, statistics))
    out.print(
        f"split: {SPLIT}; {dispatch_us:g} µs of dispatch taken off wall-clock rows; "
        f"{found.rounds} rounds in {fit_s:.0f} s\n"
    )
    columns = ("constant", "shipped", "fitted", f"within {BRACKET:.0%} of the best fit", "looked for in", "")
    lines = [
        (
            one.name,
            _value(one.name, one.shipped),
            _value(one.name, one.fitted),
            f"{_value(one.name, one.low)} – {_value(one.name, one.high)}",
            f"{_value(one.name, one.least)} – {_value(one.name, one.most)}",
            "" if one.determined else "these rows do not determine it",
        )
        for one in found.constants
    ]
    out.print(table(columns, lines, left=("constant", "")))
    out.print("")
    columns = ("half", "rows", "programs", "median", "→", "90th percentile", "→", "worst", "→", "bias", "→")
    lines = []
    for half, (old, new) in statistics.items():
        pairs = (
            (old.median_error, new.median_error, ".1%"),
            (old.p90_error, new.p90_error, ".1%"),
            (old.worst_error, new.worst_error, ".1%"),
            (old.bias, new.bias, "+.1%"),
        )
        cells = [number(value, form) for before, after, form in pairs for value in (before, after)]
        lines.append((half, str(old.rows), str(old.programs), *cells))
    out.print(table(columns, lines, left=("half",)))


def _verdict(found: Calibration, statistics: Mapping[str, tuple[ErrorStatistics, ErrorStatistics]]) -> str:
    parts = [
        f"{half} {number(old.median_error, '.1%')} → {number(new.median_error, '.1%')}"
        for half, (old, new) in statistics.items()
    ]
    verdict = f"median error with the shipped → with the fitted constants: {', '.join(parts)}"
    old, new = statistics["check"]
    if (new.median_error or 0) >= (old.median_error or 0):
        verdict += "; no better where it was not fitted: keep the shipped ones"
    elif len(found.fitted_on) < len(found.constants):
        verdict += f"; {len(found.fitted_on)} programs cannot determine {len(found.constants)} constants"
    return verdict


def _value(name: str, value: float) -> str:
    if is_cycles(name):
        return f"{value:.0f}"
    return f"{value / 1e9:,.3f} GHz" if name.endswith("_hz") else f"{value / 1e9:,.1f} GB/s"


def show_rows(before: Sequence[ComparedRow], after: Sequence[ComparedRow], halves: Sequence[str | None]) -> None:
    """Every row with the half that its program was in, and its error with the shipped and the fitted constants."""
    out = console()
    columns = ("chip", "op", "m/k/n", "dtypes", "tiles m/k/n", "half", "published µs", "dispatch µs")
    columns += ("shipped: simulated µs", "error", "fitted: simulated µs", "error ")
    lines = [
        (
            *program_cells(row),
            half or "–",
            number(row.published_us, ",.1f"),
            number(row.dispatch_us, "g"),
            number(old.predicted_us, ",.1f"),
            number(old.error, "+.1%"),
            number(row.predicted_us, ",.1f"),
            number(row.error, "+.1%"),
        )
        for row, old, half in zip(after, before, halves, strict=True)
    ]
    out.print("")
    out.print(table(columns, lines, left=("chip", "op", "dtypes", "half")))
    for line in reason_lines(after):
        out.print(line, markup=False, soft_wrap=True)
