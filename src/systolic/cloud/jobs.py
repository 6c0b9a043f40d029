"""Run a command on a machine, and bring its results back whole or not at all."""

from __future__ import annotations

import secrets
import tarfile
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from systolic.cloud import gcloud
from systolic.cloud.errors import BusyError, MachineError
from systolic.cloud.gcloud import Address, Line
from systolic.cloud.project import BUSY, NOT_INSTALLED
from systolic.support.printable import printable

_REPEATED = 75  # gcloud calls ssh again when a connection breaks: the command must not run twice
_FAILED_ENDS = {
    _REPEATED: (MachineError, "the connection broke while the command ran: run it again"),
    BUSY: (BusyError, "another command of systolic still runs there: wait, or end it by systolic tpu ssh"),
    NOT_INSTALLED: (MachineError, "systolic could not be installed there, for the reason above"),
}
# Two minutes of silence end a connection that broke without an error.
_ALIVE = ("--ssh-flag=-oServerAliveInterval=30", "--ssh-flag=-oServerAliveCountMax=4")
_MAX_BYTES = 8 * 2**30  # of results


def new_job() -> str:
    """Return a unique name of a job."""
    return f"systolic-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def lines(where: Address, job: str) -> tuple[Line, Line, Line]:
    """Return the command lines that copy a job's archive, run it, and copy its results back."""
    archive = f"{job}.tar.gz"
    shell = f"mkdir {job} || exit {_REPEATED}; tar xzf {archive} -C {job} && rm {archive} && sh {job}/run.sh </dev/null"
    return (
        gcloud.scp(where, archive, f"{where.name}:"),
        gcloud.line("ssh", where, *_ALIVE, f"--command={shell}"),
        gcloud.scp(where, f"{where.name}:{job}/results.tar.gz", "results.tar.gz"),
    )


def check_fit(where: Address) -> None:
    """Check that a machine is ready, and the only host of its slice."""
    state, hosts = gcloud.state(where)
    if state != "READY":
        raise MachineError(f"{where.name} is {state}, not READY: nothing can run on it now")
    if hosts > 1:
        raise MachineError(f"{where.name} has {hosts} hosts, which JAX starts only together: make a smaller one")


def run(where: Address, job: str, folder: Path, parent: Path) -> tuple[int, Path | None]:
    """Run a job whose archive lies in `folder`, with its output on the terminal, and bring its results back.

    Returns:
      The command's exit code, and the folder in `parent` with the files that it wrote; None if it wrote none.
    """
    upload, begin, back = lines(where, job)
    gcloud.call(upload, where.name, folder=folder, live=True)
    try:
        gcloud.call(begin, where.name, live=True)
    except MachineError as error:
        kind, text = _FAILED_ENDS.get(error.returncode, (MachineError, str(error)))
        raise kind(f"{where.name}: {text}") from error
    try:
        gcloud.call(back, where.name, folder=folder)
    except MachineError as error:
        raise MachineError(f"{where.name}: no results came back, and the command may not have run: {error}") from error
    with tempfile.TemporaryDirectory(dir=parent, prefix=".partial-") as partial:
        results = Path(partial, "results")
        results.mkdir()
        code = unpack(folder / "results.tar.gz", results)
        return code, results.rename(parent / job.removeprefix("systolic-")) if any(results.iterdir()) else None


def unpack(archive: Path, folder: Path) -> int:
    """Unpack the results of a command, and nothing else, into an empty folder; return the command's exit code."""
    try:
        # As a stream, which cannot go backwards: a size below 0 would send tarfile round in circles.
        with tarfile.open(archive, "r|gz") as members:
            members.extractall(folder, filter=_filter())
        exit_code = folder / "exit_code"
        with exit_code.open("rb") as opened:
            code = int(opened.read(8))
        exit_code.unlink()
        if not 0 <= code <= 255:
            raise MachineError(f"exit code {code}")
    except Exception as error:
        words = printable(str(error)) or type(error).__name__
        raise MachineError(
            f"the results that the machine sent are refused, and none of them is kept: {words}"
        ) from error
    return code


def _filter() -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo]:
    """Return a filter of archives for plain files with names of results, that `tarfile.data_filter` takes."""
    left = _MAX_BYTES

    def checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        nonlocal left
        left -= member.size
        parts = PurePosixPath(member.name).parts
        is_known = member.name in ("exit_code", "trials.sqlite") or (parts[:1] == ("files",) and len(parts) > 1)
        if not member.isreg() or not is_known or {"..", ".git"} & {part.lower() for part in parts}:
            raise MachineError(f"{member.name!r} is not a plain file of a result")
        if left < 0:
            raise MachineError(f"more than {_MAX_BYTES:,} bytes")
        return tarfile.data_filter(member, folder)

    return checked
