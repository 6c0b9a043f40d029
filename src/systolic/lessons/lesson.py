"""Records of lessons and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.accuracy.time_error import TimeError
from systolic.chips import Chip
from systolic.support.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The facts of one lesson, computed when its `lesson()` was called.

    `ok`: all claims of the lines hold.
    """

    lines: tuple[str, ...]
    rows: tuple[Mapping[str, object], ...]  # one record per line of the table, snake_case keys with units
    ok: bool


def everywhere(chip: Chip) -> str:
    """Return "" for every chip: it has everything that the part needs."""
    del chip
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One function that a lesson shows: run in TPU interpret mode, compiled, and simulated on each chip."""

    name: str  # in tables: "pipelined"
    fn: Callable[..., Any]  # a function of arrays; static arguments are bound
    # Arrays or shapes, of real sizes, to compile and simulate with. Contents matter if a kernel branches.
    args: tuple[Any, ...]
    # To run in interpret mode with; None: `args`, made smaller. ()  with `args` not empty: it is not run.
    run_args: tuple[Any, ...] | None = None
    reference: Callable[..., Any] | None = None  # computes it in float64; None: no comparison
    # Rules that the run must find if the part is wrong on purpose: {"nan"}; else it must find no error.
    finds: frozenset[str] = frozenset()
    # What a chip lacks for this part; "" for nothing. Such a chip is named and left out.
    lacks: Callable[[Chip], str] = everywhere
    simulated: bool = True  # compile and simulate it


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """The result of one part on one chip.

    Attributes:
      status: "unsupported" if the chip lacks something that the part needs; "wrong" if its run has a wrong result.
      reason: the reason of a status that is not ok.
      time_us: the simulated time; None: there is none.
      time_error: error of the time.
      error, tolerance: of the run, against the reference; None: no comparison.
      violated: rules of grade error that the run violated.
    """

    part: str
    chip: str
    status: Status
    reason: str = ""
    time_us: float | None = None
    time_error: TimeError | None = None
    hbm_bytes: int | None = None
    matrix_busy: float | None = None
    waiting: float | None = None  # share of the time in which the core waits for copies
    vmem_bytes: int | None = None
    error: float | None = None
    tolerance: float | None = None
    violated: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True without an error; a chip that lacks something that the part needs is not an error."""
        return self.status in ("ok", "unsupported")

    def row(self) -> dict[str, object]:
        return {
            "part": self.part,
            "chip": self.chip,
            "status": self.status,
            "simulated_us": self.time_us,
            "error_percent": _error(self.time_error),
            "hbm_mb": None if self.hbm_bytes is None else self.hbm_bytes / 1e6,
            "matrix_busy": self.matrix_busy,
            "waiting_for_copies": self.waiting,
            "vmem_mib": None if self.vmem_bytes is None else self.vmem_bytes / 2**20,
            "max_abs_error": self.error,
            "tolerance": self.tolerance,
            "found": ", ".join(self.violated) or None,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Results:
    parts: tuple[PartResult, ...] = ()

    def __getitem__(self, key: tuple[str, str]) -> PartResult:
        return next(part for part in self.parts if (part.part, part.chip) == key)

    def ratio(self, part: str, other: str, chip: str) -> float | None:
        """Return other's time over part's; None if one has no time."""
        mine, theirs = self[part, chip].time_us, self[other, chip].time_us
        return theirs / mine if mine and theirs else None

    def ratios(self, part: str, other: str, chips: Sequence[Chip]) -> str:
        """Return the ratios of several chips in words: "v5e 3.1 ×, v6e 2.8 ×"; "" where none has both times."""
        ratios = ((chip.name, self.ratio(part, other, chip.name)) for chip in chips)
        return ", ".join(f"{name} {ratio:.2f} ×" for name, ratio in ratios if ratio is not None)

    def fewer_bytes(self, part: str, other: str, chips: Sequence[Chip]) -> str:
        """Return the share of HBM bytes that `part` saves: "v4 40 %, v6e 38 %"; "38 %" where chips agree."""
        pairs = ((chip.name, self[part, chip.name].hbm_bytes, self[other, chip.name].hbm_bytes) for chip in chips)
        fewer = {name: f"{100 * (1 - mine / theirs):.0f} %" for name, mine, theirs in pairs if mine and theirs}
        return _agreeing(fewer)

    @property
    def ok(self) -> bool:
        """True if every part has the right result on every chip that supports it."""
        return all(part.ok for part in self.parts)

    @property
    def rows(self) -> tuple[dict[str, object], ...]:
        """Return lines of a table; empty columns are left out."""
        rows = [part.row() for part in self.parts]
        filled = {key for row in rows for key, value in row.items() if value is not None}
        return tuple({key: value for key, value in row.items() if key in filled} for row in rows)


def _error(error: TimeError | None) -> float | str | None:
    """Return the percentage, or why it is not known."""
    if error is None:
        return None
    if error.percent is not None:
        return error.percent
    return f"? ({error.reason})" if error.reason else "?"


def _agreeing(values: Mapping[str, str]) -> str:
    """Return each value with its name, or only the value if all are equal."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{name} {value}" for name, value in values.items())
