"""The other side of `WorkerPool`: runs one task at a time and dies with its parent.

The pool starts it with these environment variables of its own:
    SYSTOLIC_DUMP_DIR: the folder that libtpu writes its listings to; see `compile_function`.
    SYSTOLIC_WORKER_FOLDER: the folder to remove when the parent dies; the dump folder is in it.
    SYSTOLIC_WORKER_PARENT: the parent's process id.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import shutil
import sys
import threading
import traceback
import warnings
from contextlib import suppress
from typing import Any

import cloudpickle

from systolic.bugs import SystolicBug, is_own, runs_user_code
from systolic.compiler import wire
from systolic.compiler.errors import CompilerError, TaskError

DUMP_VARIABLE = "SYSTOLIC_DUMP_DIR"
FOLDER_VARIABLE = "SYSTOLIC_WORKER_FOLDER"
PARENT_VARIABLE = "SYSTOLIC_WORKER_PARENT"

_PARENT_CHECK_MS = 1000


def main() -> None:
    """Serve requests from standard input until it closes. Does not return."""
    requests, replies = os.dup(0), os.dup(1)
    # Libraries print, and would break the replies: from here on standard output is standard error.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _leave_no_core_files()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_until_parent_dies, args=(requests, inbox), daemon=True).start()
    while True:
        message = inbox.get()
        wire.send(replies, pickle.dumps(run_request(pickle.loads(message))))


def run_request(request: wire.Request) -> wire.Reply:
    """Run one task and pack up whatever comes of it."""
    sys.path.extend(path for path in request.sys_path if path not in sys.path)
    with warnings.catch_warnings(record=True) as caught:
        try:
            reply = _packed_result(_performed(request.job))
        except BaseException as error:  # noqa: BLE001 -- whatever a task does, sys.exit() too, is the caller's
            # Said here: a traceback, which tells, does not travel.
            reply = _packed_error(SystolicBug.of(error) if is_own(error) else error)
    noted = tuple((str(warning.message), cloudpickle.dumps(warning.category)) for warning in caught)
    return wire.Reply(ok=reply.ok, value=reply.value, remote_traceback=reply.remote_traceback, warnings=noted)


@runs_user_code
def _performed(job: bytes) -> Any:
    task, arguments = pickle.loads(job)
    return task(*arguments)


def _packed_result(result: Any) -> wire.Reply:
    try:
        return wire.Reply(ok=True, value=cloudpickle.dumps(result))
    except Exception as error:
        kind = type(result).__qualname__
        raise TaskError(f"the task returned a {kind}, which cannot be sent on: {error}", remote_traceback="") from error


def _packed_error(error: BaseException) -> wire.Reply:
    text = "".join(traceback.format_exception(error))
    value = None
    if isinstance(error, Exception):
        # A class whose constructor wants more than its `args` pickles well and cannot be unpickled: try both here.
        with suppress(Exception):
            value = cloudpickle.dumps(error)
            pickle.loads(value)
            if not isinstance(error, CompilerError | SystolicBug):
                error.add_note(f"In the worker process:\n{text}")
                value = cloudpickle.dumps(error)
            return wire.Reply(ok=False, value=value, remote_traceback=text)
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    wrapped = TaskError(f"the task raised {name}, which cannot be sent on: {error}", remote_traceback=text)
    return wire.Reply(ok=False, value=pickle.dumps(wrapped), remote_traceback=text)


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


def _leave_no_core_files() -> None:
    import resource  # not there on Windows

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


if __name__ == "__main__":
    main()
