"""Errors of predicted times against published ones, by row and by chip.

    device time = published, less the host's dispatch on wall-clock rows
    error       = predicted / device time − 1

A row whose program is not known, or cannot be predicted, or whose published time is not a whole device's, stays
in the list with the reason. Only rows that are *counted* enter the statistics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from systolic.accuracy.time_error import TimeError
from systolic.chips import Chip, UnknownChipError, chip, flags_text, with_flags
from systolic.simulator import SliceRun
from systolic.support.choices import unknown_name
from systolic.timing import Measurement
from systolic.validation.least_time import least_us
from systolic.validation.published import COLLECTIVE, PublishedRow
from systolic.validation.seen_rows import in_view

WALL_CLOCK = "wall_clock"
TIMINGS = (WALL_CLOCK, "device", "bandwidth-derived")
LARGE = 2048  # below, a product is short compared with what a wall clock adds to it
LARGE_COLLECTIVE_MIB = 1  # of a device; below, hops and waits take more of the time than bytes
OTHER_PROGRAM = "another program was timed"  # the beginning of such a row's reason
# Rows whose source leaves the program open are compared, but their error is not the simulator's.
_LEFT_OPEN = re.compile(r"[^;,]*\bis not (?:certain|stated)\b[^;,]*", re.IGNORECASE)
# The time of the event in which the TensorCore waits for its SparseCores, not of the whole program: a row states it, or
# is of a suite that times these events wherever its traces have any (Ironwood/src/benchmark_utils.py).
_CALL_DONE = re.compile(r"\bcall-done event\b", re.IGNORECASE)
_SUITE_OF_CALL_DONE = "accelerator-microbenchmarks"
_SINGLE_CORE_NOTE = re.compile(r"\bone (of the (two )?)?cores?\b|\b(a )?single core\b", re.IGNORECASE)


class OpError(ValueError):
    """A published op that is not known, or contradicts its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedProgram:
    """A program that was timed. Rows of one program are not independent checks of a prediction."""

    chip: str  # its name with the clock state
    # The kernel, sizes, dtypes and tiles, in the same words for the same program: kernels may have several names.
    what: str
    flags: tuple[tuple[str, str], ...] = ()  # compiler flags in addition to the clock state's
    topology: str | None = None  # the slice that it is sharded over; None: one device
    repeats: int = 1  # how often it repeats the timed operation
    function: Callable[..., Any] = field(compare=False, repr=False)
    arguments: tuple[Any, ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.chip, self.what, flags_text(dict(self.flags)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A row's rebuilt program: in words, to compile, its slice if any, and how often it repeats the timed operation."""

    what: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    topology: str | None = None
    repeats: int = 1


ProgramOf = Callable[[PublishedRow], Rebuilt]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow(PublishedRow):
    """A published time and the predicted one; the reason if there is none, or the row is not counted."""

    predicted_us: float | None  # None: there is none
    provenance: str | None  # the predicted time's
    error: float | None
    dispatch_us: float  # taken off the published time before the error is formed
    counted: bool
    # The row's program, or products like it, were known when constants of the chip's model were chosen, so that its
    # error says little about others.
    in_view: bool
    reason: str
    program: str  # the same text for the same program
    left_open: str = ""  # properties of the program that the source leaves open, in its words; "": none
    time_error: TimeError | None = None  # the known error of such times; None: not asked for
    # The compiled program takes no less on any model of the chip; None: there is no run of one device.
    least_us: float | None = None

    @property
    def other_program(self) -> bool:
        """True if another program was timed than the one that today's compiler makes."""
        return self.reason.startswith(OTHER_PROGRAM)

    @property
    def dtypes(self) -> str:
        operands = "×".join(filter(None, dict.fromkeys((self.dtype_lhs, self.dtype_rhs))))
        return operands if operands == self.dtype_out else f"{operands}→{self.dtype_out}"

    @property
    def tiles(self) -> str:
        """m/k/n, or the source's words."""
        sides = (self.tile_m, self.tile_k, self.tile_n)
        if sides == (None, None, None):
            return self.stated_tiles
        return "/".join("–" if side is None else str(side) for side in sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStatistics:
    """Errors of the predictions of counted rows. Sizes of errors; `bias` alone keeps the sign."""

    rows: int
    programs: int
    median_error: float | None
    p90_error: float | None
    worst_error: float | None
    bias: float | None  # the median of the signed errors
    rank_correlation: float | None  # Spearman's, of device times and predictions; None under three rows


def chip_of(row: PublishedRow) -> Chip:
    """Return the chip of a row, in the clock state of its flags, with its other flags.

    Raises:
      UnknownChipError: there is no such chip.
      FlagError: the flags ask for a clock state that is not known.
    """
    row_chip = chip(row.chip)
    states = [state for state in row_chip.clock_states if state.flags and state.flags.items() <= row.flags.items()]
    return with_flags(row_chip.in_clock_state(states[0].name) if states else row_chip, row.flags)


def program_or_reason(row: PublishedRow, program_of: ProgramOf) -> PublishedProgram | str:
    """Return the program of a row, or the reason why there is none to predict."""
    try:
        row_chip = chip_of(row)
        if row_chip.cores_per_device > 1 and _SINGLE_CORE_NOTE.search(row.notes):
            return f"one of the device's {row_chip.cores_per_device} cores was timed; a simulated device uses all"
        program = program_of(row)
    except (UnknownChipError, ValueError) as error:
        return str(error)
    return PublishedProgram(
        chip=row_chip.name,
        what=program.what,
        flags=tuple(sorted(row_chip.given_flags.items())),
        topology=program.topology,
        repeats=program.repeats,
        function=program.function,
        arguments=program.arguments,
    )


def _is_call_done(row: PublishedRow, run: SliceRun) -> bool:
    if _CALL_DONE.search(row.notes):
        return True
    return _SUITE_OF_CALL_DONE in row.source and row.timing == "device" and bool(run.slowest.sparse_cores)


def device_us(row: PublishedRow, dispatch_us: float) -> float | None:
    """Return the published time without the host's dispatch; None if nothing is left."""
    left = row.published_us - (dispatch_us if row.timing == WALL_CLOCK else 0.0)
    return left if left > 0 else None


def compared(
    row: PublishedRow,
    program: PublishedProgram | str,
    predicted: Measurement | float | str,
    *,
    dispatch_us: float,
    fitted_on: Collection[str] = (),
) -> ComparedRow:
    """Return the row with its error.

    Args:
      program: from `program_or_reason`.
      predicted: the simulated time, or its µs alone, or why there is none.
      dispatch_us: the host's time to send one call, taken off wall-clock rows.
      fitted_on: programs to which the constants in use were fitted, in addition to the shipped ones.
    """
    rebuilt = predicted if isinstance(program, PublishedProgram) else program
    timed = rebuilt if isinstance(rebuilt, Measurement) else None
    run = None if timed is None else timed.slice_run or timed.run
    time_us = rebuilt.time_us if isinstance(rebuilt, Measurement) else None if isinstance(rebuilt, str) else rebuilt
    if isinstance(run, SliceRun) and _is_call_done(row, run):
        time_us = run.exposed_us
    if time_us is not None and isinstance(program, PublishedProgram):
        time_us /= program.repeats
    reason = rebuilt if isinstance(rebuilt, str) else ""
    left_us = device_us(row, dispatch_us)
    if not reason and left_us is None:
        reason = f"the published wall clock is within the {dispatch_us:g} µs of dispatch: nothing is left to compare"
    if not reason and row.timing not in TIMINGS:
        reason = unknown_name("timing", row.timing, TIMINGS)
    open_words = _LEFT_OPEN.search(row.notes)
    left_open = open_words[0].strip() if open_words else ""
    if not reason and left_open:
        reason = f"its source leaves open what was timed: {left_open}"
    least = least_us(run, chip(program.chip)) if isinstance(program, PublishedProgram) else None
    if not reason and row.arguments and least is not None and row.published_us < least:
        reason = (
            f"{OTHER_PROGRAM}: this compiler's has instructions and HBM traffic for {least:,.0f} µs at "
            f"peak rates, where {row.published_us:,.0f} µs are published"
        )
    return ComparedRow(
        **{**asdict(row), "chip": program.chip if isinstance(program, PublishedProgram) else row.chip},
        predicted_us=time_us,
        provenance=None if time_us is None else "simulated",
        error=None if time_us is None or left_us is None else time_us / left_us - 1,
        dispatch_us=dispatch_us if row.timing == WALL_CLOCK else 0.0,
        counted=not reason,
        in_view=in_view(row) or str(program) in fitted_on,
        reason=reason,
        program=str(program) if isinstance(program, PublishedProgram) else "",
        left_open=left_open,
        time_error=run.error if run is not None else None,
        least_us=least,
    )


def error_statistics(rows: Sequence[ComparedRow]) -> ErrorStatistics:
    counted = [row for row in rows if row.counted and row.error is not None and row.predicted_us is not None]
    errors = np.array([row.error for row in counted], float)
    sizes = np.abs(errors)
    predicted = [row.predicted_us or 0.0 for row in counted]
    device = [row.published_us - row.dispatch_us for row in counted]
    return ErrorStatistics(
        rows=len(counted),
        programs=len({row.program for row in counted}),
        median_error=float(np.median(sizes)) if counted else None,
        p90_error=float(np.quantile(sizes, 0.9)) if counted else None,
        worst_error=float(np.max(sizes)) if counted else None,
        bias=float(np.median(errors)) if counted else None,
        rank_correlation=_rank_correlation(device, predicted),
    )


def _rank_correlation(device: Sequence[float], predicted: Sequence[float]) -> float | None:
    # Of equal times there is no order, and no correlation with one.
    if len(device) < 3 or len(set(device)) == 1 or len(set(predicted)) == 1:
        return None
    from scipy.stats import rankdata  # takes a while, and only this needs it

    return float(np.corrcoef(rankdata(device), rankdata(predicted))[0, 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipStatistics:
    """One chip's errors: of all counted rows, of rows with m, k and n from 2048 on, and of the unseen among these."""

    all_rows: ErrorStatistics
    from_2048: ErrorStatistics
    from_2048_not_in_view: ErrorStatistics

    def record(self) -> dict[str, Any]:
        parts = {name: asdict(getattr(self, name)) for name in ("from_2048", "from_2048_not_in_view")}
        return {**asdict(self.all_rows), **parts}


def collective_statistics(rows: Sequence[ComparedRow]) -> dict[str, ErrorStatistics]:
    """Return the statistics of all chips' collectives, small and large; empty groups are left out."""
    of_slices = [row for row in rows if row.device_bytes is not None]
    parts = {
        f"collectives of {LARGE_COLLECTIVE_MIB} MiB and more": [slice_ for slice_ in of_slices if _is_large(slice_)],
        f"collectives below {LARGE_COLLECTIVE_MIB} MiB": [slice_ for slice_ in of_slices if not _is_large(slice_)],
    }
    return {name: error_statistics(part) for name, part in parts.items() if part}


def _is_large(row: ComparedRow) -> bool:
    return (row.device_bytes or 0) >= LARGE_COLLECTIVE_MIB * 2**20


def statistics_by_chip(rows: Sequence[ComparedRow]) -> dict[str, ChipStatistics]:
    """Return the statistics of each chip among the rows, and of each clock state, in their order.

    Collectives are left out, because they are of slices; see `collective_statistics`.
    """
    result = {}
    for name in dict.fromkeys(row.chip for row in rows):
        of_chip = [row for row in rows if row.chip == name and row.kind != COLLECTIVE]
        large = [row for row in of_chip if min(row.m or 0, row.k or 0, row.n or 0) >= LARGE]
        result[name] = ChipStatistics(
            all_rows=error_statistics(of_chip),
            from_2048=error_statistics(large),
            from_2048_not_in_view=error_statistics([row for row in large if not row.in_view]),
        )
    return result
