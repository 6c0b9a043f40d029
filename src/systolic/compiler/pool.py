"""Run tasks in worker processes, so that a crash of the compiler costs only one job."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from systolic.compiler.blame import record_line
from systolic.compiler.caller_globals import SentGlobal
from systolic.compiler.endings import CompilerCrash
from systolic.compiler.errors import CompilerError, TaskError
from systolic.compiler.folders import sweep_worker_folders
from systolic.compiler.limits import WALL_TIMES, LimitReachedError, Limits, group_use
from systolic.compiler.memory import bearable_bytes
from systolic.compiler.pickling import dumps_with_globals
from systolic.compiler.process import WorkerProcess
from systolic.compiler.wire import Reply
from systolic.support.bugs import runs_user_code

_R = TypeVar("_R")

# Of a worker's memory: the compiler keeps some of every job, and the next one needs room.
_HELD_SHARE = 0.5

# JAX's runtime of the CPU died in one of thousands of runs on virtual devices; a kernel's fault shows a second time.
_DEATHS_OF_RUNTIME = ("SIGSEGV", "SIGABRT", "SIGBUS")


class WorkerPoolError(ValueError):
    """A pool without workers, time or memory."""


class WorkerPool:
    """Worker processes that are started when needed, used again, and replaced when they die or hold too much memory.

    Linux and macOS.

    Leaving the `with` block, also with Ctrl-C, kills the workers and cancels jobs that have not run: collect results
    inside.

    Args:
        max_workers: processes at most. A compilation keeps about one core busy.
        time_limit_s: seconds of CPU time that a job may use, unless `submit` says otherwise. A job that waits uses
            none: it may take ten times as long by the clock. The wait for a free worker is not counted.
        memory_limit_bytes: resident memory of a worker and its children; None: an equal share of the free memory of the
            machine or container, at least 2 GiB.

    Raises:
        WorkerPoolError: an argument that is not positive.
    """

    def __init__(self, max_workers: int = 2, time_limit_s: float = 300, memory_limit_bytes: int | None = None) -> None:
        if max_workers < 1 or time_limit_s <= 0 or (memory_limit_bytes is not None and memory_limit_bytes <= 0):
            raise WorkerPoolError(f"{max_workers=}, {time_limit_s=} and {memory_limit_bytes=} must be positive")
        self._time_limit_s = time_limit_s
        self._memory_bytes = bearable_bytes(max_workers) if memory_limit_bytes is None else memory_limit_bytes
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._closed = False
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="systolic-worker-pool")
        sweep_worker_folders()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(
        self,
        task: Callable[..., _R],
        /,
        *args: Any,
        time_limit_s: float | None = None,
        label: str = "",
    ) -> Future[_R]:
        """Run `task(*args)` in a worker.

        Functions of the user's `__main__`, closures and lambdas work; they are sent by value, and changes that they
        make to globals stay in the worker. Warnings of the worker are repeated here.

        Args:
            task: any callable.
            args: its arguments.
            time_limit_s: seconds of CPU time it may use; None: the pool's limit.
            label: names the job in errors, such as "mm for v5e".

        Returns:
            A future. It can be cancelled while it waits for a worker. It raises `CompilerCrash` if the worker died (if
            a second one did too, in interpret mode), `CompilerTimeout` if it was too slow, `CompilerOutOfMemory` if it
            took too much memory, `FunctionExit` if the task exited the program, `CompilerError` if the pool was closed
            meanwhile, `TaskError` if the outcome cannot be sent, and otherwise the exception of the task.

        Raises:
            CompilerError: the pool is closed.
        """
        # Pickled now, so that a mistake shows where it was made and later changes to the arguments do not count.
        job = dumps_with_globals((task, args))
        cpu_s = self._time_limit_s if time_limit_s is None else time_limit_s
        limits = Limits(cpu_s=cpu_s, wall_s=WALL_TIMES * cpu_s, memory_bytes=self._memory_bytes)
        try:
            return self._threads.submit(self._run, job, limits, label)
        except RuntimeError as error:
            raise CompilerError("the worker pool is closed") from error

    def progress(self) -> tuple[str, ...]:
        """Describe the progress of each running job: "compiling, 120 operations so far"."""
        with self._lock:
            return tuple(sorted(worker.progress for worker in self._busy))

    def close(self) -> None:
        """Kill the workers, cancel jobs that have not run, and remove the workers' folders. May be called again."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for worker in self._busy:
                worker.interrupt()
        for worker in idle:
            worker.end()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: tuple[bytes, tuple[SentGlobal, ...]], limits: Limits, label: str) -> Any:
        try:
            return self._run_once(job, limits, label)
        except CompilerCrash as crash:
            if crash.stage != "interpreting" or crash.signal_name not in _DEATHS_OF_RUNTIME:
                raise
        return self._run_once(job, limits, label)

    def _run_once(self, job: tuple[bytes, tuple[SentGlobal, ...]], limits: Limits, label: str) -> Any:
        worker = self._take()
        keep = False
        try:
            reply = worker.call(*job, limits=limits)
            keep = not self._is_full(worker)
        except LimitReachedError as reached:
            raise worker.stopped(label, reached) from None
        except (EOFError, BrokenPipeError):
            if self._closed:
                raise CompilerError(f"the worker pool was closed during {label or 'a task'}") from None
            raise worker.crash(label) from None
        finally:
            self._put_back(worker, keep=keep)
        return _unpacked(reply)

    def _is_full(self, worker: WorkerProcess) -> bool:
        use = group_use(worker.pid)
        return (
            use is not None and self._memory_bytes is not None and use.resident_bytes > _HELD_SHARE * self._memory_bytes
        )

    def _take(self) -> WorkerProcess:
        # There are as many threads as workers allowed, and a thread has at most one: no counting is needed.
        with self._lock:
            worker = next((worker for worker in reversed(self._idle) if worker.alive), None)
            dead = [other for other in self._idle if not other.alive]
            self._idle = [other for other in self._idle if other is not worker and other not in dead]
        for other in dead:
            other.end()
        worker = worker or WorkerProcess()
        with self._lock:
            self._busy.add(worker)
            closed = self._closed
        if closed:
            self._put_back(worker, keep=False)
            raise CompilerError("the worker pool is closed")
        return worker

    def _put_back(self, worker: WorkerProcess, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(worker)
            keep = keep and not self._closed
            if keep:
                self._idle.append(worker)
        if not keep:
            worker.end()


_WARNED: dict[Any, Any] = {}  # by which Python shows a text of one line once


# The worker has determined whose mistake an error is.
@runs_user_code
def _unpacked(reply: Reply) -> Any:
    for warning in reply.warnings:
        warnings.warn_explicit(
            warning.text, pickle.loads(warning.category), warning.file, warning.line, registry=_WARNED
        )
    try:
        value = pickle.loads(reply.value)
    except Exception as error:
        raise TaskError(
            f"what the task gave cannot be unpickled here: {error}", remote_traceback=reply.remote_traceback
        ) from error
    if reply.ok:
        return value
    record_line(value, reply.where)
    raise value
