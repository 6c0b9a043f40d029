"""Handle Ctrl-C in the middle of long work: finished results count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from systolic.timing.runner import Stopped

STOPPED = 130  # exit code


def until_stopped(jobs: Iterable[Callable[[], Any]]) -> tuple[list[Any], bool]:
    """Return the results of jobs up to Ctrl-C, and whether it came; `KeyboardInterrupt` if no job had finished."""
    results: list[Any] = []
    try:
        for job in jobs:
            results.append(job())
    except KeyboardInterrupt as stop:
        results += [stop.finished] if isinstance(stop, Stopped) else []
        if not results:
            raise
        return results, True
    return results, False
