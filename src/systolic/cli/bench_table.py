"""What `systolic bench` prints: a verdict, a table for each chip, the bars that were missed, and what has no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from systolic.cli.output import console, table

if TYPE_CHECKING:
    from systolic.bench.bars import BenchSummary, Cleared, Standing
    from systolic.bench.race import BenchRow

_COLUMNS = (
    "case",
    "ours µs",
    "XLA µs",
    "× XLA",
    "alone",
    "+ copy",
    "MXU µs",
    "HBM µs",
    "share",
    "of model",
    "bundles",
    "compile s",
    "× least HBM",
    "other ops µs",
    "modelled µs",
)
_LEGEND = (
    "XLA: in repeated calls, where the copy of an operand that it starts ahead of a call hides behind the call before, "
    "as far as HBM has time for it; alone: all of that copy hidden; + copy: none of it\n"
    "MXU and HBM: limits at the published peak and bandwidth; share: of our time that the larger one is; of model: the "
    "same at the simulator's clock and bandwidth"
)
_EVEN = ("× even",)
_CONFIG = "m/k/n, subtiles, pipeline"


def show(rows: Sequence[BenchRow], summary: BenchSummary, versions: Mapping[str, str | None]) -> None:
    """Prints a run."""
    out = console()
    chips = list(dict.fromkeys(row.chip for row in rows))
    what = dict.fromkeys(_dtype(row) for row in rows)
    made_with = f"jax {versions.get('jax')}, libtpu {versions.get('libtpu')}"
    out.print(
        f"[bold]{escape(', '.join(chips))}[/] · {escape(', '.join(what))} · {escape(made_with)} "
        "· times are simulated, ours and XLA's: compiled for the chip, executed on its model",
        soft_wrap=True,
    )
    out.print(_verdict(summary), markup=False, soft_wrap=True)
    out.print(_LEGEND, soft_wrap=True)
    for chip in chips:
        of_chip = [row for row in rows if row.chip == chip]
        for standing in (each for each in summary.standings if each.chip == chip):
            shown = [row for row in of_chip if (row.suite, row.group) == (standing.suite, standing.group)]
            out.print(f"\n[bold]{escape(_standing(standing))}[/]", soft_wrap=True)
            beside_even = any(row.even_us is not None for row in shown)
            columns = (*_COLUMNS, *(_EVEN if beside_even else ()), _CONFIG)
            lines = [_line(row, beside_even=beside_even) for row in shown]
            out.print(table(columns, lines, left=("case", _CONFIG)))
    if summary.missed:
        out.print("\nbars missed:")
    for bar in summary.missed:
        out.print(f"  {missed_line(bar)}", markup=False, soft_wrap=True)
    for line in _reasons(rows):
        out.print(line, markup=False, soft_wrap=True)


def _dtype(row: BenchRow) -> str:
    return f"{row.dtype} at {row.precision}" if row.dtype == "float32" else row.dtype


def _verdict(summary: BenchSummary) -> str:
    parts = [f"{summary.rows} rows"]
    if summary.timed < summary.rows:
        parts.append(f"{summary.rows - summary.timed} without a time")
    if summary.geometric_mean is not None:
        parts.append(f"geometric mean {summary.geometric_mean:.3f} × XLA's speed")
        parts.append(f"worst {summary.worst:.2f} at {summary.worst_row}")
    parts.append(f"{len(summary.missed)} of {len(summary.bars)} bars missed")
    return ", ".join(parts)


def _standing(standing: Standing) -> str:
    name = standing.group if standing.group == standing.suite else f"{standing.suite} {standing.group}"
    text = f"{standing.chip} {name}: {standing.rows} rows"
    if standing.timed < standing.rows:
        text += f", {standing.rows - standing.timed} without a time"
    if standing.geometric_mean is not None:
        text += (
            f", geometric mean {standing.geometric_mean:.3f} × XLA ({standing.geometric_mean_alone:.3f} alone, "
            f"{standing.geometric_mean_with_prefetch:.3f} with its copy), "
            f"worst {standing.worst:.2f} at {standing.worst_case}"
        )
    return text


def missed_line(bar: Cleared) -> str:
    """A bar that does not hold, in one line."""
    where = f" at {bar.case}" if bar.case else ""
    name = bar.group if bar.group == bar.suite else f"{bar.suite} {bar.group}"
    rows = f" ({bar.missed} of {bar.rows} rows)" if bar.case else ""
    return f"{bar.chip} {name}: {_short(bar.value)}{where}; {bar.bar} {_short(bar.limit)}{rows}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"


def _line(row: BenchRow, *, beside_even: bool) -> tuple[str, ...]:
    traffic = row.hbm_bytes / row.least_hbm_bytes if row.hbm_bytes and row.least_hbm_bytes else None
    return (
        row.case,
        _number(row.ours_us, ",.1f") if row.ours_us is not None else row.status,
        _number(row.xla_repeated_us, ",.1f"),
        _number(row.ratio, ".2f"),
        _number(row.ratio_alone, ".2f"),
        _number(row.ratio_with_prefetch, ".2f"),
        _number(row.mxu_us, ",.1f"),
        _number(row.hbm_us, ",.1f"),
        _number(row.share, ".1%"),
        _number(row.share_of_model, ".1%"),
        _number(row.bundles, ","),
        _number(row.compile_s, ".1f"),
        _number(traffic, ".2f"),
        _number(row.other_ops_us, ",.1f"),
        _number(row.modelled_us, ",.1f"),
        *((_number(row.over_even, ".2f"),) if beside_even else ()),
        row.config.removeprefix("tiles "),
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _reasons(rows: Sequence[BenchRow]) -> list[str]:
    """Why a time is missing; a text that several rows share once."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for who, reason in (
            (f"ours is {row.status}", row.reason),
            ("XLA is", row.xla_reason),
            ("the even size is", row.even_reason),
        ):
            if reason:
                grouped.setdefault((f"{row.chip} {who}", reason), []).append(row.case)
    found = [f"{who}: {reason} [{', '.join(cases)}]" for (who, reason), cases in grouped.items()]
    return ["", *found] if found else []
