"""One worker process as its parent sees it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from systolic.compiler import wire
from systolic.compiler.blame import line_in_stacks
from systolic.compiler.caller_globals import SentGlobal
from systolic.compiler.dump import dump_flags
from systolic.compiler.endings import CompilerCrash, CompilerOutOfMemory, CompilerTimeout, FunctionExit
from systolic.compiler.folders import make_worker_folder
from systolic.compiler.limits import WALL_TIMES, LimitReachedError, Limits, Watch
from systolic.compiler.stage import FOLDER_VARIABLE, progress_in, stage_in
from systolic.compiler.worker import DUMP_VARIABLE, PARENT_VARIABLE, STACK_SIGNAL

_SYS_PATH_VARIABLE = "SYSTOLIC_WORKER_SYS_PATH"
# A program text and not `-m systolic.compiler.worker`: the worker has to find the package, and everything else, along
# exactly the parent's path, which `-m` would begin with the current folder.
_START = (
    f"import os, sys; sys.path[:] = os.environ.pop({_SYS_PATH_VARIABLE!r}).split(os.pathsep); "
    "from systolic.compiler.worker import main; main()"
)
# libtpu says why it aborts before a stack trace and its crash handler's report.
_STDERR_TAIL_BYTES = 1 << 17
_EXIT_WAIT_S = 5.0
_STACK_WAIT_S = 2.0
_START_LIMIT_S = 60.0


class WorkerProcess:
    """A running worker. Used by one thread at a time; `interrupt` may be called from any.

    It is a plain subprocess and not one of multiprocessing's: those run the user's `__main__` again, and libtpu reads
    its flags from the environment once, when it loads.
    """

    def __init__(self) -> None:
        self._folder = make_worker_folder()
        self._stderr_start = 0
        self._lock = threading.Lock()
        self._started = False
        self._ended = False
        try:
            with self._folder.stderr.open("wb") as stderr:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _START],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=self._environment(),
                    bufsize=0,
                    # A group of its own: Ctrl-C goes to the parent alone, and a kill takes the worker's children too.
                    start_new_session=True,
                )
        except BaseException:
            self._folder.remove()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin.fileno()
        self._replies = self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return not self._ended and self._process.poll() is None

    @property
    def progress(self) -> str:
        """A few words on how far its job is."""
        return progress_in(self._folder.path)

    def call(self, job: bytes, sent_globals: tuple[SentGlobal, ...] = (), *, limits: Limits) -> wire.Reply:
        """Send a pickled job and wait for the reply.

        Raises:
            LimitReachedError: the job is past one of its limits; the worker still runs.
            EOFError, BrokenPipeError: the worker is dead.
        """
        self._wait_until_started(limits)
        watch = Watch(self._process.pid, limits)
        self._stderr_start = self._folder.stderr.stat().st_size
        request = wire.Request(sys_path=tuple(_absolute_sys_path()), job=job, sent_globals=sent_globals)
        wire.send(self._requests, pickle.dumps(request), check=watch.check)
        return pickle.loads(wire.receive(self._replies, check=watch.check))

    def _wait_until_started(self, limits: Limits) -> None:
        # Importing this package is no part of the job, and takes longer on a busy machine.
        if not self._started:
            cpu_s = max(limits.cpu_s, _START_LIMIT_S)
            start = Limits(cpu_s=cpu_s, wall_s=WALL_TIMES * cpu_s, memory_bytes=limits.memory_bytes)
            wire.receive(self._replies, check=Watch(self._process.pid, start).check)
            self._started = True

    def crash(self, label: str) -> CompilerCrash | FunctionExit:
        """Return the ending of a worker that died. Ends its remaining processes."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_WAIT_S)
        tail, (stage, _) = self._stderr_tail(), stage_in(self._folder.path)
        place = self._folder.exit_place.read_text() if self._folder.exit_place.exists() else None
        self.end()
        code = self._process.returncode
        if place is not None and code >= 0:
            return FunctionExit(f"os._exit({code})", place)
        name = signal.Signals(-code).name if code < 0 else None
        exit_code = None if name else code
        return CompilerCrash(label=label, exit_code=exit_code, signal_name=name, stderr_tail=tail, stage=stage)

    def stopped(self, label: str, reached: LimitReachedError) -> CompilerTimeout | CompilerOutOfMemory:
        """Return the ending of a job that is past a limit. Asks the worker where it is, and ends it."""
        stage, about = stage_in(self._folder.path)
        where = line_in_stacks(self._stacks()) or about
        self.end()
        place = {"label": label, "stage": stage, "where": where}
        if reached.kind == "memory":
            return CompilerOutOfMemory(limit_bytes=int(reached.limit), used_bytes=reached.used_bytes, **place)
        return CompilerTimeout(limit_s=reached.limit, counted=reached.kind, used_cpu_s=reached.used_cpu_s, **place)

    def _stacks(self) -> str:
        """Return the Python stacks of the worker's threads; "" if it does not answer, for instance while it starts."""
        with suppress(OSError):
            self._process.send_signal(STACK_SIGNAL)
            deadline = time.monotonic() + _STACK_WAIT_S
            before = ""
            while time.monotonic() < deadline:
                time.sleep(0.05)
                now = self._folder.stack.read_text(errors="replace")
                if now and now == before:
                    return now
                before = now
        return ""

    def interrupt(self) -> None:
        """Kill the process and its children, and leave the cleaning up to the thread that uses it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and its children, wait for it and remove its folder. May be called again."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self.interrupt()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._folder.remove()

    def _stderr_tail(self) -> str:
        with suppress(OSError), self._folder.stderr.open("rb") as stderr:
            size = stderr.seek(0, os.SEEK_END)
            stderr.seek(max(self._stderr_start, size - _STDERR_TAIL_BYTES))
            return stderr.read().decode(errors="replace")
        return ""

    def _environment(self) -> dict[str, str]:
        flags = [os.environ.get("LIBTPU_INIT_ARGS", ""), *dump_flags(self._folder.dump)]
        return {
            # libtpu leaves a few log files per process, otherwise in a folder that is never cleared.
            "TPU_LOG_DIR": str(self._folder.path),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            # No chip here: look for none, ask no metadata server, and let several processes load libtpu.
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "LIBTPU_INIT_ARGS": " ".join(flags).strip(),
            DUMP_VARIABLE: str(self._folder.dump),
            FOLDER_VARIABLE: str(self._folder.path),
            PARENT_VARIABLE: str(os.getpid()),
            _SYS_PATH_VARIABLE: os.pathsep.join(_absolute_sys_path()),
        }


def _absolute_sys_path() -> list[str]:
    return [path or str(Path.cwd()) for path in sys.path]
