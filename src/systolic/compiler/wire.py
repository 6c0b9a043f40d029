"""Messages between the pool and a worker: eight bytes of length, then the message, over a pipe."""

from __future__ import annotations

import os
import select
import struct
import time
from contextlib import suppress
from dataclasses import dataclass

_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One job on its way to a worker: the parent's `sys.path`, and the pickled pair of task and arguments."""

    sys_path: tuple[str, ...]
    job: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of one job: the pickled result or exception, and the warnings that the task gave.

    Attributes:
        ok: whether `value` is a result.
        value: pickled result or exception.
        remote_traceback: the exception's traceback in the worker, as text.
        warnings: message and pickled category of each.
    """

    ok: bool
    value: bytes
    remote_traceback: str = ""
    warnings: tuple[tuple[str, bytes], ...] = ()


def send(descriptor: int, message: bytes, *, deadline: float | None = None) -> None:
    """Write one message. `deadline` is a `time.monotonic()` in seconds.

    Raises:
        TimeoutError: the reader was too slow.
        BrokenPipeError: there is no reader.
    """
    data = memoryview(_LENGTH.pack(len(message)) + message)
    while data:
        _wait(descriptor, select.POLLOUT, deadline)
        with suppress(BlockingIOError):
            data = data[os.write(descriptor, data[:_CHUNK_BYTES]) :]


def receive(descriptor: int, *, deadline: float | None = None) -> bytes:
    """Read one message. `deadline` is a `time.monotonic()` in seconds.

    Raises:
        TimeoutError: no whole message came in time.
        EOFError: the writer has gone.
    """
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size, deadline))
    return _read(descriptor, length, deadline)


def _read(descriptor: int, length: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        _wait(descriptor, select.POLLIN, deadline)
        with suppress(BlockingIOError):
            chunk = os.read(descriptor, min(length - len(data), _CHUNK_BYTES))
            if not chunk:
                raise EOFError
            data += chunk
    return bytes(data)


def _wait(descriptor: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    remaining_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(remaining_ms):
        raise TimeoutError
