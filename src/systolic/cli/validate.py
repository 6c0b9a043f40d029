"""`systolic validate`: compare simulated times with published times of real TPUs."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from systolic.accuracy.kind_errors import KindErrorsTable
from systolic.accuracy.time_error import TimeErrors
from systolic.chips import Chip, known_chip
from systolic.chips.constants import FittedConstants, load_constants, with_constants
from systolic.cli.options import WRITTEN_FILE, ChipNames, Workers, constants_option, output_options, xla_flag
from systolic.cli.output import check_drawing_target, check_target, give, note, versions, write_text, writing
from systolic.cli.progress import progress_bar
from systolic.cli.published import Selection, programs_of, published_options, rows_of
from systolic.cli.validation_tables import coverage_text, show_comparison
from systolic.compiler import check_available
from systolic.timing import Measurement
from systolic.timing.runner import Runner
from systolic.validation.errors import ChipStatistics, ComparedRow, collective_statistics, statistics_by_chip
from systolic.validation.intervals import compared_programs, time_errors
from systolic.validation.kept_results import KeptResults
from systolic.validation.kind_statistics import kind_statistics
from systolic.validation.predictions import compared_rows, simulated
from systolic.validation.published import COLLECTIVE


@click.command()
@published_options(several=True)
@click.option("--chip", "chips", type=ChipNames(), default=(), help="Only rows of these chips, separated by commas.")
@click.option("--only", "kinds", default="", metavar="KINDS", help="Only rows of these kinds, separated by commas.")
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="N rows of each chip and kind, drawn at random."
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the sample. With one seed, larger samples contain the smaller ones.",
)
@click.option(
    "--resume",
    "resume_file",
    type=WRITTEN_FILE,
    metavar="FILE.jsonl",
    help="Store each result in this file, and reuse the results that it has.",
)
@click.option(
    "--kept",
    "only_kept",
    is_flag=True,
    help="Only rows that are in the file of --resume; they are simulated again if constants or the simulator changed.",
)
@xla_flag
@constants_option
@click.option("--plot", "plot_file", type=WRITTEN_FILE, metavar="FILE.png", help="Draw simulated over measured times.")
@click.option(
    "--page",
    "page_file",
    type=WRITTEN_FILE,
    metavar="FILE.md",
    help="Write the page on how far to trust a time, with its tables in a folder next to it.",
)
@click.option(
    "--intervals",
    "intervals_file",
    type=WRITTEN_FILE,
    metavar="FILE.json",
    help="Write the errors of each kind of program, in the format of src/systolic/accuracy/time_errors.json.",
)
@click.option(
    "--kinds",
    "kinds_file",
    type=WRITTEN_FILE,
    metavar="FILE.json",
    help="Write the errors by chip and kind of program, in the format of src/systolic/accuracy/kind_errors.json.",
)
@output_options
def validate(
    csv_files: tuple[Path, ...],
    chips: tuple[Chip, ...],
    kinds: str,
    sample: int | None,
    seed: int,
    resume_file: Path | None,
    only_kept: bool,
    xla_flags: tuple[tuple[str, str], ...],
    dispatch_us: float,
    constants_file: Path | None,
    plot_file: Path | None,
    page_file: Path | None,
    intervals_file: Path | None,
    kinds_file: Path | None,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Simulate programs whose times were published, and show how far off the simulated times are.

    A file of JSON lines records operations: {op, chip, arguments, config, time_us, spread, samples}, as tokamax' tuning
    tables have them. Its errors are shown by kind, of the half of the operations that constants may be fitted to and of
    the other. Some operations need the package tokamax.

    A CSV file has the columns source, chip, op, m, k, n, dtype_lhs, dtype_rhs, dtype_out, tile_m, tile_k, tile_n,
    time_us, timing (wall_clock, device or bandwidth-derived) and notes. Known ops are xla, ladder_v1 to ladder_v5 and
    block_matmul_f32_scratch, some of them followed by _rhs_transposed and _relu. With a column kind, operations of
    other kinds too: copy, grouped (JAX's megablox), attention (JAX's splash), collective (ppermute, psum and all_gather
    over a slice that a column topology names); with input_buffer_count, rows of tokamax' cache of ragged products. A
    row's compiler flags, and with them its clock state, are in a column flags, or else in what its notes and software
    state. A row that cannot be compared is listed with the reason. Exit code 1: no row could be predicted.

    \b
    Examples:
      systolic validate published_times.csv
      systolic validate published_times.csv published_ops.csv --chip v7x,v7x@p7 --json errors.json
      systolic validate published_collectives.csv
      systolic validate published_device_times.jsonl --sample 30 --resume results.jsonl
      systolic validate published_times.csv --plot docs/trust.png --page docs/trust.md
    """
    check_target(json_file)
    check_drawing_target(plot_file)
    check_drawing_target(page_file)
    for file in (intervals_file, kinds_file, resume_file):
        check_target(file)
    if only_kept and resume_file is None:
        raise click.UsageError("--kept needs --resume FILE, whose rows it compares again")
    selection = Selection(
        kinds=tuple(filter(None, kinds.split(","))),
        sample=sample,
        seed=seed,
        kept_in=resume_file if only_kept else None,
    )
    published = rows_of(csv_files, chips, dict(xla_flags), selection)
    constants = None if constants_file is None else load_constants(constants_file)
    in_use: dict[str, Chip] = {}
    if constants is not None:
        changed = known_chip(constants.chip)
        if changed is None or (chips and changed.name not in {chip.name for chip in chips}):
            raise click.UsageError(
                f"{constants_file} holds constants of {constants.chip}, and no row of this chip is selected"
            )
        in_use[changed.name] = with_constants(changed, constants)
    check_available()
    results = None if resume_file is None else KeptResults(resume_file, versions())
    programs = programs_of(published)
    if only_kept and results is not None:
        pairs = [(row, program) for row, program in zip(published, programs, strict=True) if program in results]
        published, programs = [row for row, _ in pairs], [program for _, program in pairs]
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        predicted = simulated(Runner(pool, bar), programs, in_use, results)
    fitted_on = () if constants is None else constants.fitted_on
    rows = compared_rows(published, programs, predicted, dispatch_us=dispatch_us, fitted_on=fitted_on)
    intervals = None
    if intervals_file is not None:
        outputs = {"--constants": constants_file, "--intervals": intervals_file}
        command = _command(csv_files, chips, dict(xla_flags), dispatch_us, outputs, selection)
        timed = {str(program): time for program, time in predicted.items() if isinstance(time, Measurement)}
        made_with = {name: text for name, text in versions().items() if text}
        intervals = time_errors(compared_programs(rows, timed), command=command, versions=made_with, chips=in_use)
        rows = [_with_interval(row, timed.get(row.program), intervals, in_use) for row in rows]
    statistics = statistics_by_chip(rows)
    summary = {name: chip_statistics.record() for name, chip_statistics in statistics.items()}
    summary |= {name: asdict(group_statistics) for name, group_statistics in collective_statistics(rows).items()}
    recorded = kind_statistics([row for row in rows if row.arguments])
    summary |= {"kinds": list(map(asdict, recorded))} if recorded else {}
    show = functools.partial(show_comparison, rows, statistics, dispatch_us, constants, recorded)
    give(json_file, "validate", map(asdict, rows), summary, show)
    if intervals_file is not None and intervals is not None:
        write_text(intervals_file, intervals.as_json())
        note(f"intervals {intervals_file}; {coverage_text(intervals)}", quiet=quiet)
    if kinds_file is not None:
        command = _command(csv_files, chips, dict(xla_flags), dispatch_us, {"--kinds": kinds_file}, selection)
        made_with = {name: text for name, text in versions().items() if text}
        write_text(kinds_file, KindErrorsTable(command=command, versions=made_with, kinds=recorded).as_json())
        note(f"errors by kind {kinds_file}", quiet=quiet)
    if plot_file is not None:
        note(_plot(rows, plot_file), quiet=quiet)
    if page_file is not None:
        used = [chip for name in statistics if (chip := in_use.get(name) or known_chip(name)) is not None]
        outputs = {"--constants": constants_file, "--plot": plot_file, "--page": page_file}
        command = _command(csv_files, chips, dict(xla_flags), dispatch_us, outputs, selection)
        _write_page(rows, statistics, used, command, dispatch_us, constants, plot_file, page_file)
        note(f"page {page_file}", quiet=quiet)
    return 0 if any(row.predicted_us is not None for row in rows) else 1


def _with_interval(
    row: ComparedRow, timed: Measurement | None, intervals: TimeErrors, chips: Mapping[str, Chip]
) -> ComparedRow:
    """Return the row with the interval of this comparison in place of the shipped one."""
    traits = None if timed is None else timed.traits
    row_chip = chips.get(row.chip) or known_chip(row.chip)
    if traits is None or row_chip is None:
        return row
    return replace(row, time_error=intervals.of(row_chip, traits))


def _plot(rows: Sequence[ComparedRow], target: Path) -> str:
    from systolic.report import save_png
    from systolic.report.validation_plot import TimePoint, predictions_plot

    points = [
        TimePoint(chip=row.chip, measured_us=row.published_us - row.dispatch_us, predicted_us=row.predicted_us)
        for row in rows
        if row.counted and row.predicted_us is not None and row.kind != COLLECTIVE
    ]
    if not points:
        return "no plot: no row is counted"
    with writing(target):
        save_png(predictions_plot(points, title="Simulated over published times", provenance="simulated"), target)
    return f"plot {target}"


def _write_page(
    rows: Sequence[ComparedRow],
    statistics: Mapping[str, ChipStatistics],
    chips: Sequence[Chip],
    command: str,
    dispatch_us: float,
    constants: FittedConstants | None,
    plot_file: Path | None,
    target: Path,
) -> None:
    from systolic.report.trust import TrustFacts, trust_pages

    plot = None
    if plot_file is not None and plot_file.exists():
        plot = Path(os.path.relpath(plot_file.resolve(), target.resolve().parent)).as_posix()
    facts = TrustFacts(
        command=command,
        versions={name: text for name, text in versions().items() if text},
        dispatch_us=dispatch_us,
        rows=rows,
        statistics=statistics,
        chips=chips,
        constants=constants,
        plot=plot,
        page=target.name,
    )
    for name, text in trust_pages(facts).items():
        write_text(target.parent / name, text)


def _command(
    csv_files: Sequence[Path],
    chips: Sequence[Chip],
    flags: Mapping[str, str],
    dispatch_us: float,
    files: Mapping[str, Path | None],
    selection: Selection,
) -> str:
    """Return the command that makes a file. Absolute paths are cut to names, because it is for other machines, too."""
    words = ["systolic", "validate", *(file.name for file in csv_files)]
    if chips:
        words += ["--chip", ",".join(chip.name for chip in chips)]
    if selection.kinds:
        words += ["--only", ",".join(selection.kinds)]
    if selection.sample is not None:
        words += ["--sample", str(selection.sample), "--seed", str(selection.seed)]
    if selection.kept_in is not None:
        words += ["--kept", "--resume", selection.kept_in.name]
    for name, value in flags.items():
        words += ["--xla-flag", f"{name}={value}"]
    words += ["--dispatch-us", f"{dispatch_us:g}"]
    for option, file in files.items():
        if file is not None:
            words += [option, file.name if file.is_absolute() else file.as_posix()]
    return " ".join(words)
