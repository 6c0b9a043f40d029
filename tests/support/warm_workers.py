"""Workers that outlive their pools: loading JAX and libtpu costs two seconds, more than most compilations of tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from systolic.compiler import WorkerPool
from systolic.compiler import pool as pool_module
from systolic.compiler.process import WorkerProcess

_MAX_SPARE = 3
_CHANGES_NO_WORKER = {"PYTEST_CURRENT_TEST", "SYSTOLIC_CACHE_DIR", "COLUMNS"}

Surroundings = tuple[str, frozenset[tuple[str, str]]]


class WarmWorkers:
    """Idle workers of closed pools, and the folder and the environment that each was started in."""

    def __init__(self) -> None:
        self._spare: list[WorkerProcess] = []
        self._lock = threading.Lock()  # a pool takes workers in several threads
        self._started_in: dict[int, Surroundings] = {}

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let pools take spare workers and leave theirs behind."""
        close = WorkerPool.close

        def close_but_keep(pool: WorkerPool) -> None:
            with pool._lock:
                idle, pool._idle = pool._idle, []
            with self._lock:
                self._spare += idle
                ended, self._spare = self._spare[:-_MAX_SPARE], self._spare[-_MAX_SPARE:]
            for worker in ended:
                worker.end()
            close(pool)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool_module, "WorkerProcess", self._take)
            patch.setattr(WorkerPool, "close", close_but_keep)
            yield

    def end(self) -> None:
        for worker in self._spare:
            worker.end()
        self._spare.clear()

    def _take(self) -> WorkerProcess:
        surroundings = _surroundings()
        with self._lock:
            for worker in reversed(self._spare):
                if worker.alive and self._started_in[worker.pid] == surroundings:
                    self._spare.remove(worker)
                    return worker
        worker = WorkerProcess()
        self._started_in[worker.pid] = surroundings
        return worker


def _surroundings() -> Surroundings:
    variables = {name: value for name, value in os.environ.items() if name not in _CHANGES_NO_WORKER}
    return str(Path.cwd()), frozenset(variables.items())
