"""Progress bars on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from systolic.cli.output import note
from systolic.compiler import WorkerPool
from systolic.timing.runner import Progress

_R = TypeVar("_R")

# How often a bar on a terminal is brought up to date, and how often a line is written elsewhere.
_LOOK_S, _NOTE_S = 1.0, 30.0
_REST_COLUMNS = 48  # of the bar's line, for a bar of 12 columns, counts of three digits and times with hours


class Bar(Progress):
    """A progress bar whose length grows with the jobs; without a terminal, one line for each event."""

    def __init__(self, progress: RichProgress | None, *, quiet: bool) -> None:
        self._progress = progress
        self._quiet = quiet
        self._jobs = 0
        self._doing = ""
        self._task = progress.add_task("starting", total=None) if progress else None

    @property
    def on_terminal(self) -> bool:
        return self._progress is not None

    def planned(self, jobs: int) -> None:
        """Add `jobs` to the bar's length."""
        self._jobs += jobs
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=self._jobs)
        elif jobs:
            note(f"{jobs} job{'' if jobs == 1 else 's'}", quiet=self._quiet)

    def done(self, label: str) -> None:
        """Count one job that has ended. Called from any thread."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, description=label)

    def doing(self, text: str) -> None:
        """Show the current activity. Without a terminal a line is printed when it changes."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)
        elif text != self._doing:
            note(text, quiet=self._quiet)
        self._doing = text

    def note(self, text: str) -> None:
        """Print a part of the answer that is already known."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False)
        else:
            note(text, quiet=self._quiet)


def result_of(job: Future[_R], pool: WorkerPool, bar: Bar) -> _R:
    """Return the result of a long job, or raise its exception; meanwhile the bar shows the pool's progress."""
    every_s = _LOOK_S if bar.on_terminal else _NOTE_S
    while not wait([job], timeout=every_s).done:
        bar.doing("; ".join(pool.progress()))
    return job.result()


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Bar]:
    """Show a bar on standard error while the block runs."""
    if quiet or not sys.stderr.isatty():
        yield Bar(None, quiet=quiet)
        return
    console = Console(stderr=True)
    columns = (
        TextColumn(f"{{task.description:<28.{max(28, console.width - _REST_COLUMNS)}}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, transient=True) as progress:
        yield Bar(progress, quiet=quiet)
