"""Simulated times beside times that other people measured on real TPUs.

    python benchmarks/published_times.py published_times.csv --json build/published.json

The CSV has the columns source, chip, op, m, k, n, dtype_lhs, dtype_rhs, dtype_out, tile_m, tile_k, tile_n, time_us,
timing, notes. A row whose timing is `wall_clock` is the mean of repeated calls as Python saw them: it holds what the
host needs to send one call off, 100 to 130 µs by the sources' own account, during which the device has nothing to do.
`--dispatch-us` (115, the middle) is taken off such rows before the error is formed; a product that takes 20 µs cannot
be judged this way, which is why rows from 2048 up are counted apart.
"""

from __future__ import annotations

import csv
import functools
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console

from systolic.bench import abstract_operands, xla_matmul
from systolic.chips import chip as chip_named
from systolic.cli.output import check_target, progress_bar, table, versions, write_json
from systolic.compiler import CompilerError, WorkerPool
from systolic.lessons.ladder import RUNGS
from systolic.measure import Measurement, submit_simulation
from systolic.problem import MatmulProblem
from systolic.simulator import SimulationError
from systolic.tiling import Tiles

# The notebook's kernel is the ladder's v5: blocks, a float32 scratch accumulator, k innermost.
_RUNG_OF = {**{f"ladder_{name}": name for name in RUNGS}, "block_matmul_f32_scratch": "v5"}
_LARGE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program: rows that ask for the same share it."""

    chip: str
    rung: str  # or "xla"
    problem: MatmulProblem
    tiles: Tiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One published time and what the simulator says; `reason` where it says nothing."""

    source: str
    chip: str
    op: str
    m: int
    k: int
    n: int
    dtype: str
    tiles: str
    timing: str
    published_us: float
    dispatch_us: float
    simulated_us: float | None
    error: float | None
    reason: str


def job_of(row: dict[str, str]) -> Job | str:
    """The program behind a row, or why there is none."""
    if "one of the two cores" in row["notes"]:
        return "one of the device's two cores was timed; a simulated device uses both"
    rung = "xla" if row["op"] == "xla" else _RUNG_OF.get(row["op"])
    if rung is None:
        return f"op {row['op']!r} is not known"
    problem = MatmulProblem(
        m=int(row["m"]),
        k=int(row["k"]),
        n=int(row["n"]),
        dtype_lhs=row["dtype_lhs"],
        dtype_rhs=row["dtype_rhs"],
        dtype_out=row["dtype_out"],
    )
    if rung == "xla":
        return Job(chip=row["chip"], rung=rung, problem=problem, tiles=None)
    if rung in ("v1", "v2"):
        return Job(chip=row["chip"], rung=rung, problem=problem, tiles=RUNGS[rung].default_tiles(problem, 4))
    tiles = Tiles(tile_m=int(row["tile_m"]), tile_k=int(row["tile_k"]), tile_n=int(row["tile_n"]))
    return Job(chip=row["chip"], rung=rung, problem=problem, tiles=tiles)


def submit(pool: WorkerPool, job: Job) -> Future[Measurement]:
    """Has the job compiled and simulated."""
    function = xla_matmul(job.problem)
    if job.tiles is not None:
        function = functools.partial(RUNGS[job.rung].multiply, tiles=job.tiles, dtype_out=job.problem.dtype_out)
    label = f"{job.chip} {job.rung} {job.problem.m} {job.problem.dtype_lhs}"
    return submit_simulation(pool, function, abstract_operands(job.problem), chip_named(job.chip), label=label)


def compared(row: dict[str, str], job: Job | str, futures: dict[Job, Future[Measurement]], dispatch_us: float):
    """The row with its simulated time and the error."""
    published = float(row["time_us"])
    taken_off = dispatch_us if row["timing"] == "wall_clock" else 0.0
    simulated, reason = None, job if isinstance(job, str) else ""
    if not isinstance(job, str):
        try:
            simulated = futures[job].result().time_us
        except (CompilerError, SimulationError) as error:
            reason = str(error).splitlines()[0]
    return ComparedRow(
        source=row["source"],
        chip=row["chip"],
        op=row["op"],
        m=int(row["m"]),
        k=int(row["k"]),
        n=int(row["n"]),
        dtype=row["dtype_lhs"],
        tiles="/".join(row[f"tile_{letter}"] for letter in "mkn").strip("/"),
        timing=row["timing"],
        published_us=published,
        dispatch_us=taken_off,
        simulated_us=simulated,
        error=None if simulated is None else simulated / (published - taken_off) - 1,
        reason=reason,
    )


def statistics_of(rows: Sequence[ComparedRow]) -> dict[str, dict[str, float]]:
    """Errors by chip, of all rows and of those from 2048 up."""
    found: dict[str, dict[str, float]] = {}
    for chip in dict.fromkeys(row.chip for row in rows):
        for name, least in (("all", 1), (f"from {_LARGE}", _LARGE)):
            counted = [row for row in rows if row.chip == chip and min(row.m, row.n) >= least]
            errors = [row.error for row in counted if row.error is not None]
            if errors:
                sizes = sorted(map(abs, errors))
                # Several sources timed the same product: so many rows are not so many independent checks.
                programs = {
                    (_RUNG_OF.get(row.op, row.op), row.m, row.k, row.n, row.dtype, row.tiles)
                    for row in counted
                    if row.error is not None
                }
                found[f"{chip}, {name}"] = {
                    "rows": len(errors),
                    "programs": len(programs),
                    "median_error": statistics.median(sizes),
                    "p90_error": sizes[min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))],
                    "worst_error": sizes[-1],
                    "bias": statistics.median(errors),
                }
    return found


@click.command()
@click.argument("csv_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--chip", "chips", help="Only these, with commas.")
@click.option("--dispatch-us", default=115.0, show_default=True, help="Taken off wall-clock rows.")
@click.option("--json", "json_file", metavar="FILE|-", help="Write rows and summary as one JSON object.")
def main(csv_file: Path, chips: str | None, dispatch_us: float, json_file: str | None) -> None:
    """Compile and simulate every row of CSV_FILE, and compare."""
    with csv_file.open(newline="") as file:
        published = [row for row in csv.DictReader(file) if not chips or row["chip"] in chips.split(",")]
    if not published:
        raise click.UsageError(f"{csv_file} has no row" + (f" of {chips}" if chips else ""))
    check_target(json_file)
    jobs = [job_of(row) for row in published]
    distinct = dict.fromkeys(job for job in jobs if isinstance(job, Job))
    with WorkerPool() as pool, progress_bar(quiet=False) as bar:
        bar.planned(len(distinct))
        futures = {job: submit(pool, job) for job in distinct}
        for job, future in futures.items():
            future.add_done_callback(lambda _, job=job: bar.done(f"{job.chip} {job.rung} {job.problem.m}"))
        rows = [compared(row, job, futures, dispatch_us) for row, job in zip(published, jobs, strict=True)]
    summary = statistics_of(rows)
    if json_file is not None:
        write_json(json_file, "published_times", [asdict(row) for row in rows], summary)
        if json_file == "-":
            return
    show(rows, summary, dispatch_us)


def show(rows: Sequence[ComparedRow], summary: dict[str, dict[str, float]], dispatch_us: float) -> None:
    """Prints rows and statistics."""
    out = Console(width=160, highlight=False)
    packages = {name: text for name, text in versions().items() if text}
    out.print(f"python {' '.join(sys.argv)}   ·   {', '.join(f'{name} {text}' for name, text in packages.items())}")
    out.print(
        f"{dispatch_us:.0f} µs are taken off wall-clock rows, in the error only: the mean wall clock of repeated calls "
        "holds 100 to 130 µs of Python and host dispatch a call, as the sources themselves say.\n"
    )
    columns = ("chip", "op", "size m/k/n", "dtype", "tiles", "timing", "published µs", "simulated µs", "error")
    lines = [
        (
            row.chip,
            row.op,
            f"{row.m}/{row.k}/{row.n}",
            row.dtype,
            row.tiles,
            row.timing,
            f"{row.published_us:,.1f}",
            "–" if row.simulated_us is None else f"{row.simulated_us:,.1f}",
            "–" if row.error is None else f"{row.error:+.1%}",
        )
        for row in rows
    ]
    out.print(table(columns, lines, left=("chip", "op", "dtype", "timing")))
    for row in rows:
        if row.reason:
            out.print(f"{row.chip} {row.op} {row.m}/{row.k}/{row.n}: {row.reason}", soft_wrap=True)
    names = ("chip, sizes", "rows", "programs", "median", "90th percentile", "worst", "bias")
    keys = ("median_error", "p90_error", "worst_error", "bias")
    found = [
        (name, f"{figures['rows']:.0f}", f"{figures['programs']:.0f}", *(f"{figures[key]:.1%}" for key in keys))
        for name, figures in summary.items()
    ]
    out.print("")
    out.print(table(names, found, left=("chip, sizes",)))


if __name__ == "__main__":
    main()
