"""`systolic calibrate`: constants of a chip's model, fitted to published times."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from systolic.chips import Chip
from systolic.chips.constants import fittable
from systolic.cli.calibration_tables import show_fit, show_rows
from systolic.cli.options import WRITTEN_FILE, ChipNames, Workers, output_options
from systolic.cli.output import check_target, give, note, versions, write_text
from systolic.cli.progress import progress_bar
from systolic.cli.published import programs_of, published_options, rows_of
from systolic.compiler import check_available
from systolic.support.choices import unknown_name
from systolic.validation.calibration import (
    BRACKET,
    SPLIT,
    USUALLY_FITTED,
    Calibration,
    most_rounds,
    require_programs,
    split,
)
from systolic.validation.calibration import calibrate as fit
from systolic.validation.errors import ComparedRow, ErrorStatistics, compared, error_statistics
from systolic.validation.predictions import compared_rows, predicted_us, prepared, samples

_HALVES = ("fit", "check")


@click.command()
@published_options(several=False)
@click.option("--chip", "chips", type=ChipNames(), required=True, help="The chip whose constants are fitted: one.")
@click.option(
    "--fit",
    "names",
    default=",".join(USUALLY_FITTED),
    show_default=", ".join(USUALLY_FITTED),
    help="Constants to fit, separated by commas; also clock_hz and result_latency_cycles.",
)
@click.option(
    "--out",
    "out_file",
    type=WRITTEN_FILE,
    metavar="FILE",
    help="Write the fitted constants, for `systolic validate --constants FILE`.",
)
@output_options
def calibrate(
    csv_file: Path,
    chips: tuple[Chip, ...],
    names: str,
    dispatch_us: float,
    out_file: Path | None,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Fit constants of a chip's model to half of the published programs in CSV, and check them on the other half.

    CSV has the columns of `systolic validate`. Programs are sorted by their published times; one is fitted to and
    the next is checked, in turn. At least four programs are needed. A constant's bracket is as far as it can move alone
    while the fit stays within 15 % of the best: a wide one means that these rows do not determine it.

    \b
    Examples:
      systolic calibrate published_times.csv --chip v5e
      systolic calibrate published_times.csv --chip v7x --fit clock_hz,dma_latency_cycles --out v7x.json
    """
    check_target(json_file)
    check_target(out_file)
    if len(chips) != 1:
        raise click.UsageError(f"--chip {','.join(chip.name for chip in chips)}: constants are fitted for one chip")
    chip = chips[0]
    chosen = _constants(names, chip)
    published = rows_of((csv_file,), chips)
    check_available()
    with progress_bar(quiet=quiet) as bar:
        programs = programs_of(published)
        plain = [compared(*pair, 1.0, dispatch_us=dispatch_us) for pair in zip(published, programs, strict=True)]
        # Before an hour of compiling.
        require_programs(len({row.program for row in plain if row.counted}), chip)
        with workers.pool() as pool:
            ready = prepared(pool, programs, chip, bar)
        before, seconds = predicted_us(ready, chip)
        rows_before = compared_rows(published, programs, before, dispatch_us=dispatch_us)
        found_samples = samples(rows_before, programs, ready)
        fitting, _ = split(found_samples, chip)
        round_s = sum(seconds[sample.name] for sample in fitting)
        rounds = most_rounds(len(chosen))
        note(
            f"{len(found_samples)} programs, {len(fitting)} to fit: simulating these once takes {round_s:.1f} s, "
            f"and is done up to {rounds} times: at most {rounds * round_s / 60:.0f} minutes, usually half of that",
            quiet=quiet,
        )
        bar.planned(rounds)
        started = time.perf_counter()
        calibration = fit(found_samples, chip, chosen, done=bar.done)
        fit_s = time.perf_counter() - started
        after, _ = predicted_us(ready, calibration.chip)
    rows_after = compared_rows(published, programs, after, dispatch_us=dispatch_us)
    halves = [_half(row, calibration) for row in rows_after]
    statistics = {half: _statistics(half, halves, rows_before, rows_after) for half in _HALVES}
    records = (
        {**asdict(row), "half": half, "predicted_before_us": old.predicted_us, "error_before": old.error}
        for row, old, half in zip(rows_after, rows_before, halves, strict=True)
    )

    def show() -> None:
        show_fit(calibration, statistics, dispatch_us, fit_s)
        show_rows(rows_before, rows_after, halves)

    give(json_file, "calibrate", records, _summary(calibration, statistics, fit_s), show)
    if out_file is not None:
        _write_constants(out_file, calibration, csv_file, dispatch_us)
        note(f"constants {out_file}", quiet=quiet)
    return 0


def _constants(names: str, chip: Chip) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    fittable_names = fittable(chip)
    for name in chosen:
        if name not in fittable_names:
            raise click.UsageError(f"--fit: {unknown_name('constant', name, fittable_names)}")
    return chosen


def _half(row: ComparedRow, calibration: Calibration) -> str | None:
    if not row.counted:
        return None
    return "fit" if row.program in calibration.fitted_on else "check"


def _statistics(
    half: str, halves: Sequence[str | None], before: Sequence[ComparedRow], after: Sequence[ComparedRow]
) -> tuple[ErrorStatistics, ErrorStatistics]:
    """Return the errors of one half, with the shipped and with the fitted constants."""

    def of(rows: Sequence[ComparedRow]) -> ErrorStatistics:
        return error_statistics([row for row, row_half in zip(rows, halves, strict=True) if row_half == half])

    return of(before), of(after)


def _summary(
    calibration: Calibration, statistics: Mapping[str, tuple[ErrorStatistics, ErrorStatistics]], fit_s: float
) -> dict[str, Any]:
    return {
        "chip": calibration.chip.name,
        "constants": {
            constant.name: {**asdict(constant), "determined": constant.determined} for constant in calibration.constants
        },
        "objective": "mean over programs of |log(predicted / device time)|",
        "objective_before": calibration.objective_before,
        "objective_after": calibration.objective_after,
        "bracket": BRACKET,
        "rounds": calibration.rounds,
        "fit_s": fit_s,
        "split": SPLIT,
        "fitted_on": calibration.fitted_on,
        "checked_on": calibration.checked_on,
        **{half: {"before": asdict(old), "after": asdict(new)} for half, (old, new) in statistics.items()},
    }


def _write_constants(target: Path, calibration: Calibration, csv_file: Path, dispatch_us: float) -> None:
    document = {
        "chip": calibration.chip.name,
        "constants": {constant.name: constant.fitted for constant in calibration.constants},
        "brackets": {constant.name: [constant.low, constant.high] for constant in calibration.constants},
        "fitted_on": calibration.fitted_on,
        "checked_on": calibration.checked_on,
        "published": csv_file.name,
        "dispatch_us": dispatch_us,
        "versions": versions(),
    }
    write_text(target, json.dumps(document, indent=2) + "\n")
