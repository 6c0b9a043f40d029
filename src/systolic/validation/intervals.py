"""The interval around a simulated time: the distance of published times of such programs from the simulated ones.

    deviation = device time / simulated time − 1
    interval  = the range that holds the next program's deviation nine times out of ten, on the evidence of n others

With n ≥ 9 programs the interval is an order statistic: the next of n + 1 exchangeable deviations is no larger than the
k-th smallest of the others with probability k/(n + 1), so k = ⌈0.9 (n + 1)⌉. With fewer, none of them is large enough;
then it is their root mean square times the 95th percentile of Student's distribution with n degrees of freedom. With
fewer than three there is no number.

Constants were fitted to some of the programs, which lie closer for that. With p = 6 constants fitted to N programs a
deviation that is left out of the fit is larger by 1/(1 − p/N) on average (the leverage of a row), and counts so.

Two times of the same kernel share much of their errors, so their ratio has an interval of its own: by the
same rule, of how far a program of a kernel and the one nearest in its sizes lie apart. Programs that are compared with
each other are nearer still, as a rule: they have equal sizes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from systolic.accuracy.time_error import CheckedKind, TimeErrors, machine_digest
from systolic.chips import Chip, chip
from systolic.simulator import SimulatedRun, kernel_name, traits_of
from systolic.validation.errors import WALL_CLOCK, ComparedRow

_COVERED = 0.9
_MIN_PROGRAMS = 3
FITTED_CONSTANTS = 6  # constants that were fitted together for one chip, at the most: v6e's
_LIKE_SIZES = 2.0 + 1e-9  # the largest factor between sizes of programs whose ratio is looked at
# A host's dispatch time is known to a seventh of it; times with a larger share of dispatch are too uncertain.
_MAX_DISPATCH = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One published program: simulated, and timed once or several times."""

    chip: str
    sizes: tuple[int, int, int]  # m, k and n
    device_us: float
    run: SimulatedRun
    in_view: bool  # whether constants were fitted with it in view

    @property
    def deviation(self) -> float:
        """Device time over simulated time, less 1."""
        return self.device_us / self.run.time_us - 1

    @property
    def kernel(self) -> str:
        """The Pallas kernel that takes most of the time; "" if an operation of XLA's does."""
        return kernel_name(self.run)


def compared_programs(rows: Iterable[ComparedRow], runs: Mapping[str, SimulatedRun]) -> list[Compared]:
    """Return the programs of the counted rows, each once, with the median of its device times.

    Rows whose wall clock is mostly dispatch are left out: their errors are not the simulator's.

    Args:
      runs: by the text of the program.
    """
    of_program: dict[str, list[ComparedRow]] = {}
    for row in rows:
        dispatched = row.dispatch_us > _MAX_DISPATCH * row.published_us and row.timing == WALL_CLOCK
        if row.counted and row.program in runs and not dispatched:
            of_program.setdefault(row.program, []).append(row)
    return [
        Compared(
            chip=shared[0].chip,
            sizes=(shared[0].m or 1, shared[0].k or 1, shared[0].n or 1),
            device_us=statistics.median(row.published_us - row.dispatch_us for row in shared),
            run=runs[program],
            in_view=any(row.in_view for row in shared),
        )
        for program, shared in of_program.items()
    ]


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A program, and the weight of its deviation if constants were fitted with it in view."""

    program: Compared
    factor: float

    @property
    def counts(self) -> bool:
        return math.isfinite(self.factor)

    def apart(self, other: _Weighed) -> float:
        difference = math.log1p(self.program.deviation) - math.log1p(other.program.deviation)
        return abs(difference) * max(self.factor, other.factor)


def time_errors(
    programs: Sequence[Compared], *, command: str, versions: Mapping[str, str], chips: Mapping[str, Chip] | None = None
) -> TimeErrors:
    """Return the intervals of all kinds of programs, by chip and clock state; `chips` replace known ones by name."""
    records = {
        name: (chips or {}).get(name) or chip(name) for name in dict.fromkeys(program.chip for program in programs)
    }
    kinds = []
    for name, record in records.items():
        widening = _widening(record, programs)
        of_chip = [
            _Weighed(program, widening if program.in_view else 1.0) for program in programs if program.chip == name
        ]
        distances = _apart(of_chip)
        of_kind: dict[str, list[_Weighed]] = {}
        for weighed in of_chip:
            of_kind.setdefault(traits_of(weighed.program.run).kind, []).append(weighed)
        kinds += [_checked(name, kind, alike, distances) for kind, alike in sorted(of_kind.items()) if kind]
    return TimeErrors(
        command=command,
        versions=dict(versions),
        machines={name: machine_digest(record.machine) for name, record in records.items()},
        kinds=tuple(kinds),
    )


def half_width(deviations: Sequence[float]) -> float | None:
    """Return the half width that holds the next deviation nine times out of ten; None: too few deviations."""
    count = len(deviations)
    if count < _MIN_PROGRAMS:
        return None
    rank = math.ceil(_COVERED * (count + 1))
    if rank <= count:
        return sorted(map(abs, deviations))[rank - 1]
    from scipy.stats import t  # takes a while, and only this needs it

    spread = math.sqrt(sum(deviation**2 for deviation in deviations) / count)
    return float(spread * t.ppf((1 + _COVERED) / 2, count))


def _widening(known: Chip, programs: Sequence[Compared]) -> float:
    """Return the factor on deviations of programs in view; infinite if there are no more programs than constants."""
    seen = sum(program.in_view and chip(program.chip).generation == known.generation for program in programs)
    return seen / (seen - FITTED_CONSTANTS) if seen > FITTED_CONSTANTS else math.inf


def _checked(name: str, kind: str, alike: Sequence[_Weighed], distances: Sequence[float]) -> CheckedKind:
    runs = [weighed.program.run for weighed in alike]
    deviations = [weighed.program.deviation * weighed.factor for weighed in alike if weighed.counts]
    with_another = distances if any(weighed.program.kernel for weighed in alike) else ()
    return CheckedKind(
        chip=name,
        kind=kind,
        programs=len(deviations),
        bias_percent=round(100 * statistics.median(weighed.program.deviation for weighed in alike), 2),
        error_percent=_percent(half_width(deviations)),
        ratio_programs=len(with_another),
        ratio_percent=_percent(half_width(with_another)),
        least_us=round(min(run.time_us for run in runs), 2),
        most_copies_per_us=round(max(traits_of(run).copies_per_us or 0.0 for run in runs), 3),
    )


def _apart(programs: Sequence[_Weighed]) -> list[float]:
    """Return each program's deviation minus the deviation of the same kernel's program nearest in its sizes.

    None of its sizes may be more than twice as large or as small. A program that is the nearest of several counts with
    each.
    """
    of_kernels = [program for program in programs if program.program.kernel and program.counts]
    result = []
    for compared in of_kernels:
        others = [
            (_distance(compared.program, other.program), compared.apart(other))
            for other in of_kernels
            if other is not compared and other.program.kernel == compared.program.kernel
        ]
        distance, difference = min(others, default=(math.inf, 0.0))
        if distance <= math.log(_LIKE_SIZES):
            result.append(difference)
    return result


def _distance(first: Compared, other: Compared) -> float:
    """Return the largest factor between two sizes, as a logarithm."""
    return max((abs(math.log(a / b)) for a, b in zip(first.sizes, other.sizes, strict=True)), default=0.0)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
