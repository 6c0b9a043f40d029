"""The other side of `WorkerPool`: runs one task at a time and dies with its parent.

The pool starts it with these environment variables of its own:
    SYSTOLIC_DUMP_DIR: the folder that libtpu writes its listings to; see `compile_function`.
    SYSTOLIC_WORKER_FOLDER: the folder to remove when the parent dies; the dump folder is in it.
    SYSTOLIC_WORKER_PARENT: the parent's process id.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import os
import pickle
import queue
import select
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle

from systolic.compiler import wire
from systolic.compiler.blame import current_line, source_line
from systolic.compiler.caller_globals import callers_globals
from systolic.compiler.endings import FunctionExit
from systolic.compiler.errors import CompilerError, TaskError
from systolic.compiler.folders import EXIT_FILE, STACK_FILE
from systolic.compiler.stage import FOLDER_VARIABLE
from systolic.support.bugs import SystolicBug, is_own, runs_user_code

DUMP_VARIABLE = "SYSTOLIC_DUMP_DIR"
PARENT_VARIABLE = "SYSTOLIC_WORKER_PARENT"

# Asks the worker for the Python stacks of its threads.
STACK_SIGNAL = signal.SIGUSR1

_PARENT_CHECK_MS = 1000


def main() -> None:
    """Say that it has started, and serve requests from standard input until it closes. Does not return."""
    requests, replies = os.dup(0), os.dup(1)
    # Libraries print, and would break the replies: from here on standard output is standard error.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _leave_no_core_files()
    _tell_last_lines(Path(os.environ[FOLDER_VARIABLE]))
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_until_parent_dies, args=(requests, inbox), daemon=True).start()
    wire.send(replies, b"started")
    while True:
        message = inbox.get()
        wire.send(replies, pickle.dumps(run_request(pickle.loads(message))))


def run_request(request: wire.Request) -> wire.Reply:
    """Run one task and pack its outcome."""
    sys.path.extend(path for path in request.sys_path if path not in sys.path)
    with warnings.catch_warnings(record=True) as caught:
        try:
            reply = _packed_result(_performed(request))
        except Exception as error:  # noqa: BLE001 -- whatever a task raises is the caller's
            # Whether it is a bug of systolic is said here: a traceback, which tells, does not travel.
            reply = _packed_error(SystolicBug.of(error) if is_own(error) else error, source_line(error) or "")
        except BaseException as error:  # noqa: BLE001 -- what sys.exit() raises: the caller's program shall go on
            where = source_line(error) or ""
            reply = _packed_error(FunctionExit(repr(error), where).with_traceback(error.__traceback__), where)
    noted = tuple(
        wire.Warned(
            text=str(warning.message),
            category=cloudpickle.dumps(warning.category),
            file=warning.filename,
            line=warning.lineno,
        )
        for warning in caught
    )
    return dataclasses.replace(reply, warnings=noted)


@runs_user_code
def _performed(request: wire.Request) -> Any:
    task, arguments = pickle.loads(request.job)
    with callers_globals(request.sent_globals):
        return task(*arguments)


def _packed_result(result: Any) -> wire.Reply:
    try:
        return wire.Reply(ok=True, value=cloudpickle.dumps(result))
    except Exception as error:
        kind = type(result).__qualname__
        raise TaskError(f"the task returned a {kind}, which cannot be sent on: {error}", remote_traceback="") from error


def _packed_error(error: Exception, where: str) -> wire.Reply:
    text = "".join(traceback.format_exception(error))
    # A class whose constructor wants more than its `args` pickles well and cannot be unpickled: try both here.
    with suppress(Exception):
        value = cloudpickle.dumps(error)
        pickle.loads(value)
        if not isinstance(error, CompilerError | SystolicBug):
            error.add_note(f"In the worker process:\n{text}")
            value = cloudpickle.dumps(error)
        return wire.Reply(ok=False, value=value, remote_traceback=text, where=where)
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    wrapped = TaskError(f"the task raised {name}, which cannot be sent on: {error}", remote_traceback=text)
    return wire.Reply(ok=False, value=pickle.dumps(wrapped), remote_traceback=text, where=where)


def _receive_until_parent_dies(requests: int, inbox: queue.SimpleQueue[bytes]) -> None:
    # A thread of its own, so that it also notices while the main thread compiles: libtpu lets go of the interpreter's
    # lock meanwhile. The end of the pipe is the signal; a process that the parent forked may hold the pipe open, so the
    # parent's id is looked at as well.
    parent = int(os.environ[PARENT_VARIABLE])
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    with suppress(EOFError, OSError):
        while os.getppid() == parent:
            if poll.poll(_PARENT_CHECK_MS):
                inbox.put(wire.receive(requests))
    shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
    os._exit(0)


def _tell_last_lines(folder: Path) -> None:
    """Let the parent find where this process was, when it stops it and when the user's code ends it."""
    # The file stays open: the handler knows nothing but its descriptor.
    stacks = os.open(folder / STACK_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    # Nothing can be caught when a process exits by this function, and its parent would see an exit code alone.
    os._exit = functools.partial(_exit_noted, os.getpid(), folder / EXIT_FILE, os._exit)


def _exit_noted(worker: int, file: Path, leave: Callable[[int], Any], status: int) -> None:
    # A child that was forked ends by it in the ordinary way.
    if os.getpid() == worker:
        with suppress(OSError):
            file.write_text(current_line())
    leave(status)


def _leave_no_core_files() -> None:
    import resource  # not there on Windows

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


if __name__ == "__main__":
    main()
