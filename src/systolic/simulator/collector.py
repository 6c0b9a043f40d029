"""Keep Python's garbage collector from taking a large share of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects made between two collections. With Python's 700 or 2,000 the run of a training step collects so often that
# collections, and what JAX does in each, took a tenth of its time.
_OBJECTS = 100_000


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause the collector, which scans all objects again and again while their number grows.

    Reading a program makes millions of objects and no cycles; the collector took a quarter of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def with_rare_collections() -> Iterator[None]:
    """Let the collector run less often. Running a program makes millions of objects, and few cycles."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
