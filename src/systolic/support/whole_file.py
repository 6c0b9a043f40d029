"""Files that appear whole or not at all, also where the disk is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a file beside `path` to write to, which takes its place when the block has ended well.

    A device or a pipe is written to as it is, and a link goes on to lead where it led.

    Raises:
      OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
