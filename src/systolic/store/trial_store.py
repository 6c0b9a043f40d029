"""Keep every trial in one SQLite file; several processes write to it at once, and a kill leaves it whole."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from systolic.store import database
from systolic.store.database import (
    StoreDamagedError,
    StoreError,
    StoreWarning,
    is_there,
    named_errors,
    shown_path,
    transaction,
)
from systolic.store.reading import read_subject, read_trial
from systolic.store.rows import TRIAL_COLUMNS, Records, read_all, read_subjects, read_trials, salvaged, write
from systolic.store.trial import Subject, Trial, best_first
from systolic.support.bugs import warn_user
from systolic.support.regular_file import check_regular

_NAMED = 5  # rows that a warning names


def store_file() -> Path:
    """Return the user's file of trials: `$SYSTOLIC_STORE`, or one in the cache folder."""
    named = os.environ.get("SYSTOLIC_STORE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("systolic")) / "trials.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """The state of a store.

    Attributes:
      exists: there is a file with trials.
      schema: version of its tables; None where they cannot be read.
      subjects, trials: how many can be read.
      unreadable: rows that cannot, each with the reason.
      problem: why the file cannot be used; "" where it can.
    """

    file: Path
    exists: bool
    schema: int | None = None
    subjects: int = 0
    trials: int = 0
    unreadable: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TrialStore:
    """A file of trials. Holds nothing open between calls; picklable.

    Each trial is written in its own transaction: after a kill at any moment the file opens, and kept trials are in it.
    A damaged row is left out, with a `StoreWarning` that names it. A damaged store is renamed, and a new one is made
    from every row that can still be read, with a `StoreWarning` that names both files. Other files are left alone.
    """

    file: Path

    @classmethod
    def at(cls, file: Path | None = None) -> TrialStore:
        """Return the store in this file, or the user's."""
        return cls(file if file is not None else store_file())

    def keep(self, subject: Subject, trial: Trial) -> None:
        """Add a trial, or replace the same configuration's unless that knows more: a time, or a measured one.

        Raises:
          StoreError: it cannot be written.
          UntrustedError: it is a trial that could not be read again, such as one with a time of NaN.
        """
        self.keep_all([(subject, [trial])])

    def keep_all(self, records: Records) -> None:
        """Keep all of these trials as `keep` does, or none of them if one cannot be kept.

        Raises:
          StoreError, UntrustedError: as `keep` does.
        """
        for subject, trials in records:
            read_subject(json.loads(subject.as_json()))
            for trial in trials:
                read_trial(json.loads(trial.as_json()), subject)
        with self._opened(writing=True) as connection, transaction(connection):
            write(connection, records)

    def check_writable(self) -> None:
        """Write to the file, so that an unusable one raises StoreError before the work and not after it."""
        with self._opened(writing=True) as connection, transaction(connection):
            connection.execute(f"PRAGMA user_version = {database.SCHEMA_VERSION}")  # as it is: but a page is written

    def trials(self, subject: Subject) -> list[Trial]:
        """Return all trials of a subject, ordered as by `best_first`; raise StoreError if the file cannot be read."""
        if not is_there(self.file):
            return []
        with self._opened(writing=False) as connection:
            query = f"SELECT {TRIAL_COLUMNS} FROM trials WHERE subject = ?"
            rows = connection.execute(query, (subject.key,)).fetchall()
        with self._left_out() as bad:
            return best_first(read_trials(rows, subject, bad))

    def subjects(self) -> list[Subject]:
        """Return all subjects of trials, by chip and sizes; raise StoreError if the file cannot be read."""
        return [subject for subject, _ in self.records()]

    def records(self) -> list[tuple[Subject, list[Trial]]]:
        """Return all subjects, as `subjects` does, each with its trials in the order of `best_first`."""
        if not is_there(self.file):
            return []
        with self._opened(writing=False) as connection, self._left_out() as bad:
            return read_all(connection, bad)

    def foreign_records(self) -> list[tuple[Subject, list[Trial]]]:
        """Return the records of a file that is not the user's: nothing in it is renamed, repaired or skipped.

        Raises:
          StoreError: the file, or one row of it, cannot be read.
        """
        bad: list[str] = []
        with named_errors(self.file), closing(database.connection(self.file, writing=False)) as connection:
            trials_by_subject = read_all(connection, bad)
        if bad:
            raise StoreDamagedError(f"{shown_path(self.file)} is damaged: {bad[0]}")
        return trials_by_subject

    def winner(self, subject: Subject) -> Trial | None:
        """Return the best kernel of a subject: the fastest measured one, or else the fastest.

        It takes a millisecond: the file is neither read as a whole, nor made, nor repaired.

        Raises:
          StoreError: the file cannot be read.
        """
        if not is_there(self.file):
            return None
        query = (
            f"SELECT {TRIAL_COLUMNS} FROM trials WHERE subject = ? AND status = 'ok' AND config <> '' "
            "AND coalesce(measured_us, simulated_us) IS NOT NULL "
            "ORDER BY measured_us IS NULL, coalesce(measured_us, simulated_us), config"
        )
        with (
            named_errors(self.file),
            closing(database.connection(self.file, writing=False, thorough=False)) as connection,
            self._left_out() as bad,
        ):
            return next(read_trials(connection.execute(query, (subject.key,)), subject, bad), None)

    def nearest(self, subject: Subject) -> tuple[Subject, list[str]] | None:
        """Return the subject with trials that differs least from one without, and the differences.

        As with `winner`, nothing in the file is repaired; rows that cannot be read are skipped without a warning.

        Raises:
          StoreError: the file cannot be read.
        """
        if not is_there(self.file):
            return None
        with (
            named_errors(self.file),
            closing(database.connection(self.file, writing=False, thorough=False)) as connection,
        ):
            others = [(other, subject.differences(other)) for other in read_subjects(connection)]
        return min(others, key=lambda pair: (len(pair[1]), pair[0].as_json()), default=None)

    def health(self) -> StoreHealth:
        """Return the state for `systolic doctor`. Nothing is made, renamed or repaired, and nothing raised."""
        bad: list[str] = []
        try:
            if not is_there(self.file):
                return StoreHealth(file=self.file, exists=False)
            with named_errors(self.file), closing(database.connection(self.file, writing=False)) as connection:
                trials_by_subject = read_all(connection, bad)
        except StoreError as error:
            return StoreHealth(file=self.file, exists=True, problem=str(error))
        return StoreHealth(
            file=self.file,
            exists=True,
            schema=database.SCHEMA_VERSION,
            subjects=len(trials_by_subject),
            trials=sum(len(trials) for _, trials in trials_by_subject),
            unreadable=tuple(bad),
        )

    @contextmanager
    def _left_out(self) -> Iterator[list[str]]:
        """Warn once of all rows that the block could not read."""
        bad: list[str] = []
        yield bad
        if bad:
            not_named = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            problems = "; ".join(bad[:_NAMED]) + not_named
            warn_user(f"left out of {shown_path(self.file)}: {problems}", StoreWarning)

    @contextmanager
    def _opened(self, *, writing: bool) -> Iterator[sqlite3.Connection]:
        with named_errors(self.file), closing(self._ready(writing=writing)) as connection:
            yield connection

    def _ready(self, *, writing: bool) -> sqlite3.Connection:
        """Return a connection to a store that is whole: the existing one, a new one, or one made from a damaged one."""
        if is_there(self.file):
            with suppress(StoreDamagedError), named_errors(self.file):
                return database.connection(self.file, writing=writing)
        # SQLite does not let two processes make or replace a file at once, so they take turns.
        import fcntl  # Linux and macOS; nothing else here needs it

        self.file.parent.mkdir(parents=True, exist_ok=True)
        name = self.file.with_name(f"{self.file.name}.lock")
        with named_errors(self.file), suppress(FileNotFoundError):
            check_regular(name)  # a pipe would be waited for
        with name.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                with named_errors(self.file):
                    return database.connection(self.file, writing=writing)
            except StoreDamagedError as error:
                self._begin_anew(error)
            return database.connection(self.file, writing=writing)

    def _begin_anew(self, error: StoreDamagedError) -> None:
        """Set a damaged store aside, and begin a new one with its readable rows."""
        aside = self.file.with_name(
            f"{self.file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9}"
        )
        self.file.replace(aside)
        for ending in ("-wal", "-shm", "-journal"):  # they hold the trials of a killed writer
            journal = self.file.with_name(self.file.name + ending)
            if journal.exists():
                journal.replace(aside.with_name(aside.name + ending))
        count = 0
        try:
            saved = salvaged(aside)
            with closing(database.connection(self.file, writing=True)) as connection, transaction(connection):
                write(connection, saved)
            count = sum(len(trials) for _, trials in saved)
        finally:  # the warning names the old file also if there is no room for a new one
            warn_user(
                f"{error}; kept as {shown_path(aside)}, begun anew with the {count} trials that can be read of it",
                StoreWarning,
            )
