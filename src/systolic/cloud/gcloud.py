"""The command lines of `gcloud`, as arguments that no shell reads, and calls of them.

A value shares one argument with its flag, so that none can be taken for a flag itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from systolic.cloud.errors import MachineError, TpuCallError, failure
from systolic.support.untrusted import UntrustedError, mapping, read_json, shown

Line = tuple[str, ...]
_TPU_VM = ("gcloud", "compute", "tpus", "tpu-vm")
# https://cloud.google.com/compute/docs/naming-resources
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A machine's name and place; an empty zone or project is taken from gcloud's configuration."""

    name: str
    zone: str = ""
    project: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise TpuCallError(f"{self.name!r} is not a name of a machine: use lower-case letters, digits and hyphens")

    @property
    def flags(self) -> Line:
        """The flags of `gcloud`, and of `systolic tpu`, for zone and project."""
        pairs = (("--zone", self.zone), ("--project", self.project))
        return tuple(f"{flag}={value}" for flag, value in pairs if value)


def line(verb: str, where: Address, *arguments: str) -> Line:
    """Return the command line of a verb for one machine."""
    return (*_TPU_VM, verb, where.name, *where.flags, *arguments)


def scp(where: Address, source: str, target: str) -> Line:
    """Return the command line that copies a file; `NAME:` stands before one of the machine's home folder."""
    return (*_TPU_VM, "scp", source, target, *where.flags)


def program() -> str:
    """Return the path of `gcloud`; a `MachineError` says how to install it."""
    path = shutil.which("gcloud")
    if path is None:
        raise MachineError("gcloud is not installed: see https://cloud.google.com/sdk/docs/install, then gcloud init")
    return path


def call(arguments: Sequence[str], name: str, *, folder: Path | None = None, live: bool = False) -> str:
    """Run a command line for a machine in a folder, and return its standard output; or raise a `MachineError`.

    Args:
      live: leave it the terminal, for its output and its questions; else it cannot ask any.
    """
    source, sink = (None, None) if live else (subprocess.DEVNULL, subprocess.PIPE)
    command = [program(), *arguments[1:]]
    done = subprocess.run(command, cwd=folder, stdin=source, stdout=sink, stderr=sink, text=True, errors="replace")
    if done.returncode != 0:
        raise failure(arguments[len(_TPU_VM)], name, done.returncode, done.stderr or "")
    return done.stdout or ""


def state(where: Address) -> tuple[str, int]:
    """Return a machine's state, such as READY or PREEMPTED, and the number of hosts of its slice."""
    text = call(line("describe", where, "--format=json"), where.name)
    try:
        record = mapping(read_json(text), "it")
        word, endpoints = record.get("state"), record.get("networkEndpoints", [])
        if not (isinstance(word, str) and word.isprintable() and isinstance(endpoints, list)):
            raise UntrustedError("it has no state")
    except UntrustedError as error:
        raise MachineError(f"gcloud describe answered {shown(text)}, which is not a machine: {error}") from error
    return word, max(1, len(endpoints))
