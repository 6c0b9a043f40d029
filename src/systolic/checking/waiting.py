"""Wait for a run in a separate thread, and stop it if it deadlocks or takes too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from systolic.checking.watching import Watch
from systolic.compat import (
    end_interpreted_kernel,
    semaphore_waits,
)

_POLL_S = 0.1


# Only another thread of the kernel can end a wait, and there are at most two: if all wait, they wait forever. A copy
# by another thread takes far less than this.
_DEADLOCK_S = 3.0


# Another device may be computing between two accesses, on a CPU that all devices share.
_DEADLOCK_OF_SEVERAL_S = 8.0


class DeadlockError(RuntimeError):
    """A kernel waits for a semaphore that is never signaled."""

    def __init__(self) -> None:
        super().__init__("the kernel waits for a semaphore that nobody signals")


class TooSlowError(RuntimeError):
    """A run was stopped because it took too long."""


def waited_for(run: Callable[[], list[np.ndarray]], time_limit_s: float, watch: Watch) -> list[np.ndarray]:
    """Call `run` in a separate thread, so that it can be abandoned.

    Raises:
      DeadlockError: it has waited for a semaphore so long that it will never be signaled.
      TooSlowError: it exceeds the time limit.
    """
    outcome: list[Any] = []

    def target() -> None:
        try:
            outcome.append(run())
        except BaseException as error:  # noqa: BLE001 -- raised again below, in the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    waiting_since: dict[int, float] = {}
    started = acted = time.monotonic()
    acts = 0
    while True:
        thread.join(_POLL_S)
        if not thread.is_alive():
            break
        waits = semaphore_waits()
        now = time.monotonic()
        waiting_since = {waiter: waiting_since.get(waiter, now) for waiter in waits}
        if watch.acts != acts:
            acts, acted = watch.acts, now
        quiet_s = _DEADLOCK_S if watch.devices == 1 else _DEADLOCK_OF_SEVERAL_S
        if waits and min(now - acted, *(now - since for since in waiting_since.values())) > quiet_s:
            stop: Exception = DeadlockError()
        elif now - started > time_limit_s:
            stop = TooSlowError(f"it was stopped after {time_limit_s:.0f} s")
        else:
            continue
        end_interpreted_kernel(stop)
        thread.join()
        raise stop
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
