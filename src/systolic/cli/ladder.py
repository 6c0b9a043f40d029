"""`systolic ladder`: check, compile and simulate eight matmul kernels, and draw them with XLA."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from systolic.chips import Chip
from systolic.cli.opponent import opponent_column, xla_default_flags_option
from systolic.cli.options import (
    Sizes,
    TileSizes,
    Workers,
    chip_option,
    count_option,
    flag_option,
    output_options,
    worker_options,
)
from systolic.cli.output import SIMULATED, by_reason, check_target, give, heading, make_folder, note, versions, writing
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, say, show_table
from systolic.compiler import CompilerMissing, WorkerPool, check_available
from systolic.report.columns import Column, numeric, textual
from systolic.report.time_errors import error_column, error_lines
from systolic.report.written import us
from systolic.schedule import MIB, Tiles
from systolic.support.extras import check_drawing
from systolic.support.status import Status

if TYPE_CHECKING:
    from systolic.lessons.ladder.row import LadderRow
    from systolic.lessons.ladder.rungs import Rung

_COLUMNS: tuple[Column[LadderRow], ...] = (
    textual("rung", lambda row: row.rung),
    numeric("size", lambda row: f"{row.m}³"),
    numeric("tiles m/k/n", lambda row: f"{row.tile_m}/{row.tile_k}/{row.tile_n}"),
    textual("status", lambda row: row.status),
    numeric("simulated µs", lambda row: row.time_us, us),
    error_column(lambda row: row.time_error),
    numeric("Tflop/s", lambda row: row.tflops, ".1f", droppable=True),
    numeric("% of peak", lambda row: row.percent_of_peak, ".1f"),
    numeric("XLA simulated µs", lambda row: row.xla_time_us, us, droppable=True),
    error_column(lambda row: row.xla_time_error, "± XLA", droppable=True),
    numeric("× XLA", lambda row: row.ratio_to_xla, ".2f"),
    opponent_column(lambda row: row.xla_flags),
    numeric("stalls", lambda row: row.stall_share, ".0%", droppable=True),
    numeric("HBM MB", lambda row: row.hbm_bytes / 1e6 if row.hbm_bytes is not None else None, ",.0f", droppable=True),
    numeric(
        "× least",
        lambda row: row.hbm_bytes / row.least_hbm_bytes if row.hbm_bytes and row.least_hbm_bytes else None,
        ".1f",
        droppable=True,
    ),
    textual("check", lambda row: row.check, droppable=True),
    numeric("max error", lambda row: _error(row), droppable=True),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[v1 v2 … | all]")
@chip_option()
@flag_option
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="bfloat16",
    show_default=True,
    help="The dtype of both operands; int8 gives int32.",
)
@click.option(
    "--sizes",
    type=Sizes(),
    default="512,1024,2048,4096",
    show_default=True,
    help="Sizes m = k = n, separated by commas.",
)
@click.option("--tiles", type=TileSizes(), help="Tiles of v3 to v8, in place of their own choice.")
@count_option("--splits", 4, "N of v2's grid (N, N).")
@click.option("--sweep", is_flag=True, help="v4 and v5: compile and simulate candidate tiles, and take the best.")
@count_option("--sweep-trials", 8, "Candidates per size with --sweep.")
@xla_default_flags_option
@click.option("--check/--no-check", default=True, help="Compare with float64 in TPU interpret mode, up to size 1024.")
@click.option(
    "--plot", "plot_folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for one picture per rung."
)
@worker_options()
@output_options
def ladder(
    names: tuple[str, ...],
    chips: tuple[Chip, ...],
    dtype: str,
    sizes: tuple[int, ...],
    tiles: Tiles | None,
    splits: int,
    sweep: bool,
    sweep_trials: int,
    xla_default_flags: bool,
    check: bool,
    plot_folder: Path | None,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Run the ladder of eight matmul kernels: check each one, compile it, and show how fast it is.

    Every time is `simulated`: the real TPU compiler's program for the chip, executed on a model of it. XLA's own
    product of the same dtypes is timed the same way in the same run, with its default flags and with 64 MiB of scoped
    VMEM: the faster one counts, and the table names it. Exit code 1: a result is wrong, a time is missing, or
    nothing ran.

    \b
    Examples:
      systolic ladder all --chip v5e --dtype float32 --sizes 512,1024,2048
      systolic ladder v4 v5 --chip v6e --sizes 4096 --sweep
      systolic ladder v3 --sizes 2048 --tiles 256,256,256 --json ladder.json --plot plots
    """
    check_target(json_file)
    if plot_folder is not None:
        check_drawing()
        make_folder(plot_folder, plot_folder)
    if sweep and tiles is not None:
        raise click.UsageError("--tiles names the tiles and --sweep looks for them: give one of the two")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # results are checked in interpret mode, on the CPU
    missing = _missing_compiler()
    rows: list[LadderRow] = []
    with progress_bar(quiet=quiet) as bar, _pool(workers, missing) as pool:
        from systolic.lessons.ladder.runner import Request, run_ladder  # takes a second: the bar is shown first

        rungs = _rungs(names, sweep, tiles)
        for chip in chips:
            request = Request(
                rungs=rungs,
                chip=chip,
                dtype=dtype,
                sizes=sizes,
                tiles=tiles,
                splits=splits,
                sweep_trials=sweep_trials if sweep else None,
                checked=check,
                xla_default_flags=xla_default_flags,
            )
            rows += run_ladder(request, pool, bar)
    summary = _summary(rows)
    give(json_file, "ladder", (row.record() for row in rows), summary, lambda: _show(rows, summary))
    if plot_folder is not None:
        for path in _plot(rows, plot_folder):
            note(f"plot {path}", quiet=quiet)
    if missing:
        note(f"not compiled and not simulated: {missing}", quiet=False)
        return 1
    return 1 if summary["wrong"] or summary["untimed"] or not summary["ok"] else 0


def _rungs(names: tuple[str, ...], sweep: bool, tiles: Tiles | None) -> tuple[Rung, ...]:
    from systolic.lessons.ladder import UnknownRungError, rungs_named

    try:
        rungs = rungs_named(names)
    except UnknownRungError as error:
        raise click.UsageError(str(error)) from error
    # An option that is ignored silently would hide a mistake.
    if tiles is not None and not any(rung.takes_tiles for rung in rungs):
        raise click.UsageError(f"--tiles: {', '.join(rung.name for rung in rungs)} takes none; v3 to v8 do")
    if sweep and not any(rung.sweeps for rung in rungs):
        raise click.UsageError(
            f"--sweep: {', '.join(rung.name for rung in rungs)} has no tiles to find; v4 and v5 have"
        )
    return rungs


def _pool(workers: Workers, missing: str) -> AbstractContextManager[WorkerPool | None]:
    return nullcontext() if missing else workers.pool()


def _missing_compiler() -> str:
    try:
        check_available()
    except CompilerMissing as error:
        return str(error)
    return ""


def _summary(rows: Sequence[LadderRow]) -> dict[str, Any]:
    counts = Counter(row.status for row in rows)
    best = max(
        (row for row in rows if row.ratio_to_xla is not None), key=lambda row: row.ratio_to_xla or 0, default=None
    )
    return {
        "rows": len(rows),
        **{status: counts[status] for status in dict.fromkeys(("ok", "illegal", "refused", "wrong", *counts))},
        "untimed": sum(row.untimed for row in rows),
        "best_rung": best.rung if best else None,
        "best_size": best.m if best else None,
        "best_ratio_to_xla": best.ratio_to_xla if best else None,
    }


# ---- table ----


def _show(rows: Sequence[LadderRow], summary: dict[str, Any]) -> None:
    out = console()
    reasons = {row.reason for row in rows}
    if not summary["ok"] and not summary["wrong"] and len(reasons) == 1:
        what = f"{rows[0].rung} at {rows[0].m}³" if len(rows) == 1 else "every rung and size"
        say(f"{what} is {rows[0].status}: {reasons.pop()}")
        return
    names = list(dict.fromkeys(row.chip for row in rows))
    how = SIMULATED if versions()["libtpu"] else "times are not known"
    heading(out, names, f"{rows[0].dtype} → {rows[0].dtype_out}", how, flags=rows[0].flags)
    out.print(_verdict(summary))
    for name in names:
        shown = [row for row in rows if row.chip == name]
        out.print(f"\n[bold]{name}[/]" if len(names) > 1 else "")
        show_table(out, _COLUMNS, shown)
    errors = (error for row in rows for error in (row.time_error, row.xla_time_error))
    for finding in (*error_lines(errors), *_findings(rows)):
        out.print(finding, markup=False, soft_wrap=True)


def _verdict(summary: dict[str, Any]) -> str:
    parts = [f"{summary[status]} {status}" for status in get_args(Status) if summary.get(status)]
    verdict = f"{summary['rows']} rows: {', '.join(parts)}"
    if summary["untimed"]:
        verdict += f"; {summary['untimed']} without a time"
    if summary["best_ratio_to_xla"]:
        best = f"{summary['best_rung']} at {summary['best_size']}³"
        verdict += f"; best {best}: {summary['best_ratio_to_xla']:.2f} × XLA's speed"
    return verdict


def _error(row: LadderRow) -> str | None:
    if row.max_abs_error is None or row.tolerance is None:
        return None
    return f"{row.max_abs_error:.2g} of {row.tolerance:.2g}"


def _findings(rows: Sequence[LadderRow]) -> list[str]:
    """Return why rows have no time, and how their tiles were chosen; a reason that several sizes share appears once."""
    several = len({row.chip for row in rows}) > 1
    lines = by_reason(
        (
            f"{f'{row.chip} ' if several else ''}{row.rung} is {row.status}",
            _reason(row) if row.reason else "",
            f"{row.m}³",
        )
        for row in rows
    )
    return ["", *lines] if lines else []


# What to try if VMEM was not enough, or N does not divide.
_VMEM_ADVICE = {"v1": "go on to v3", "v2": "--splits N with a larger N, or go on to v3"}


def _reason(row: LadderRow) -> str:
    requested_bytes, available_bytes = row.vmem_requested_bytes, row.vmem_available_bytes
    if row.status == "illegal" and row.rung == "v2" and "use N=" in row.reason:
        return f"{row.reason} (--splits N)"
    if row.status != "refused" or requested_bytes is None or available_bytes is None:
        return row.reason
    text = row.reason
    if "MiB" not in text:
        text += f" (asked for {requested_bytes / MIB:.2f} MiB of VMEM, there are {available_bytes / MIB:.2f} MiB)"
    return f"{text}; try: {_VMEM_ADVICE.get(row.rung, '--sweep, or smaller --tiles')}"


# ---- plots ----


def _plot(rows: Sequence[LadderRow], folder: Path) -> list[Path]:
    from systolic.report import RatePoint, rates_plot, save_png

    made = []
    for chip, rung in dict.fromkeys((row.chip, row.rung) for row in rows):
        of_chip = [row for row in rows if row.chip == chip]
        shown = [row for row in of_chip if row.rung == rung]
        peak = shown[0].peak_tflops
        if peak is None:  # the chip does not multiply this dtype
            continue
        dtype = shown[0].dtype
        with writing(folder):
            plot = rates_plot(
                [RatePoint(size=row.m, tflops=row.tflops, status=row.status) for row in shown],
                title=f"{rung} on {chip}, {dtype}",
                kernel=rung,
                provenance="simulated",
                peak_tflops=peak,
                xla_tflops={row.m: row.xla_tflops for row in of_chip if row.xla_tflops is not None},
            )
            made.append(save_png(plot, folder / f"ladder_{rung}_{chip}_{dtype}.png"))
    return made
