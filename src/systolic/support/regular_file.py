"""Open files that a user names only if they are regular: opening a pipe without a writer would block."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NoRegularFileError(OSError):
    """A path is a folder, pipe, socket or device and not a regular file; `strerror` says which, and what to do.

    It is an `OSError`, so that code that handles read errors handles this one too.
    """


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, without blocking.

    Raises:
      NoRegularFileError: it is something else, which may have no end or never begin.
      OSError: it cannot be opened; also for a name that no file can have.
    """
    check_regular(path)  # a device may do something when it is opened, and a socket cannot be
    # A pipe that has replaced the file since then does not block either.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        _check(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def check_regular(path: Path) -> None:
    """Raise OSError, as `open_regular`, for a path that exists and is not a regular file, for SQLite."""
    try:
        _check(path, path.stat())
    except ValueError as error:  # a null character, or half of a surrogate pair
        raise OSError(errno.EINVAL, f"no file can have this name: {error}", str(path)) from error


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "something else")
        words = f"it is {kind} and not a regular file: copy what it holds into one"
        raise NoRegularFileError(errno.EINVAL, words, str(path))
