"""Errors of simulated times by kind of program, from the comparison with published times.

`systolic validate … --intervals FILE` makes `time_errors.json`, and it is not edited by hand. It holds for the
constants with which it was made, and for programs like the compared ones; for others it has the reason why there is no
number.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Literal

from systolic.chips.chip import Chip, MachineModel
from systolic.support.ranges import Amount, Change, Count, Time
from systolic.support.untrusted import UntrustedError, read_json, structured

RatioVerdict = Literal["faster", "slower", "level", "not known"]

SCHEMA = 1
_FILE = "time_errors.json"
# Of the share of the time that the busier of matrix units and HBM is at work; below, something else takes the time.
_BOUND = 0.5
# How much shorter, or fuller of copies, than any program that was checked one may be and still count as alike.
_ALIKE = 2.0


class TimeErrorsError(ValueError):
    """A file of time errors that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTraits:
    """Traits of a program, by which similar published programs are found."""

    pallas_share: float  # share of its time in Pallas kernels
    matrix_share: float  # share of its time in which rows go through the matrix units
    hbm_share: float  # share of its time in which bytes cross HBM
    time_us: float
    copies_per_us: float | None = None  # on one core; None: not known
    unlike: str = ""  # a property that no published program has, in few words; "": none

    @property
    def kind(self) -> str:
        """The kind of program in words; "" where neither matrix units nor HBM bound it."""
        if max(self.matrix_share, self.hbm_share) < _BOUND:
            return ""
        maker = "Pallas kernel" if self.pallas_share >= 0.5 else "XLA program"
        return f"{maker}, bound by {'matrix units' if self.matrix_share >= self.hbm_share else 'HBM'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKind:
    """The comparison of one kind of program with published times, on one chip in one clock state."""

    chip: str
    kind: str  # of program, see `ProgramTraits.kind`
    programs: Count  # number of different compared programs
    bias_percent: Change  # the median of published over simulated time, less 1
    # Nine of ten published times lie within so much of the simulated one; None: too few programs.
    error_percent: Amount | None
    ratio_programs: Count  # on this chip, with another one of the same kernel and like sizes, of any kind
    ratio_percent: Amount | None  # the same as `error_percent` of the ratio of two times of the same kernel
    least_us: Time  # the shortest program's time
    most_copies_per_us: Amount  # the largest among the programs

    def unlike(self, traits: ProgramTraits) -> str:
        """Return why a program of this kind differs from the compared ones; "" if it does not."""
        if traits.time_us < self.least_us / _ALIKE:
            return f"shorter than what was checked, which takes {float(f'{self.least_us:.3g}'):,.10g} µs and more"
        if (traits.copies_per_us or 0.0) > self.most_copies_per_us * _ALIKE:
            return "many small copies, unlike what was checked"
        if self.error_percent is None:
            return f"only {self.programs} such program{'s were' if self.programs != 1 else ' was'} checked"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeErrors:
    """All errors, and how they were made."""

    command: str  # made it
    versions: Mapping[str, str]  # the packages' that compiled and compared
    machines: Mapping[str, str]  # each chip's `machine_digest`
    kinds: tuple[CheckedKind, ...]
    schema: int = SCHEMA

    def as_json(self) -> str:
        """Write JSON text for `from_json`, sorted for people who compare it."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TimeErrors:
        """Read the text of `as_json`; raise TimeErrorsError if it is none, or of another schema."""
        try:
            errors = structured(read_json(text), cls)
        except UntrustedError as error:
            raise TimeErrorsError(f"these are no errors of simulated times: {error}") from error
        if errors.schema != SCHEMA:
            raise TimeErrorsError(f"errors of simulated times of schema {errors.schema}; here it is {SCHEMA}")
        return errors

    def of(self, chip: Chip, traits: ProgramTraits) -> TimeError:
        """Return the error of a simulated time of such a program on this chip."""
        kind = traits.kind
        if traits.unlike:
            return TimeError(kind=kind, reason=f"{traits.unlike}, unlike anything that was checked")
        if not kind:
            return TimeError(reason="bound by neither matrix units nor HBM, unlike anything that was checked")
        if chip.name not in self.machines:
            return TimeError(kind=kind, reason=f"no published time of {chip.name} was checked")
        if self.machines[chip.name] != machine_digest(chip.machine):
            return TimeError(kind=kind, reason="its constants are not those that were checked")
        checked = next(
            (candidate for candidate in self.kinds if (candidate.chip, candidate.kind) == (chip.name, kind)), None
        )
        if checked is None:
            return TimeError(kind=kind, reason=f"no {kind} was checked on {chip.name}")
        if unlike := checked.unlike(traits):
            return TimeError(kind=kind, reason=unlike)
        return TimeError(
            kind=kind, percent=checked.error_percent, ratio_percent=checked.ratio_percent, programs=checked.programs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeError:
    """The error of a simulated time."""

    kind: str = ""  # of the program, in words
    # Nine of ten published times of such programs lie within so much of the simulated ones; None: not known.
    percent: Amount | None = None
    ratio_percent: Amount | None = None  # the same of the ratio of two times of the same kernel; None: not known
    programs: Count = 0  # published programs of these numbers
    reason: str = ""  # why `percent` is not known, in few words; "" if that is not known either

    @property
    def words(self) -> str:
        """Return the error after a time: "± 4 %", "± ? (why)" or "± ?"."""
        return f"± {self.cell} ({self.reason})" if self.percent is None and self.reason else f"± {self.cell}"

    @property
    def cell(self) -> str:
        """Return the error in a table: "4 %", or "?"."""
        return percent_text(self.percent) if self.percent is not None else "?"


NOT_SAID = TimeError()  # of a time that was saved without its error


def percent_text(percent: float) -> str:
    """Return a percentage of at most two significant digits, rounded up: an error is not made smaller."""
    tenths = math.ceil(percent * 10 - 1e-9) / 10
    return f"{tenths:.1f} %" if tenths < 3 else f"{math.ceil(percent - 1e-9)} %"


def ratio_error_percent(mine: TimeError, other: TimeError, *, same_kernel: bool) -> float | None:
    """Return the error of the ratio of two simulated times; None: not known.

    Independent errors add up by their squares. Errors of one kernel are less independent:
    if published times of one kernel show a smaller error of their ratio, that one is used.
    """
    if mine.percent is None or other.percent is None:
        return None
    independent = math.hypot(mine.percent, other.percent)
    paired = [error for error in (mine.ratio_percent, other.ratio_percent) if error is not None]
    return min(max(paired), independent) if same_kernel and len(paired) == 2 else independent


def ratio_verdict(ratio: float, error_percent: float | None) -> RatioVerdict:
    """Return whether the first of two programs is faster, by the ratio of the other's simulated time to its own.

    Args:
      error_percent: how far the ratio may be off; None: not known.
    """
    if error_percent is None:
        return "not known"
    if max(ratio, 1 / ratio) - 1 <= error_percent / 100:
        return "level"
    return "faster" if ratio > 1 else "slower"


def machine_digest(machine: MachineModel) -> str:
    """Return a few letters that are equal only for equal constants."""
    return hashlib.sha256(json.dumps(asdict(machine), sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def shipped_time_errors() -> TimeErrors:
    return TimeErrors.from_json((resources.files(str(__package__)) / _FILE).read_text(encoding="utf-8"))


def time_error(chip: Chip, traits: ProgramTraits) -> TimeError:
    """Return the error of a simulated time of such a program on this chip, from this package's file."""
    return shipped_time_errors().of(chip, traits)
