"""Lock a file across processes that read, change and write it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Keep other processes and threads that call this with the same path waiting until the block has ended.

    The lock is on a file next to `path`, which is removed at the end: `path` itself may be replaced meanwhile. Whoever
    waited for a lock file that has been removed waits for the next one.

    Raises:
      OSError: no file can be made there.
    """
    path = path.resolve()
    lock = path.with_name(f"{path.name}.lock")
    descriptor = _locked(lock)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(lock: Path) -> int:
    import fcntl  # Linux and macOS; nowhere else can anything be compiled

    while True:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, lock):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """True if the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
