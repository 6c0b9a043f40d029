"""The private folder of each worker, and the removal of those whose owner died without cleaning up."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STACK_FILE = "stack.txt"
EXIT_FILE = "exit.txt"

_PREFIX = "systolic-worker-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFolder:
    """A worker's dump folder and standard error, locked for as long as the process that made it lives."""

    path: Path  # the folder
    # Descriptor that holds the lock. The kernel lets go of it when the process dies, however it dies; a process id,
    # which is used again and means nothing in another container, could not tell that.
    lock: int

    @property
    def dump(self) -> Path:
        """The folder that libtpu writes to."""
        return self.path / "dump"

    @property
    def stderr(self) -> Path:
        """The file of the worker's standard error and of all that is printed in it."""
        return self.path / "stderr.txt"

    @property
    def stack(self) -> Path:
        """The file to which the worker writes the Python stacks of its threads on request."""
        return self.path / STACK_FILE

    @property
    def exit_place(self) -> Path:
        """The file to which the worker writes the line that has called `os._exit`."""
        return self.path / EXIT_FILE

    def remove(self) -> None:
        """Remove the folder and let go of the lock. Called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_worker_folder() -> WorkerFolder:
    """Make a locked folder among the temporary files."""
    # It takes its final name only when locked, or a sweep in another process could find it without an owner.
    unnamed = Path(tempfile.mkdtemp(prefix="systolic-new-"))
    try:
        (unnamed / "dump").mkdir()
        lock = os.open(unnamed / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        _try_lock(lock)
        path = unnamed.with_name(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
        unnamed.rename(path)
    except BaseException:
        shutil.rmtree(unnamed, ignore_errors=True)
        raise
    return WorkerFolder(path=path, lock=lock)


def sweep_worker_folders() -> list[Path]:
    """Remove this user's worker folders that no living process owns, and return their paths."""
    swept = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and not _is_locked(path / "lock"):
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path)
    return swept


def _is_locked(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    import fcntl  # not there on Windows, where this package can be imported but nothing can be compiled

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
