"""Calls `gcloud`: a list of arguments, never a shell; and its failures as named errors."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from systolic.cloud import commands
from systolic.cloud.errors import GcloudError, GcloudMissingError, classified
from systolic.cloud.machine import Address, Machine, QueuedRequest, listed
from systolic.untrusted import UntrustedError, read_json

_T = TypeVar("_T")
Show = Callable[[bytes], None]

_SECONDS_TO_END = 10.0


def found() -> str:
    """Where `gcloud` is.

    Raises:
      GcloudMissingError: nowhere.
    """
    program = shutil.which("gcloud")
    if program is None:
        raise GcloudMissingError
    return program


def call(arguments: Sequence[str], name: str = "", *, show: Show | None = None, folder: Path | None = None) -> str:
    """Runs a command line of `commands`; returns what it wrote to standard output.

    Args:
      name: of the machine, for messages.
      show: is given what gcloud writes to standard error, while it does; a question to the user is among it.
      folder: to run it in.

    Raises:
      GcloudMissingError: there is no gcloud.
      GcloudError: it failed; a subclass where it is known how.
    """
    said: list[bytes] = []
    # Without buffers: one that a thread still reads cannot be closed, and gcloud's ssh may outlive it.
    with subprocess.Popen(
        [found(), *arguments[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, bufsize=0
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        listener = threading.Thread(target=_listen, args=(process.stderr, said, show), daemon=True)
        listener.start()
        try:
            out = process.stdout.read()
            returncode = process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            listener.join(timeout=_SECONDS_TO_END)
    if returncode != 0:
        raise classified(arguments[4], name, returncode, b"".join(said).decode(errors="replace"))
    return out.decode(errors="replace")


def converse(arguments: Sequence[str], name: str) -> int:
    """Runs a command line with this terminal as its own; returns its exit code.

    Raises:
      GcloudMissingError: there is no gcloud.
      ConnectionLostError: ssh failed.
    """
    returncode = subprocess.call([found(), *arguments[1:]])
    if returncode == 255:
        raise classified(arguments[4], name, returncode, "")
    return returncode


def machine(address: Address) -> Machine:
    """What is known of a machine.

    Raises:
      MachineNotFoundError: it is not there.
      MachineError: as `call`.
    """
    return _read(call(commands.describe(address), address.name), Machine.of)


def queued_request(address: Address) -> QueuedRequest:
    """What is known of a request for a machine.

    Raises:
      MachineNotFoundError: it is not there.
      MachineError: as `call`.
    """
    return _read(call(commands.describe_queued(address), address.name), QueuedRequest.of)


def machines(zone: str, project: str) -> list[Machine]:
    """The machines of a zone.

    Raises:
      MachineError: as `call`.
    """
    return _read(call(commands.list_machines(zone, project)), lambda found: list(map(Machine.of, listed(found))))


def queued_requests(zone: str, project: str) -> list[QueuedRequest]:
    """The requests of a zone, with those whose machine is there.

    Raises:
      MachineError: as `call`.
    """
    return _read(call(commands.list_queued(zone, project)), lambda found: list(map(QueuedRequest.of, listed(found))))


def _read(text: str, reader: Callable[[Any], _T]) -> _T:
    try:
        return reader(read_json(text))
    except UntrustedError as error:
        raise GcloudError(
            f"gcloud answered with something else than asked for: {error}: {text[:200]!r}", text
        ) from error


def _listen(stream: IO[bytes], said: list[bytes], show: Show | None) -> None:
    # Not by lines: a question of gcloud's ends without one. Unbuffered, this returns what there is.
    while chunk := stream.read(65536):
        said.append(chunk)
        if show is not None:
            show(chunk)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process as Ctrl-C does: it has got that already if it was pressed, but not if this one was stopped."""
    try:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=_SECONDS_TO_END)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.terminate()
