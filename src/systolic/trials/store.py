"""Every trial, in one SQLite file that several processes write to at once and that a kill leaves whole."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import platformdirs

from systolic.trials.trial import Subject, Trial, best_first

_Record = TypeVar("_Record", Subject, Trial)

_BUSY_S = 60.0  # to wait for another writer
_SCHEMA_VERSION = 1
_APPLICATION = 0x73797374  # "syst", which SQLite keeps in the head of the file
_APPLICATION_AT = 68
_SQLITE = b"SQLite format 3\0"
# Such a name is a database's: a file without SQLite's head is a damaged one, and not a stranger's.
_ENDINGS = {".sqlite", ".sqlite3", ".db"}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS subjects (
  key TEXT PRIMARY KEY,
  chip TEXT NOT NULL,
  sizes TEXT NOT NULL,
  subject TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS trials (
  subject TEXT NOT NULL REFERENCES subjects (key),
  blocking TEXT NOT NULL,
  status TEXT NOT NULL,
  modelled_us REAL,
  simulated_us REAL,
  measured_us REAL,
  trial TEXT NOT NULL,
  kept_at REAL NOT NULL,
  PRIMARY KEY (subject, blocking)
) STRICT;
"""


class StoreError(RuntimeError):
    """The file cannot be opened or written: no permission, no room, or made by a newer version."""


class _NotOursError(StoreError):
    pass


class StoreWarning(UserWarning):
    """A damaged file was set aside, or a trial in it cannot be read."""


def store_file() -> Path:
    """Where trials are kept unless somebody says otherwise: `$SYSTOLIC_STORE`, or a file in the user's cache folder."""
    named = os.environ.get("SYSTOLIC_STORE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("systolic")) / "trials.sqlite"


@dataclass(frozen=True, slots=True)
class TrialStore:
    """A file of trials. Holds nothing open between calls; picklable.

    A trial is written in a transaction of its own: what was kept is there after a kill at any moment, and the file
    opens. A file that is damaged is renamed and a new one begun, with a `StoreWarning` that names both.
    """

    file: Path

    @classmethod
    def at(cls, file: Path | None = None) -> TrialStore:
        """The store in this file, or the user's."""
        return cls(file if file is not None else store_file())

    def keep(self, subject: Subject, trial: Trial) -> None:
        """Adds a trial, or replaces that of the same blocking, unless that knows more: a time, or a measured one.

        Raises:
          StoreError: it cannot be written.
        """
        problem = subject.problem
        sizes = f"{problem.batch}x{problem.m}x{problem.k}x{problem.n}"
        with self._opened() as connection, connection:
            connection.execute(
                "INSERT INTO subjects VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (subject.key, subject.chip, sizes, subject.as_json()),
            )
            connection.execute(
                # A failure may be this machine's: it takes no time's place.
                "INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (subject, blocking) DO UPDATE SET "
                "status = excluded.status, modelled_us = excluded.modelled_us, simulated_us = excluded.simulated_us, "
                "measured_us = excluded.measured_us, trial = excluded.trial, kept_at = excluded.kept_at "
                "WHERE (excluded.status = 'ok' OR trials.status <> 'ok') "
                "AND (excluded.measured_us IS NOT NULL OR trials.measured_us IS NULL)",
                (
                    subject.key,
                    _blocking_text(trial),
                    trial.status,
                    trial.modelled_us,
                    trial.simulated_us,
                    trial.measured_us,
                    trial.as_json(),
                    time.time(),
                ),
            )

    def trials(self, subject: Subject) -> list[Trial]:
        """All of a subject, as `best_first` sorts them.

        Raises:
          StoreError: the file cannot be read.
        """
        if not self._there():
            return []
        with self._opened() as connection:
            rows = connection.execute("SELECT trial FROM trials WHERE subject = ?", (subject.key,)).fetchall()
        return best_first(self._read(rows, Trial.from_json))

    def subjects(self) -> list[Subject]:
        """Everything that trials are of, by chip and sizes.

        Raises:
          StoreError: the file cannot be read.
        """
        if not self._there():
            return []
        with self._opened() as connection:
            rows = connection.execute("SELECT subject FROM subjects ORDER BY chip, sizes, key").fetchall()
        return self._read(rows, Subject.from_json)

    def winner(self, subject: Subject) -> Trial | None:
        """The best kernel of a subject: the fastest that was measured, else the fastest.

        It takes a millisecond: the file is neither checked nor made, nor anything in it set right.

        Raises:
          StoreError: the file cannot be read.
        """
        if not self._there():
            return None
        # A folder where nothing may be written has no place for what readers of a journal share; but then the file does
        # not change either.
        shared = os.access(self.file.parent, os.W_OK) or self.file.with_name(f"{self.file.name}-wal").exists()
        mode = "mode=ro" if shared else "immutable=1"
        try:
            with closing(sqlite3.connect(f"{self.file.absolute().as_uri()}?{mode}", uri=True)) as connection:
                rows = connection.execute(
                    "SELECT trial FROM trials WHERE subject = ? AND status = 'ok' AND blocking <> '' "
                    "AND coalesce(measured_us, simulated_us) IS NOT NULL "
                    "ORDER BY measured_us IS NULL, coalesce(measured_us, simulated_us), blocking LIMIT 9",
                    (subject.key,),
                ).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the trials in {self.file} cannot be read: {error}") from error
        return next(iter(self._read(rows, Trial.from_json)), None)

    def nearest(self, subject: Subject) -> tuple[Subject, list[str]] | None:
        """Of a subject without trials: the one with trials that differs in least, and in what."""
        others = [(other, subject.differences(other)) for other in self.subjects()]
        return min(others, key=lambda pair: (len(pair[1]), pair[0].as_json()), default=None)

    def _read(self, rows: Sequence[tuple[str]], reader: Callable[[str], _Record]) -> list[_Record]:
        """Without those that another version of this package has written with other fields."""
        found = []
        for (text,) in rows:
            try:
                found.append(reader(text))
            except ValueError as error:
                warnings.warn(f"left out of {self.file}: {error}", StoreWarning, stacklevel=4)
        return found

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._ready()) as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"the trials in {self.file} cannot be read or written: {error}") from error

    def _ready(self) -> sqlite3.Connection:
        """A connection to a store that is whole: as it is, made, or begun anew in place of a damaged one."""
        if self._exists():
            try:
                return self._connection()
            except _NotOursError:
                pass  # or somebody is just making it
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
        # SQLite lets two processes neither make a file nor replace one at once: they take turns.
        import fcntl  # Linux and macOS; nothing else here needs it

        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_name(f"{self.file.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return self._connection()
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._set_aside(error)
            return self._connection()

    def _there(self) -> bool:
        try:
            return self._exists()
        except OSError as error:
            raise StoreError(f"the trials in {self.file} cannot be read: {error}") from error

    def _exists(self) -> bool:
        try:
            return self.file.stat().st_size > 0
        except FileNotFoundError:
            return False

    def _connection(self) -> sqlite3.Connection:
        self._check_ours()
        connection = sqlite3.connect(self.file, timeout=_BUSY_S)
        try:
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:  # new, and so under the lock
                # Only then the journal of several writers: the head of the file has to say whose it is.
                connection.executescript(
                    f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA application_id = {_APPLICATION};"
                    f"PRAGMA user_version = {_SCHEMA_VERSION};COMMIT;"
                )
                connection.execute("PRAGMA journal_mode = WAL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _SCHEMA_VERSION:
                raise StoreError(f"{self.file} was made by a newer version of systolic (schema {version})")
            connection.execute("PRAGMA synchronous = FULL")
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_ours(self) -> None:
        """A file of something else is neither written to nor set aside, whatever is wrong with it."""
        half_made = self.file.with_name(f"{self.file.name}-journal").exists()  # SQLite takes that back
        if not self._exists() or half_made:
            return
        with self.file.open("rb") as opened:
            head = opened.read(_APPLICATION_AT + 4)
        if not head.startswith(_SQLITE) and self.file.suffix in _ENDINGS:
            raise sqlite3.DatabaseError("its beginning is not SQLite's")
        if head[_APPLICATION_AT:] != _APPLICATION.to_bytes(4, "big"):
            raise _NotOursError(f"{self.file} is no store of trials; name another file")

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = self.file.with_name(
            f"{self.file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9}"
        )
        self.file.replace(aside)
        for ending in ("-wal", "-shm"):  # what a killed writer had kept is there
            beside = self.file.with_name(self.file.name + ending)
            if beside.exists():
                beside.replace(aside.with_name(aside.name + ending))
        warnings.warn(f"{self.file} is damaged ({error}): kept as {aside}, begun anew", StoreWarning, stacklevel=6)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether it is what the file holds; busy, no room and no permission are other classes."""
    return type(error) is sqlite3.DatabaseError


def _blocking_text(trial: Trial) -> str:
    return "" if trial.blocking is None else json.dumps(json.loads(trial.as_json())["blocking"], sort_keys=True)
