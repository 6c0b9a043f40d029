"""Write files that appear whole or not at all, even if the disk is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a file next to `path` to write to, which replaces `path` when the block ends without an exception.

    A device or a pipe is written to directly, and a link keeps its target.

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
