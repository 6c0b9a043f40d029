"""Processes that tests wait for."""

from __future__ import annotations

import time
from pathlib import Path

PATIENCE_S = 60


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid):
    # Its main thread is a zombie before the other threads have ended.
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return threads > 1 or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
