"""Read published rows from files and build their programs, for `validate` and `calibrate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from systolic.chips import Chip, FlagError, UnknownChipError, flags_text
from systolic.cli.options import READ_FILE, FiniteFloat, worker_options
from systolic.report.columns import Column, numeric, textual
from systolic.validation.device_times import SUFFIX, only_kinds, read_device_times, sampled
from systolic.validation.errors import ComparedRow, PublishedProgram, chip_of, program_or_reason
from systolic.validation.published import PublishedRow, read_published

_F = TypeVar("_F", bound=Callable[..., Any])

# Columns of the timed program.
PROGRAM: tuple[Column[ComparedRow], ...] = (
    textual("chip", lambda row: row.chip),
    textual("op", lambda row: row.op),
    numeric("m/k/n", lambda row: row.sizes),
    textual("dtypes", lambda row: row.dtypes),
    numeric("tiles m/k/n", lambda row: row.tiles, droppable=True),
    textual("flags", lambda row: flags_text(row.flags), droppable=True, optional=True),
)


def published_options(*, several: bool) -> Callable[[_F], _F]:
    """Add the argument for one file or several, `--dispatch-us` and the options of workers to a command."""

    def decorated(command: _F) -> _F:
        command = worker_options("one program", time_limit_s=600)(command)
        command = click.option(
            "--dispatch-us",
            type=FiniteFloat(min=0),
            default=115.0,
            show_default=True,
            help="The host's time for one call, subtracted from wall clock times before they are compared.",
        )(command)
        csv_file = READ_FILE
        name = "csv_files" if several else "csv_file"
        return click.argument(
            name, metavar="FILE…" if several else "FILE", type=csv_file, nargs=-1 if several else 1, required=True
        )(command)

    return decorated


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows of the files that a command compares.

    Attributes:
      kinds: only rows of these kinds; (): of all.
      sample: rows of each chip and kind; None: all.
      seed: of the sample.
      kept_in: only rows that are in this file of results; None: all.
    """

    kinds: tuple[str, ...] = ()
    sample: int | None = None
    seed: int = 0
    kept_in: Path | None = None

    def of(self, rows: Sequence[PublishedRow]) -> tuple[PublishedRow, ...]:
        kinds = dict.fromkeys(row.kind for row in rows)
        if unknown := [kind for kind in self.kinds if kind not in kinds]:
            raise click.UsageError(f"--only {unknown[0]}: no row is of this kind; choose from {', '.join(kinds)}")
        chosen = only_kinds(rows, self.kinds)
        return chosen if self.sample is None else sampled(chosen, self.sample, self.seed)


def rows_of(
    csv_files: Sequence[Path],
    chips: Sequence[Chip],
    flags: Mapping[str, str] | None = None,
    selection: Selection | None = None,
) -> tuple[PublishedRow, ...]:
    """Return the selected rows of all files.

    Args:
      chips: only rows of these chips; (): of all.
      flags: for every program; they override its row's own flags.

    Raises:
      PublishedFileError: a file cannot be read.
      click.UsageError: there is no such row.
    """
    names = {chip.name for chip in chips}
    all_rows = (row for file in csv_files for row in _read(file))
    flagged = (replace(row, flags={**row.flags, **(flags or {})}) for row in all_rows)
    rows = tuple(row for row in flagged if not names or _chip_name(row) in names)
    if not rows:
        of_chips = f" of {', '.join(sorted(names))}" if names else ""
        raise click.UsageError(f"{', '.join(map(str, csv_files))} has no row{of_chips}")
    return rows if selection is None else selection.of(rows)


def _read(file: Path) -> tuple[PublishedRow, ...]:
    return read_device_times(file) if file.suffix == SUFFIX else read_published(file)


def _chip_name(row: PublishedRow) -> str:
    try:
        return chip_of(row).name
    except (UnknownChipError, FlagError):
        return row.chip


def programs_of(rows: Sequence[PublishedRow]) -> list[PublishedProgram | str]:
    """Return each row's program, or the reason why it has none. Imports JAX, which takes a second."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # only shapes are used here, which needs no device
    from systolic.lessons.published_ops import published_program

    return [program_or_reason(row, published_program) for row in rows]


def reason_lines(rows: Sequence[ComparedRow]) -> list[str]:
    """Return why rows are not counted, with their lines in the file; rows with the same reason share a line."""
    grouped: dict[str, list[ComparedRow]] = {}
    for row in rows:
        if row.reason:
            grouped.setdefault(row.reason, []).append(row)
    result = []
    for reason, shared in grouped.items():
        names = dict.fromkeys(f"{row.chip} {row.op} {row.sizes}" for row in shared)
        lines = ", ".join(str(row.line) for row in shared)
        result.append(f"not counted, line{'s' * (len(shared) > 1)} {lines} ({', '.join(names)}): {reason}")
    return result
