"""A command on a machine, from the copy of the project to the results that come back."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from systolic.cloud import commands, remote
from systolic.cloud.errors import BusyError, GcloudError, MachineUnfitError
from systolic.cloud.gcloud import Show, call
from systolic.cloud.machine import Address, Machine
from systolic.cloud.project import Project
from systolic.cloud.results import place, read_outcome, unpack

_PYTHON = "python3"
_ROOT = "systolic-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What came back.

    Attributes:
      folder: where it lies: run.json, stdout.txt, log.txt, files/ and, after `tune`, trials.sqlite.
      files: that the command wrote or changed.
      left_out: what else came, and why it was not taken.
      exit_code: of the command; 1 if it could not be begun.
      stage: `command`, or `install` if it ended there.
      stdout: all that the command wrote to it.
    """

    folder: Path
    files: tuple[Path, ...]
    left_out: tuple[str, ...]
    exit_code: int
    stage: str
    stdout: str


def new_job() -> str:
    """A job's name: when it began, and something that no other has."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_fit(machine: Machine) -> None:
    """Whether a command can be run on a machine.

    Raises:
      MachineUnfitError: it is not up, or one of several that only run together.
    """
    if machine.state != "READY":
        raise MachineUnfitError(f"{machine.name} is {machine.state}, not READY: nothing can be run on it now")
    if machine.hosts > 1:
        raise MachineUnfitError(
            f"{machine.name} ({machine.accelerator_type}) is {machine.hosts} hosts, which JAX starts only together: a "
            "measurement needs one; create a smaller one, such as v5litepod-8, v6e-8, v5p-8 or v4-8"
        )


def upload_command(address: Address, job: str) -> commands.Arguments:
    """Copies a job's two files."""
    return commands.copy_there(address, (f"systolic-{job}.py", f"systolic-{job}.tar.gz"))


def start_command(address: Address, job: str, *, replace: bool) -> commands.Arguments:
    """Begins a job, and follows it to its end."""
    words = (_PYTHON, f"systolic-{job}.py", "start", job, *(("--replace",) if replace else ()))
    return commands.ssh_run(address, words)


def follow_command(address: Address) -> commands.Arguments:
    """Follows the job that was begun last."""
    return commands.ssh_run(address, (_PYTHON, f"{_ROOT}/remote.py", "follow"))


def fetch_command(address: Address, job: str) -> commands.Arguments:
    """Copies the results of a job; "": of the one that ended last."""
    path = f"jobs/{job}/results.tar.gz" if job else "latest.tar.gz"
    return commands.copy_back(address, f"{_ROOT}/{path}", "results.tar.gz")


def upload(address: Address, job: str, project: Project, command: Sequence[str], show: Show) -> None:
    """Copies the project and the command to a machine.

    Raises:
      MachineError: as `call`.
    """
    with tempfile.TemporaryDirectory() as folder:
        project.write(Path(folder), job, command)
        call(upload_command(address, job), address.name, show=show, folder=Path(folder))


def follow(address: Address, line: commands.Arguments, show: Show) -> None:
    """Runs `start_command` or `follow_command`.

    Raises:
      BusyError: another command runs there.
      MachineError: as `call`.
    """
    try:
        call(line, address.name, show=show)
    except GcloudError as error:
        if error.returncode == remote.BUSY:
            raise BusyError(
                f"another command still runs on {address.name}: --resume follows it, --replace stops it first"
            ) from error
        if error.returncode in (remote.NO_JOB, remote.DIED):
            raise MachineUnfitError(f"{address.name} has no results to bring back: {error.words}") from error
        raise


def fetch(address: Address, job: str, parent: Path, show: Show) -> Results:
    """Brings the results back into a folder of their own beneath `parent`.

    Raises:
      ResultsError: what came is not what a job leaves behind; nothing of it was placed.
      MachineError: as `call`.
    """
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        call(fetch_command(address, job), address.name, show=show, folder=folder)
        unpacked = folder / "unpacked"
        unpacked.mkdir()
        left_out = unpack(folder / "results.tar.gz", unpacked)
        outcome = read_outcome(unpacked, job)
        stdout = unpacked / "stdout.txt"
        said = stdout.read_text(encoding="utf-8", errors="replace") if stdout.exists() else ""
        target = parent / outcome.job
        place(unpacked, target)
    return Results(
        folder=target,
        files=tuple(sorted(path for path in (target / "files").rglob("*") if path.is_file())),
        left_out=left_out,
        exit_code=outcome.exit_code,
        stage=outcome.stage,
        stdout=said,
    )
