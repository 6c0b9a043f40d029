"""The SQLite file of the program cache: made whole, shared by processes, thrown away when it is damaged.

Nothing in the file is trusted: its schema has to be the one below, text is never decoded, and SQLite is held to a
number of steps. The folder is trusted, so it has to belong to this user.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from systolic.compiler.cache_entry import MAX_ENTRY_BYTES

FILE_NAME = "systolic-programs-1.sqlite"  # another schema gets another number
LOCK_NAME = "systolic-programs-1.lock"

_TABLE = "CREATE TABLE programs (key TEXT PRIMARY KEY, used INTEGER NOT NULL, entry BLOB NOT NULL) STRICT"
_INDEX = "CREATE INDEX programs_by_use ON programs (used)"
_SCHEMA = {
    (b"table", b"programs", _TABLE.encode()),
    (b"index", b"sqlite_autoindex_programs_1", None),
    (b"index", b"programs_by_use", _INDEX.encode()),
}
_HEAD = b"SQLite format 3\0"
_JOURNAL_VERSIONS = slice(18, 20)  # two 2s in the head say that the journal is a WAL
_BESIDE = ("", "-wal", "-shm", "-journal")

_BUSY_S = 10.0  # to wait for another process
_STEPS, _CALLS = 10_000, 2_000  # of SQLite's virtual machine: a hundred times what a full cache takes
# SQLite's errors that have nothing to do with the file's content.
_CIRCUMSTANCES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


class UnusableError(Exception):
    """The cache cannot be used here and now: its folder is not to be trusted, the disk is full, the file is locked."""


class UntrustedError(UnusableError):
    """Somebody else, a group among them, may write to the folder, or a name in it leads elsewhere."""


class DamagedError(Exception):
    """The file is not what this module made; `inode` says which file that was."""

    def __init__(self, message: str, inode: int) -> None:
        super().__init__(message)
        self.inode = inode


@dataclass(frozen=True, slots=True)
class CacheFile:
    """The cache's file in `folder`. Holds nothing open between calls."""

    folder: Path

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.folder / FILE_NAME

    @property
    def writable(self) -> bool:
        """True if the folder of the file is writable, without which SQLite writes nothing."""
        return os.access(self.folder, os.W_OK)

    def exists(self) -> bool:
        """True if the file exists.

        Raises:
            UntrustedError: the folder belongs to somebody else, or others or a shared group may write to it.
            OSError: it cannot be looked at.
        """
        self.check_trust()
        return self.path.exists()

    def check_trust(self) -> None:
        """Only this user, or root, may be able to write to the folder and its files, and no name may lead elsewhere.

        Raises:
            UntrustedError: somebody else may write to one of them, or a name leads elsewhere.
        """
        try:
            status = self.folder.stat()
        except (FileNotFoundError, ValueError):  # ValueError: not a name of a file, as creating it will report
            return
        _check_owner(self.folder, status)
        for name in (FILE_NAME + ending for ending in _BESIDE):
            with suppress(FileNotFoundError):
                status = (self.folder / name).lstat()
                if not stat.S_ISREG(status.st_mode):
                    raise UntrustedError(f"{self.folder / name} is not a regular file: remove it")
                _check_owner(self.folder / name, status)

    @contextmanager
    def opened(self, *, make: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection to a file whose head and schema are as expected.

        Args:
            make: the folder and the file, where they are not there.

        Raises:
            DamagedError: the file holds something else; also where that shows while the connection is used.
            UnusableError, OSError: it cannot be read or written now.
        """
        self.check_trust()
        if make and not self.path.exists():
            self._make()
        with self._locked(exclusive=False):
            inode = self.path.stat().st_ino
            try:
                connection = self._connection()
                try:
                    yield connection
                finally:
                    connection.close()
            except UnicodeDecodeError as error:  # SQLite quoted what it found in the file
                raise DamagedError(str(error), inode) from error
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
                if code in _CIRCUMSTANCES:
                    raise UnusableError(str(error)) from error
                raise DamagedError(str(error), inode) from error

    def remove(self, inode: int) -> None:
        """Remove the file, unless another one has taken its place."""
        with self._locked(exclusive=True), suppress(FileNotFoundError):
            if self.path.stat().st_ino == inode:
                _unlink(self.path)

    def _connection(self) -> sqlite3.Connection:
        head = _head(self.path)
        if not head.startswith(_HEAD) or head[_JOURNAL_VERSIONS] != b"\2\2":
            raise sqlite3.DatabaseError("its head is another")
        # Such a file is never left here. In one, SQLite would find the name of another file to remove.
        if self.path.with_name(f"{FILE_NAME}-journal").exists():
            raise sqlite3.DatabaseError("there is a journal of another kind next to it")
        # Where nothing can be written there is no place for what readers of a WAL share; but then nothing changes.
        mode = "mode=rw" if self.writable else "immutable=1"
        uri = f"{self.path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
        try:
            calls = itertools.count()
            connection.set_progress_handler(lambda: next(calls) > _CALLS, _STEPS)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ENTRY_BYTES + 2**20)
            connection.text_factory = bytes
            for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "synchronous = NORMAL"):
                connection.execute(f"PRAGMA {setting}")
            schema = connection.execute("SELECT type, name, sql FROM sqlite_schema LIMIT 9").fetchall()
            if set(schema) != _SCHEMA or len(schema) != len(_SCHEMA):
                raise sqlite3.DatabaseError("its tables are others")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self) -> None:
        """Write a whole file, then give it its name at once: a kill at any moment leaves no file or a complete one."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(exclusive=True):
            if self.path.exists():
                return
            new = self.path.with_suffix(".new")
            _unlink(new)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                connection = sqlite3.connect(new, isolation_level=None)
                try:
                    connection.executescript(f"BEGIN; {_TABLE}; {_INDEX}; COMMIT; PRAGMA journal_mode = WAL;")
                finally:
                    connection.close()
            except sqlite3.Error as error:
                raise UnusableError(str(error)) from error
            new.replace(self.path)

    @contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        """Lock the file against replacement while it is in use: SQLite finds its companion files only by name."""
        if not self.writable:
            yield
            return
        import fcntl  # Linux and macOS; nowhere else can anything be compiled

        lock = os.open(self.folder / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + _BUSY_S
            while True:
                try:
                    fcntl.flock(lock, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise UnusableError("another process holds its lock") from None
                    time.sleep(0.005)
            yield
        finally:
            os.close(lock)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise UntrustedError(f"{path} belongs to user {status.st_uid}, and this is user {os.geteuid()}")
    if status.st_mode & stat.S_IWOTH:
        raise UntrustedError(f"everybody may write to {path}: chmod o-w")
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        raise UntrustedError(f"all users of group {status.st_gid} may write to {path}: chmod g-w")


def _is_private_group(group: int) -> bool:
    """True if the group is this user's own and has no other members.

    Where each user has a group of the same name, a umask of 002 is usual, and a folder that the group may write to is
    the user's alone. Other users could have the group as their first one, which no convention lets them; to look for
    them would be to list all accounts of a directory service.
    """
    import grp  # not there on Windows, where nothing is cached
    import pwd

    try:
        user, members = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:  # a user or a group without a name, as containers have them
        return False
    return group == user.pw_gid and members.gr_name == user.pw_name and set(members.gr_mem) <= {user.pw_name}


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def _unlink(path: Path) -> None:
    for ending in _BESIDE:
        path.with_name(path.name + ending).unlink(missing_ok=True)
