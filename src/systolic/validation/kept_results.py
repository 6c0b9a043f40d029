"""Keep simulated programs in a file of JSON lines, so that a comparison that was stopped goes on where it was.

A result is reused only for the same program, chip record, packages and simulator. A line that is not a result, such as
the last line of a process that was killed, is skipped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path

from systolic.accuracy.time_error import time_error
from systolic.chips import Chip
from systolic.simulator import SimulatedRun, SliceRun, traits_of
from systolic.support.regular_file import open_regular
from systolic.support.untrusted import UntrustedError, read_json, structured
from systolic.timing import Measurement
from systolic.validation.errors import PublishedProgram

# Of the package: a change in them may change a time, or what is timed.
_ROOMS = ("compiler", "simulator", "timing", "validation/recorded")
_MAX_FILE_BYTES = 2**26  # of a run's text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    key: str
    program: str
    reason: str = ""
    run: str = ""  # as `to_json` of the device's run, or the slice's, writes it, deflated and in base64
    sliced: bool = False


class KeptResults:
    """The results in a file.

    Args:
      path: of the file; it is created with the first result.
      versions: of the packages that compile and simulate.
    """

    def __init__(self, path: Path, versions: Mapping[str, str | None]) -> None:
        self._path = path
        self._made_with = json.dumps([dict(versions), _source_digest()], sort_keys=True)
        self._lines = _read(path) if path.exists() else {}
        self._programs = {line.program for line in self._lines.values()}

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, program: PublishedProgram | str) -> bool:
        """True if the program, or its text, has a result of any chip record, packages and simulator."""
        return str(program) in self._programs

    def result(self, program: PublishedProgram, chip: Chip) -> Measurement | str | None:
        """Return the simulated time, or the reason why there is none; None: it was not simulated."""
        line = self._lines.get(self._key(program, chip))
        if line is None or line.reason:
            return None if line is None else line.reason
        try:
            packed = zlib.decompressobj()
            text = packed.decompress(base64.b64decode(line.run, validate=True), _MAX_FILE_BYTES)
            if line.sliced:
                slice_run = SliceRun.from_json(text.decode())
                slice_run = replace(slice_run, error=time_error(chip, slice_run.traits))  # the interval of today
                return _measured(slice_run.slowest, slice_run)
            run = SimulatedRun.from_json(text.decode())
        except (ValueError, zlib.error):
            return None
        return _measured(replace(run, error=time_error(chip, traits_of(run))), None)

    def keep(self, program: PublishedProgram, chip: Chip, result: Measurement | str) -> None:
        """Append a result.

        Raises:
          OSError: the file cannot be written.
        """
        key, reason, run, sliced = self._key(program, chip), "", "", False
        if isinstance(result, str):
            reason = result
        elif (simulated := result.slice_run or result.run) is not None:
            run = base64.b64encode(zlib.compress(simulated.to_json().encode())).decode()
            sliced = result.slice_run is not None
        line = _Line(key=key, program=str(program), reason=reason, run=run, sliced=sliced)
        # The line of a process that was killed may have no end.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(asdict(line))}\n")
        self._lines[key] = line

    def _key(self, program: PublishedProgram, chip: Chip) -> str:
        record = json.dumps(asdict(chip), sort_keys=True, default=_ordered)
        return hashlib.sha256("\n".join((str(program), record, self._made_with)).encode()).hexdigest()


def _ordered(value: object) -> object:
    """Return a set as a list: its own order differs from process to process, and with it the key would."""
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _measured(run: SimulatedRun, slice_run: SliceRun | None) -> Measurement:
    time_us = run.time_us if slice_run is None else slice_run.time_us
    return Measurement(chip=run.chip, provenance="simulated", time_us=time_us, run=run, slice_run=slice_run)


def _read(path: Path) -> dict[str, _Line]:
    result = {}
    with open_regular(path) as file:
        for text in file:
            try:
                line = structured(read_json(text), _Line)
            except UntrustedError:
                continue
            result[line.key] = line
    return result


@functools.cache
def _source_digest() -> str:
    """Return a few letters that differ if the source of programs, compiling, simulating or timing differs."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        folder = Path(str(resources.files("systolic") / room))
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
