"""Compiled programs and refusals on disk, so that nothing is compiled twice. A damaged cache only costs time."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from systolic.compiler.cache_entry import EntryError, decode, encode
from systolic.compiler.cache_file import CacheFile, DamagedError, UntrustedError, UnusableError
from systolic.compiler.errors import CompilerRefusal
from systolic.compiler.program import CompiledProgram

CACHE_FOLDER_VARIABLE = "SYSTOLIC_CACHE_DIR"
CACHE_SIZE_LIMIT_BYTES = 4 * 2**30

_FRESH_NS = 3600 * 10**9  # an entry that was used within the hour keeps its time of use, so most reads write nothing


class CacheWarning(UserWarning):
    """The cache could not be read or written. The work goes on without it."""


def cache_folder() -> Path:
    """Return the folder of programs: `$SYSTOLIC_CACHE_DIR` if set when this is called, else the user's cache folder."""
    chosen = os.environ.get(CACHE_FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("systolic")) / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCache:
    """Compiled programs in one file, shared by any number of processes. Picklable; holds nothing open between calls."""

    folder: Path | None = None  # where the file is; None: `cache_folder()`, asked again at each use
    size_limit_bytes: int = CACHE_SIZE_LIMIT_BYTES  # size of the file past which the entries used longest ago go

    def get(self, key: str) -> CompiledProgram | CompilerRefusal | None:
        """Return the entry of `key`, or None. Warns with `CacheWarning`, and returns None, if it cannot be read."""
        outcome = None
        with self._guarded("read") as file:
            if not file.exists():
                return None
            with file.opened() as connection:
                row = connection.execute("SELECT entry, used FROM programs WHERE key = ?", (key,)).fetchone()
                if row is None:
                    return None
                try:
                    outcome = decode(key, row[0])
                except EntryError as error:
                    if file.writable:
                        _drop(connection, key)
                    _warn(f"dropped a damaged entry of the program cache ({error})")
                    return None
                now = _now_ns()
                fresh = isinstance(row[1], int) and now - _FRESH_NS < row[1] <= now
                if file.writable and not fresh:
                    with suppress(sqlite3.OperationalError):  # busy or full: only the order of removal suffers
                        connection.execute("UPDATE programs SET used = ? WHERE key = ?", (now, key))
        return outcome

    def put(self, key: str, outcome: CompiledProgram | CompilerRefusal) -> None:
        """Keep `outcome` under `key`. Warns with `CacheWarning` where that fails."""
        with self._guarded("written") as file:
            entry = encode(key, outcome)
            try:
                self._store(file, key, entry)
            except DamagedError as error:
                _begin_anew(file, error)
                self._store(file, key, entry)

    def _store(self, file: CacheFile, key: str, entry: bytes) -> None:
        with file.opened(make=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT INTO programs VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET used = excluded.used, entry = excluded.entry",
                (key, _now_ns(), entry),
            )
            while _used_bytes(connection) > self.size_limit_bytes:
                oldest = "SELECT key FROM programs WHERE key <> ? ORDER BY used LIMIT 1"
                if not connection.execute(f"DELETE FROM programs WHERE key = ({oldest})", (key,)).rowcount:
                    break
            connection.execute("COMMIT")

    @property
    def file(self) -> Path:
        """The file that everything is kept in."""
        return self._file().path

    def size_bytes(self) -> int:
        """The size of the file; 0 if it does not exist."""
        return _size(self.file)

    def count(self) -> int:
        """Count the programs and refusals; 0 if they cannot be read, and `fault` says why."""
        try:
            if self._file().exists():
                with self._file().opened() as connection:
                    return connection.execute("SELECT count(used) FROM programs").fetchone()[0]
        except (DamagedError, UnusableError, OSError, ValueError):
            pass
        return 0

    def fault(self) -> str | None:
        """Return the reason why the cache cannot be used, in one line, or None. Reads the whole file."""
        try:
            if self._file().exists():
                with self._file().opened() as connection:
                    _check_whole(connection)
        except (DamagedError, UnusableError, OSError, ValueError) as error:
            return " ".join(str(error).split())
        return None

    def _file(self) -> CacheFile:
        return CacheFile(self.folder if self.folder is not None else cache_folder())

    @contextmanager
    def _guarded(self, what: str) -> Iterator[CacheFile]:
        file = self._file()
        try:
            try:
                yield file
            except DamagedError as error:
                _begin_anew(file, error)
        except UntrustedError as error:
            _warn(f"programs are not cached: {error}, or set {CACHE_FOLDER_VARIABLE} to a folder of your own")
        except (UnusableError, OSError, ValueError) as error:
            _warn(f"the program cache could not be {what} ({error})")


def _now_ns() -> int:
    """Return the clock's time, which SQLite holds in 63 bits: after the year 2262 it no longer changes."""
    return min(time.time_ns(), 2**63 - 1)


def _warn(text: str) -> None:
    warnings.warn(text, CacheWarning, stacklevel=1)  # from one place, so that Python shows a text once


def _begin_anew(file: CacheFile, error: DamagedError) -> None:
    file.remove(error.inode)
    _warn(f"the program cache was damaged ({error}): begun anew")


def _drop(connection: sqlite3.Connection, key: str) -> None:
    """Drop one damaged entry, or find that more than the entry is damaged."""
    connection.execute("DELETE FROM programs WHERE key = ?", (key,))
    _check_whole(connection)


def _check_whole(connection: sqlite3.Connection) -> None:
    result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != b"ok":
        raise sqlite3.DatabaseError(result.decode("ascii", "replace"))


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, page_bytes = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * page_bytes


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except (OSError, ValueError):
        return 0
