"""The output of `systolic bench`: a verdict, a table for each chip, missed bars, and cases without a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from systolic.chips import flags_text
from systolic.cli.output import SIMULATED, by_reason, heading
from systolic.cli.tables import console, show_table
from systolic.report.columns import Column, numeric, textual
from systolic.report.time_errors import error_column, error_lines
from systolic.report.written import us
from systolic.timing.opponent import MORE_VMEM_FLAGS

if TYPE_CHECKING:
    from systolic.bench.bars import BenchSummary, Cleared, Standing
    from systolic.bench.rows import BenchRow

_COLUMNS: tuple[Column[BenchRow], ...] = (
    textual("case", lambda row: row.case.name),
    numeric("ours µs", lambda row: row.ours.status if row.ours_us is None else row.ours_us, us),
    error_column(lambda row: row.ours.error),
    numeric("XLA µs", lambda row: row.xla_repeated_us, us),
    error_column(lambda row: row.xla.error, "± XLA", droppable=True),
    textual("ours with", lambda row: "more VMEM" if row.ours.flags else "", optional=True),
    textual(
        "with",
        lambda row: ", ".join(filter(None, (row.xla.form, "more VMEM" if row.xla.flags else ""))),
        optional=True,
    ),
    numeric("× XLA", lambda row: row.ratio, ".2f"),
    numeric("alone", lambda row: row.ratio_alone, ".2f", droppable=True),
    numeric("+ copy", lambda row: row.ratio_with_prefetch, ".2f", droppable=True),
    numeric("exposed µs", lambda row: row.ours.exposed_us, us, optional=True),
    numeric("XLA's exposed µs", lambda row: row.xla.exposed_us, us, optional=True),
    numeric("peer µs", lambda row: row.best_peer_us, us, optional=True),
    textual("best peer", lambda row: _best_peer(row), optional=True),
    numeric("× peer", lambda row: row.ratio_best_peer, ".2f", optional=True),
    numeric("MXU µs", lambda row: row.limits.mxu_us, us, droppable=True),
    numeric("HBM µs", lambda row: row.limits.hbm_us, us, droppable=True),
    numeric("share", lambda row: row.share, ".1%"),
    numeric("of model", lambda row: row.share_of_model, ".1%", droppable=True),
    numeric("bundles", lambda row: row.ours.bundles, ",", droppable=True),
    numeric("compile s", lambda row: row.ours.compile_s, ".1f", droppable=True),
    numeric("× least HBM", lambda row: row.over_least_hbm, ".2f", droppable=True),
    numeric("other ops µs", lambda row: row.ours.other_ops_us, us, droppable=True),
    numeric("modelled µs", lambda row: row.plan.modelled_us, us, droppable=True),
    numeric("× even", lambda row: row.over_even, ".2f", optional=True),
    textual("config", lambda row: row.plan.config, droppable=True),
)
_LEGEND = (
    "XLA: in repeated calls, where the copy of an operand that it starts before a call runs during the previous call, "
    "as far as HBM has time for it; alone: all of that copy hidden; + copy: none of it\n"
    "MXU and HBM: limits at the published peak and bandwidth; share: of our time that the larger one is; of model: the "
    "same at the simulator's clock and bandwidth"
)


def show(
    rows: Sequence[BenchRow], summary: BenchSummary, versions: Mapping[str, str | None], *, bars: bool = False
) -> None:
    """Print a run, with `bars` also the targets that the project sets itself, which mean nothing to its users."""
    out = console()
    chips = list(dict.fromkeys(row.case.chip for row in rows))
    what = ", ".join(dict.fromkeys(_dtype(row) for row in rows))
    heading(out, chips, what, SIMULATED, made_with=versions, flags=rows[0].case.flags if rows else None)
    missed = f", {len(summary.missed)} of {len(summary.bars)} bars missed" if bars else ""
    out.print(_verdict(summary) + missed, markup=False, soft_wrap=True)
    out.print(_LEGEND, soft_wrap=True)
    if any(row.ours.flags or row.xla.flags for row in rows):
        flags = flags_text(MORE_VMEM_FLAGS)
        out.print(f"more VMEM: XLA, and on a slice ours, is raced with {flags} too, and is faster so", soft_wrap=True)
    for chip in chips:
        of_chip = [row for row in rows if row.case.chip == chip]
        for standing in (standing for standing in summary.standings if standing.chip == chip):
            shown = [row for row in of_chip if (row.case.suite, row.case.group) == (standing.suite, standing.group)]
            out.print(f"\n[bold]{escape(_standing(standing))}[/]", soft_wrap=True)
            show_table(out, _COLUMNS, shown)
    if bars and summary.missed:
        out.print("\nbars missed:")
    for bar in summary.missed if bars else ():
        out.print(f"  {missed_line(bar)}", markup=False, soft_wrap=True)
    errors = (error for row in rows for error in (row.ours.error, row.xla.error))
    for line in (*error_lines(errors), *by_reason(_reasons(rows))):
        out.print(line, markup=False, soft_wrap=True)


def _best_peer(row: BenchRow) -> str:
    peer = row.fastest_peer
    return "" if peer is None else peer.name + " (assumed)" * bool(peer.assumption)


def _dtype(row: BenchRow) -> str:
    dtype, precision = row.case.dtype, row.case.precision
    return f"{dtype} at {precision}" if dtype == "float32" and precision else dtype


def _verdict(summary: BenchSummary) -> str:
    parts = [f"{summary.rows} rows"]
    if summary.timed < summary.rows:
        parts.append(f"{summary.rows - summary.timed} without a time")
    if summary.geometric_mean is not None:
        parts.append(f"geometric mean {summary.geometric_mean:.3f} × XLA's speed")
        parts.append(f"worst {summary.worst:.2f} at {summary.worst_row}")
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
    if standing.geometric_mean_peer is not None:
        text += f", {standing.geometric_mean_peer:.3f} × the best peer"
    if standing.share_of_model is not None:
        text += f", {standing.share_of_model:.3f} of the model's limit"
    return text


def missed_line(bar: Cleared) -> str:
    where = f" at {bar.case}" if bar.case else ""
    name = bar.group if bar.group == bar.suite else f"{bar.suite} {bar.group}"
    rows = f" ({bar.missed} of {bar.rows} rows)" if bar.case else ""
    return f"{bar.chip} {name}: {_short(bar.value)}{where}; {bar.bar} {_short(bar.limit)}{rows}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"


def _reasons(rows: Sequence[BenchRow]) -> Iterator[tuple[str, str, str]]:
    """Yield why times are missing, and the assumptions of others."""
    for row in rows:
        yield f"{row.case.chip} ours is {row.ours.status}", row.ours.reason, row.case.name
        yield f"{row.case.chip} XLA is", row.xla.reason, row.case.name
        yield f"{row.case.chip} XLA is timed with an assumption", row.xla.assumption, row.case.name
        yield f"{row.case.chip} the even size is", row.ours.even_reason, row.case.name
        for peer in row.peers:
            yield f"{row.case.chip} {peer.name} is", peer.reason, row.case.name
            yield f"{row.case.chip} {peer.name} is timed with an assumption", peer.assumption, row.case.name
