"""Results that a machine has packed, which may be broken or somebody else's by now.

Whatever the archive says: only files of known names are taken, and they go into the job's own folder and nowhere else.
"""

from __future__ import annotations

import gzip
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from systolic.cloud.errors import MachineError
from systolic.cloud.remote import STORE
from systolic.printable import printable
from systolic.untrusted import UntrustedError, read_json, shown, structured

_JOB = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}", re.ASCII)  # as `jobs.new_job` makes them
_TEXTS = ("run.json", "stdout.txt", "log.txt")
_MOST_BYTES = 8 * 2**30  # of all files
_MOST_TEXT_BYTES = 2**28  # of one that is read here
_MOST_FILES = 100_000
_MOST_AT_ONCE = 2**20  # bytes; a header of tar's has hundreds, and names in it up to some thousands
_LONGEST_NAME = 255  # bytes, of most file systems


class ResultsError(MachineError):
    """What a machine sent back cannot be taken for the results of a job; nothing of it was placed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What run.json says of a job: which, and how it ended."""

    job: str
    command: tuple[str, ...]
    commit: str
    stage: Literal["install", "command"]
    exit_code: int


def unpack(archive: Path, folder: Path) -> tuple[str, ...]:
    """Writes the files of an archive into a folder that nobody else writes to.

    Returns:
      What was left out, and why, each in one line: what is no plain file, whose name is none of a result's or leads
      elsewhere, what is there twice.

    Raises:
      ResultsError: it is no archive, or larger than results can be.
    """
    left_out = []
    try:
        with archive.open("rb") as packed, gzip.open(packed) as stream:
            members = tarfile.open(fileobj=_Bounded(stream), mode="r:")  # type: ignore[arg-type]  # noqa: SIM115
            for number, member in enumerate(members):
                if number >= _MOST_FILES:
                    raise tarfile.ReadError(f"it has more than {_MOST_FILES:,} files")
                why = _objection(member) or _write(members, member, folder)
                if why:
                    left_out.append(f"{shown(member.name)}: {why}")
    except Exception as error:
        said = printable(str(error)) or type(error).__name__
        raise ResultsError(f"the results that the machine sent cannot be unpacked: {said}") from error
    return tuple(left_out)


def read_outcome(folder: Path, job: str) -> Outcome:
    """What run.json of unpacked results says.

    Args:
      job: which it has to be; "": any.

    Raises:
      ResultsError: it is not there, or says something else.
    """
    try:
        outcome = structured(read_json((folder / "run.json").read_bytes()), Outcome)
        if not _JOB.fullmatch(outcome.job) or (job and outcome.job != job):
            raise UntrustedError(f"job={shown(outcome.job)} is not {job or 'the name of a job'}")
        if not -255 <= outcome.exit_code <= 255:
            raise UntrustedError(f"exit_code={outcome.exit_code} is none")
    except FileNotFoundError as error:
        raise ResultsError("the results that the machine sent have no run.json; nothing of them was placed") from error
    except UntrustedError as error:
        said = f"run.json of the results that the machine sent: {error}; nothing of them was placed"
        raise ResultsError(said) from error
    return outcome


def place(unpacked: Path, target: Path) -> None:
    """Moves unpacked results into a job's folder, in place of those that were there.

    Raises:
      ResultsError: a link in that folder leads elsewhere, or a file and a folder have the same name.
    """
    try:
        if target.is_symlink():
            raise ResultsError(f"{printable(str(target))} is a link: nothing is placed where it leads")
        target.mkdir(exist_ok=True)
        for path in sorted(unpacked.rglob("*")):
            placed = target / path.relative_to(unpacked)
            if not placed.parent.resolve().is_relative_to(target.resolve()):
                raise ResultsError(f"{printable(str(placed))} is behind a link that leads elsewhere")
            if path.is_file():
                placed.parent.mkdir(parents=True, exist_ok=True)
                path.replace(placed)
    except OSError as error:
        raise ResultsError(f"the results cannot be placed in {printable(str(target))}: {error.strerror}") from error


class _Bounded:
    """A stream of which no more is read than results can have, never much at once, and never backwards.

    `tarfile` trusts sizes that it reads: one of gigabytes for a header, or one below 0, after which it reads the same
    member for ever.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"{size:,} bytes in a header")
        self._check(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, place: int) -> int:
        if place < self._stream.tell() - 1:
            raise tarfile.ReadError("a file ends ahead of its beginning")
        self._check(place)
        return self._stream.seek(place)

    def tell(self) -> int:
        return self._stream.tell()

    def _check(self, place: int) -> None:
        if place > _MOST_BYTES:
            raise tarfile.ReadError(f"it has more than {_MOST_BYTES:,} bytes")


def _objection(member: tarfile.TarInfo) -> str:
    """Why a member of the archive is left out; "": it is not."""
    if not member.isreg() or member.issparse():
        return "is no plain file"
    path = PurePosixPath(member.name)
    known = member.name in (*_TEXTS, STORE.name) or (path.parts[:1] == ("files",) and len(path.parts) > 1)
    if path.as_posix() != member.name or ".." in path.parts or "\0" in member.name or not known:
        return "is no name of a result"
    if ".git" in (part.lower() for part in path.parts):
        return "git would take it for its own"
    if max(len(part.encode(errors="surrogateescape")) for part in path.parts) > _LONGEST_NAME:
        return "has a name that is too long"
    if member.name in _TEXTS and member.size > _MOST_TEXT_BYTES:
        return f"has more than {_MOST_TEXT_BYTES:,} bytes"
    return ""


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> str:
    """Writes one file, without its mode and owner; or says why not."""
    target = folder / member.name
    content = archive.extractfile(member)
    assert content is not None  # a plain file
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as written:
            while chunk := content.read(_MOST_AT_ONCE):
                written.write(chunk)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return "is there twice"
    return ""
