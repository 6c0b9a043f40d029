"""Errors of simulated times by chip and limiting resource, from the comparison with published times.

`systolic validate … --intervals FILE` makes `time_errors.json`; do not edit it by hand. It holds for the constants with
which it was made, and for programs like the compared ones; for others it gives the reason why there is no number.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Literal

from systolic.chips.chip import Chip, MachineModel
from systolic.support.ranges import Amount, Change, Count, Time
from systolic.support.untrusted import UntrustedError, read_json, structured

RatioVerdict = Literal["faster", "slower", "level", "not known"]

SCHEMA = 2
_FILE = "time_errors.json"
# By this factor a program may be shorter than all checked ones, or have more copies per µs, and still be similar.
_ALIKE = 2.0
# Longer programs never count as short: a launch and a first copy take a few µs.
_NOT_SHORT_US = 100.0
# With this number of programs, nine in ten is one of them; with fewer, a wider group of programs is used.
FULL_GROUP = 9
# Links limit a slice if its devices wait for links and do nothing else for this share of the time.
_LINK_BOUND = 0.5
LINKS = "links"


class TimeErrorsError(ValueError):
    """A file of time errors that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTraits:
    """Traits of a program, which select similar published programs. Shares are of its time."""

    pallas_share: float  # in Pallas kernels
    matrix_share: float  # in which rows go through the matrix units
    hbm_share: float  # in which bytes cross HBM
    time_us: float
    copies_per_us: float | None = None  # on one core; None: not known
    unlike: str = ""  # a property that no published program has, in few words; "": none
    vector_share: float = 0.0  # in which the core issues instructions and the matrix units have no rows
    copy_share: float = 0.0  # in which the core starts copies or waits for them
    sparse_share: float = 0.0  # in which it waits while SparseCores run
    link_share: float = 0.0  # in which a device waits for links between chips and does nothing else
    kernel: str = ""  # the Pallas kernel that takes most of the time; "": an operation of XLA does

    @property
    def resource(self) -> str:
        """The resource that limits the program: the busiest one."""
        if self.link_share >= _LINK_BOUND:
            return LINKS
        shares = {
            "matrix units": self.matrix_share,
            "HBM": self.hbm_share,
            "vector units": self.vector_share,
            # Waits that the bytes do not explain come from the latencies of many copies.
            "small copies": self.copy_share - self.hbm_share,
            "SparseCores": self.sparse_share,
        }
        return max(shares, key=lambda resource: shares[resource])

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of program that it belongs to, in words, the narrowest first."""
        resource = self.resource
        wide = f"program bound by {resource}"
        if resource in (LINKS, "SparseCores"):  # their times do not depend on who wrote the program
            return (wide,)
        return (f"{'Pallas kernel' if self.pallas_share >= 0.5 else 'XLA program'} bound by {resource}", wide)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKind:
    """The comparison of one kind of program with published times, on one generation of chips.

    The interval comes from the programs that constants may be fitted to. Coverage is counted on other programs, for
    which this interval is printed.
    """

    generation: str  # in any clock state; "": any
    kind: str  # of program, see `ProgramTraits.kinds`
    programs: Count  # number of different compared programs
    bias_percent: Change  # the median of published over simulated time, less 1
    # Nine of ten published times lie within this distance of the simulated one; None: too few programs.
    error_percent: Amount | None
    least_us: Time  # the shortest program's time
    most_copies_per_us: Amount  # the largest among the programs
    held_out: Count = 0  # programs that the interval is not from
    covered: Count = 0  # those whose published time lies in it

    @property
    def words(self) -> str:
        return self.kind + f" on {self.generation or 'any chip'}"

    def unlike(self, traits: ProgramTraits) -> str:
        """Return why a program of this kind differs from the compared ones; "" if it does not."""
        if traits.time_us < min(self.least_us / _ALIKE, _NOT_SHORT_US):
            return f"shorter than what was checked, which takes {float(f'{self.least_us:.3g}'):,.10g} µs and more"
        if (traits.copies_per_us or 0.0) > self.most_copies_per_us * _ALIKE:
            return "many small copies, unlike what was checked"
        if self.error_percent is None:
            return f"only {self.programs} such program{'s were' if self.programs != 1 else ' was'} checked"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRatio:
    """The comparison of ratios of two times of one Pallas kernel with published ones; see `CheckedKind`."""

    generation: str  # "": any
    kernel: str  # "": any
    pairs: Count
    error_percent: Amount | None  # None: too few pairs
    held_out: Count = 0
    covered: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeErrors:
    """All errors, and their origin."""

    command: str  # the command that made it
    versions: Mapping[str, str]  # the packages' that compiled and compared
    machines: Mapping[str, str]  # each chip's `machine_digest`
    kinds: tuple[CheckedKind, ...]
    ratios: tuple[CheckedRatio, ...] = ()
    schema: int = SCHEMA

    def as_json(self) -> str:
        """Write JSON text for `from_json`, sorted for people who compare it."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TimeErrors:
        """Read the text of `as_json`; raise TimeErrorsError for other text, or another schema."""
        try:
            errors = structured(read_json(text), cls)
        except UntrustedError as error:
            raise TimeErrorsError(f"these are no errors of simulated times: {error}") from error
        if errors.schema != SCHEMA:
            raise TimeErrorsError(f"errors of simulated times of schema {errors.schema}; here it is {SCHEMA}")
        return errors

    def of(self, chip: Chip, traits: ProgramTraits) -> TimeError:
        """Return the error of a simulated time of such a program on this chip.

        A program that waits for links part of its time has the error of that part and the error of the rest, added by
        their squares.
        """
        kind = traits.kinds[0]
        if traits.unlike:
            return TimeError(kind=kind, reason=f"{traits.unlike}, unlike anything that was checked")
        if chip.name not in self.machines:
            return TimeError(kind=kind, reason=f"no published time of {chip.name} was checked")
        if self.machines[chip.name] != machine_digest(chip.machine):
            return TimeError(kind=kind, reason="its constants are not those that were checked")
        checked = self.kind_of(chip.generation, traits)
        if isinstance(checked, str):
            return TimeError(kind=kind, reason=checked)
        percent, programs = checked.error_percent, checked.programs
        assert percent is not None  # else it has a reason
        if 0 < traits.link_share < _LINK_BOUND:
            links = self.kind_of(chip.generation, replace(traits, link_share=1.0, copies_per_us=None))
            if isinstance(links, str) or links.error_percent is None:
                return TimeError(kind=kind, reason=f"links: {links}")
            percent = math.hypot((1 - traits.link_share) * percent, traits.link_share * links.error_percent)
            programs = min(programs, links.programs)
        ratio = self.ratio_of(chip.generation, traits.kernel) if traits.kernel and not traits.link_share else None
        return TimeError(
            kind=checked.words,
            percent=round(percent, 2),
            ratio_percent=ratio.error_percent if ratio is not None else None,
            programs=programs,
        )

    def kind_of(self, generation: str, traits: ProgramTraits) -> CheckedKind | str:
        """Return the narrowest kind of enough checked programs like this one, or why there is none.

        Kinds of the generation come first, then the same limiting resource on any chip; kinds of fewer programs only
        if no kind has enough.
        """
        candidates = [
            checked
            for place in ([(generation, kind) for kind in traits.kinds] + [("", traits.kinds[-1])])
            for checked in self.kinds
            if (checked.generation, checked.kind) == place
        ]
        alike = [checked for checked in candidates if not checked.unlike(traits)]
        if alike:
            return next((checked for checked in alike if checked.programs >= FULL_GROUP), alike[0])
        return candidates[-1].unlike(traits) if candidates else f"no {traits.kinds[-1]} was checked"

    def ratio_of(self, generation: str, kernel: str) -> CheckedRatio | None:
        """Return the ratios of this kernel, else of all on the generation, else of all; None: there are too few."""
        places = ((generation, kernel), (generation, ""), ("", ""))
        checked = [
            ratio
            for place in places
            for ratio in self.ratios
            if (ratio.generation, ratio.kernel) == place and ratio.error_percent is not None
        ]
        return next((ratio for ratio in checked if ratio.pairs >= FULL_GROUP), checked[0] if checked else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeError:
    """The error of a simulated time."""

    kind: str = ""  # of the programs that it comes from, in words
    # Nine of ten published times of similar programs lie within this distance of the simulated ones; None: unknown.
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


NOT_SAID = TimeError()  # for a time that was saved without its error


def percent_text(percent: float) -> str:
    """Return a percentage with at most two significant digits, rounded up, so that an error does not become smaller."""
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
    """Return a short digest that is equal only for equal constants."""
    return hashlib.sha256(json.dumps(asdict(machine), sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def shipped_time_errors() -> TimeErrors:
    return TimeErrors.from_json((resources.files(str(__package__)) / _FILE).read_text(encoding="utf-8"))


def time_error(chip: Chip, traits: ProgramTraits) -> TimeError:
    """Return the error of a simulated time of such a program on this chip, from this package's file."""
    return shipped_time_errors().of(chip, traits)
