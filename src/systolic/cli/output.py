"""Tables, JSON and progress: standard output is data, standard error is progress."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

_PACKAGES = ("systolic", "jax", "jaxlib", "libtpu")
# A table that goes to a file or a pipe is not cut to a terminal's width.
_WIDTH_OF_A_FILE = 200


def versions() -> dict[str, str | None]:
    """Versions of what a result depends on; None for what is not installed."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def console() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE, highlight=False, soft_wrap=False)


def note(text: str, *, quiet: bool) -> None:
    """One line on standard error."""
    if not quiet:
        click.echo(text, err=True)


def write_json(target: str, command: str, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Writes one JSON object: `command`, `versions`, `rows`, `summary`. A file appears whole or not at all.

    Raises:
      click.ClickException: the file cannot be written.
    """
    document = {"command": command, "versions": versions(), "rows": list(rows), "summary": dict(summary)}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if target == "-":
        click.echo(text, nl=False)
        return
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot write {target}: {error.strerror}") from error


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> Table:
    """A plain table; columns named in `left` are text, the others numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right", no_wrap=column not in left)
    for row in rows:
        made.add_row(*row)
    return made


class Bar:
    """A progress bar whose length becomes known later."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._task = progress.add_task("planning", total=None) if progress else None

    def planned(self, jobs: int) -> None:
        """How many jobs there are in all."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=jobs)

    def done(self, label: str) -> None:
        """One of them has ended. Called from any thread."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, description=label)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Bar]:
    """A bar on standard error, while the block runs."""
    if quiet:
        yield Bar(None)
        return
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress)
