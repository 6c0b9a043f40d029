"""Messages between the pool and a worker: eight bytes of length, then the message, over a pipe."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from systolic.compiler.caller_globals import SentGlobal

_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20
_CHECK_MS = 250

# Called every quarter of a second while nothing comes or goes. What it raises ends the wait.
Check = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One job on its way to a worker: the parent's `sys.path`, the pickled pair of task and arguments, and globals of
    modules that the task may read.
    """

    sys_path: tuple[str, ...]
    job: bytes
    sent_globals: tuple[SentGlobal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A warning, and the line that gave it."""

    text: str
    category: bytes  # pickled
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of one job: the pickled result or exception, and the warnings that the task gave."""

    ok: bool  # whether `value` is a result
    value: bytes  # pickled result or exception
    remote_traceback: str = ""  # the exception's traceback in the worker, as text
    where: str = ""  # the user's line that raised it, "file.py:12 in name", or ""
    warnings: tuple[Warned, ...] = ()  # those that the task gave


def send(descriptor: int, message: bytes, *, check: Check | None = None) -> None:
    """Write one message; raise BrokenPipeError if there is no reader, or what `check` raises."""
    data = memoryview(_LENGTH.pack(len(message)) + message)
    while data:
        _wait(descriptor, select.POLLOUT, check)
        with suppress(BlockingIOError):
            data = data[os.write(descriptor, data[:_CHUNK_BYTES]) :]


def receive(descriptor: int, *, check: Check | None = None) -> bytes:
    """Read one message; raise EOFError if the writer has gone, or what `check` raises."""
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size, check))
    return _read(descriptor, length, check)


def _read(descriptor: int, length: int, check: Check | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        _wait(descriptor, select.POLLIN, check)
        with suppress(BlockingIOError):
            chunk = os.read(descriptor, min(length - len(data), _CHUNK_BYTES))
            if not chunk:
                raise EOFError
            data += chunk
    return bytes(data)


def _wait(descriptor: int, event: int, check: Check | None) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    while not poll.poll(None if check is None else _CHECK_MS):
        assert check is not None
        check()
