"""What `validate` and `calibrate` share: the rows of a CSV file, the programs behind them, and how a row is shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from systolic.chips import Chip, UnknownChipError, chip
from systolic.cli.options import FiniteFloat, worker_options
from systolic.compiler import CompilerError, CompilerRefusal
from systolic.simulator import SimulationError
from systolic.validation.errors import ComparedRow, ErrorStatistics, PublishedProgram, program_or_reason
from systolic.validation.published import PublishedRow, read_published

_F = TypeVar("_F", bound=Callable[..., Any])

# What compiling or simulating one row's program may end in. Tracing raises what the traced function raises.
ROW_ERRORS = (CompilerError, SimulationError, ValueError, TypeError, RuntimeError, ArithmeticError)

STATISTICS = ("rows", "programs", "median", "90th percentile", "worst", "bias")


def published_options(command: _F) -> _F:
    """The CSV file and how its programs are compiled."""
    csv_file = click.Path(exists=True, dir_okay=False, path_type=Path)
    command = worker_options("one program", time_limit_s=600)(command)
    command = click.option(
        "--dispatch-us",
        type=FiniteFloat(min=0),
        default=115.0,
        show_default=True,
        help="What the host needs for one call: taken off wall-clock rows before the error is formed.",
    )(command)
    return click.argument("csv_file", metavar="CSV", type=csv_file)(command)


def rows_of(csv_file: Path, chips: Sequence[Chip]) -> tuple[PublishedRow, ...]:
    """The file's rows, of these chips if there are any.

    Raises:
      PublishedFileError: the file cannot be read.
      click.UsageError: there is no such row.
    """
    names = {known.name for known in chips}
    rows = tuple(row for row in read_published(csv_file) if not names or _chip_name(row) in names)
    if not rows:
        raise click.UsageError(f"{csv_file} has no row" + (f" of {', '.join(sorted(names))}" if names else ""))
    return rows


def _chip_name(row: PublishedRow) -> str:
    try:
        return chip(row.chip).name
    except UnknownChipError:
        return row.chip


def programs_of(rows: Sequence[PublishedRow]) -> list[PublishedProgram | str]:
    """The program of each row, or why it has none. Imports JAX, which takes a second."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # shapes alone are looked at here, and no device is needed for that
    from systolic.lessons.published_ops import published_program

    return [program_or_reason(row, published_program) for row in rows]


def reason_of(error: BaseException) -> str:
    """One line of what went wrong with a row's program."""
    # Where in this library's source a refusal arose says nothing about the row.
    text = error.summary if isinstance(error, CompilerRefusal) else str(error)
    lines = text.strip().splitlines()
    return lines[0] if lines else type(error).__name__


def program_cells(row: ComparedRow) -> tuple[str, str, str, str, str]:
    """What was timed: chip, op, size, dtypes, tiles."""
    return row.chip, row.op, f"{row.m}/{row.k}/{row.n}", row.dtypes, row.tiles


def number(value: float | None, form: str) -> str:
    """A dash where there is none."""
    return "–" if value is None else format(value, form)


def statistics_cells(found: ErrorStatistics) -> tuple[str, ...]:
    """The values of `STATISTICS`."""
    errors = (found.median_error, found.p90_error, found.worst_error)
    return (str(found.rows), str(found.programs), *(number(one, ".1%") for one in errors), number(found.bias, "+.1%"))


def reason_lines(rows: Sequence[ComparedRow]) -> list[str]:
    """Why rows are not counted, with their lines in the file; rows that share a reason together."""
    grouped: dict[str, list[ComparedRow]] = {}
    for row in rows:
        if row.reason:
            grouped.setdefault(row.reason, []).append(row)
    found = []
    for reason, shared in grouped.items():
        names = dict.fromkeys(f"{row.chip} {row.op} {row.m}/{row.k}/{row.n}" for row in shared)
        lines = ", ".join(str(row.line) for row in shared)
        found.append(f"not counted, line{'s' * (len(shared) > 1)} {lines} ({', '.join(names)}): {reason}")
    return found
