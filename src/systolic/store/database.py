"""The SQLite file of a store: check that it is ours and whole, and name errors of SQLite."""

from __future__ import annotations

import functools
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from systolic.support.call_errors import WrongCallError
from systolic.support.printable import printable
from systolic.support.regular_file import check_regular, open_regular

SCHEMA_VERSION = 2  # a store of another one is left alone
_BUSY_S = 60.0  # to wait for another writer
_LONGEST_BYTES = 2**26  # of a value; a trial has a few thousand
_APPLICATION = 0x73797374  # "syst", which SQLite keeps in the head of the file
_SQLITE = b"SQLite format 3\0"
_HEAD_BYTES = 4096
_BESIDE = ("-wal", "-shm", "-journal")  # files that SQLite keeps next to a store
_SCHEMA = """
CREATE TABLE IF NOT EXISTS subjects (
  key TEXT PRIMARY KEY,
  chip TEXT NOT NULL,
  sizes TEXT NOT NULL,
  subject TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS trials (
  subject TEXT NOT NULL REFERENCES subjects (key),
  config TEXT NOT NULL,
  status TEXT NOT NULL,
  modelled_us REAL,
  simulated_us REAL,
  measured_us REAL,
  trial TEXT NOT NULL,
  kept_at REAL NOT NULL,
  PRIMARY KEY (subject, config)
) STRICT;
"""
# As SQLite keeps it in the first page of the file.
_SCHEMA_MARK = b"CREATE TABLE trials (\n  subject TEXT NOT NULL REFERENCES subjects (key)"
# Errors that are not the file's fault: https://www.sqlite.org/rescode.html. Statements here are constant, so any other
# error, such as "no such table", is the file's fault.
_ENVIRONMENT = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}


class StoreError(WrongCallError, RuntimeError):
    """The file cannot be used: no permission, no room, made by another version, or no store of trials at all."""


class StoreDamagedError(StoreError):
    """The file is a store, and what it holds is damaged."""


class StoreWarning(UserWarning):
    """A damaged file was set aside, or a trial in it cannot be read."""


def is_there(file: Path) -> bool:
    """True if the file holds something; raise StoreError if it cannot hold trials, or must not be read."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise StoreError(f"the trials in {shown_path(file)} cannot be read: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{shown_path(file)} is not a file that can hold trials; name another one")
    return status.st_size > 0


def shown_path(file: Path) -> str:
    return printable(str(file))


def connection(file: Path, *, writing: bool, thorough: bool = True) -> sqlite3.Connection:
    """Return a connection to a store that is whole; text comes as bytes, which need not be UTF-8.

    Args:
      writing: make the file and its tables if they are missing.
      thorough: read all of it to check that it is whole.

    Raises:
      StoreError: it is not a store, or another version's.
      StoreDamagedError, sqlite3.Error, OSError: see `named_errors`.
    """
    _check_ours(file)
    opened = sqlite3.connect(_address(file, writing=writing), timeout=_BUSY_S, uri=True, isolation_level=None)
    try:
        _prepare(opened)
        if _number(opened, "user_version") == 0 and not _tables(opened):
            # New, and so under the lock. Only then the journal of several writers: the head of the file has to say
            # whose it is.
            opened.executescript(
                f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA application_id = {_APPLICATION};"
                f"PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
            )
            opened.execute("PRAGMA journal_mode = WAL")
        _check_version(opened, file)
        opened.execute("PRAGMA synchronous = FULL")
        if thorough and (problem := _text(opened.execute("PRAGMA integrity_check(1)").fetchone()[0])) != "ok":
            raise StoreDamagedError(f"{shown_path(file)} is damaged: {problem}")
    except BaseException:
        opened.close()
        raise
    return opened


def wreck(file: Path) -> sqlite3.Connection:
    """Return a connection to a damaged store; only the schema of the tables is checked."""
    opened = sqlite3.connect(_address(file, writing=False), uri=True, isolation_level=None)
    try:
        _prepare(opened)
        if _tables(opened) != _schema():
            raise StoreDamagedError(f"{shown_path(file)} is damaged: its tables are not those of a store")
    except BaseException:
        opened.close()
        raise
    return opened


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all that the block writes, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # some errors, such as a full disk, have rolled it back
            connection.execute("ROLLBACK")
        raise


@contextmanager
def named_errors(file: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the system into errors that name the file.

    Raises:
      StoreDamagedError: the file's contents are damaged.
      StoreError: the file is locked, or cannot be read or written, or the disk is full.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeError) as error:  # SQLite's messages quote the file, which need not be UTF-8
        words = " ".join(printable(str(error)).split())
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _ENVIRONMENT:
            raise StoreError(f"the trials in {shown_path(file)} cannot be read or written: {words}") from error
        raise StoreDamagedError(f"{shown_path(file)} is damaged: {words}") from error
    except (OSError, MemoryError) as error:
        words = " ".join(printable(str(error)).split())
        raise StoreError(f"the trials in {shown_path(file)} cannot be read or written: {words}") from error


def _address(file: Path, *, writing: bool) -> str:
    """Return a URI for SQLite. A file that may not be written is opened so that nothing has to be."""
    folder_writable = os.access(file.parent, os.W_OK)
    if writing:
        mode = "mode=rwc"
    elif folder_writable and os.access(file, os.W_OK):
        mode = "mode=rw"  # a reader, too, takes back what a killed writer left half done
    elif folder_writable or file.with_name(f"{file.name}-wal").exists():
        mode = "mode=ro"
    else:
        # A folder where nothing may be written has no place for what readers of a journal share; but then the file does
        # not change either.
        mode = "immutable=1"
    return f"{file.absolute().as_uri()}?{mode}"


def _check_ours(file: Path) -> None:
    """Refuse a file that is not a store: it is neither written nor set aside, whatever is wrong with it.

    A store has three marks: SQLite's, the application's, and the text of a table. Two of them are enough to tell a
    damaged store from a stranger's file.
    """
    for ending in _BESIDE:  # SQLite opens them by name, and would wait for a pipe
        with suppress(FileNotFoundError):
            check_regular(file.with_name(f"{file.name}{ending}"))
    if not is_there(file):
        return
    with open_regular(file) as opened:
        head = opened.read(_HEAD_BYTES)
    if not any(head[:100]) and file.with_name(f"{file.name}-journal").exists():
        return  # half made: SQLite takes that back
    marks = (head.startswith(_SQLITE), head[68:72] == _APPLICATION.to_bytes(4, "big"), _SCHEMA_MARK in head)
    if sum(marks) < 2:
        raise StoreError(f"{shown_path(file)} is not a store of trials; name another file")
    # A damaged version of the format (bytes 18 and 19) reads as "attempt to write a readonly database".
    if not (marks[0] and marks[1]) or head[18:20] not in (b"\1\1", b"\2\2"):
        raise StoreDamagedError(f"{shown_path(file)} is damaged: its first bytes are not those of a store")


def _prepare(opened: sqlite3.Connection) -> None:
    opened.text_factory = bytes
    opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_BYTES)
    opened.execute("PRAGMA trusted_schema = OFF")
    opened.execute("PRAGMA cell_size_check = ON")


def _check_version(opened: sqlite3.Connection, file: Path) -> None:
    """Check the version and the tables of a store: a view or a trigger would run whatever it says."""
    version = _number(opened, "user_version")
    if version > 0 and version != SCHEMA_VERSION:
        raise StoreError(
            f"{shown_path(file)} was made by another version of systolic (schema {version}, here {SCHEMA_VERSION}): "
            "move it away, or name another file"
        )
    if version != SCHEMA_VERSION or _tables(opened) != _schema():
        raise StoreDamagedError(f"{shown_path(file)} is damaged: its tables are not those of a store")


def _tables(opened: sqlite3.Connection) -> list[tuple[str, ...]]:
    rows = opened.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    return [tuple(_text(value) for value in row) for row in rows]


@functools.cache
def _schema() -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript(_SCHEMA)
        return _tables(made)


def _number(opened: sqlite3.Connection, pragma: str) -> int:
    return opened.execute(f"PRAGMA {pragma}").fetchone()[0]


def _text(value: object) -> str:
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
