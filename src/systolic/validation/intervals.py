"""The interval around a simulated time: the distance of published times of such programs from the simulated ones.

    deviation = device time / simulated time − 1
    interval  = the range that holds the next program's deviation nine times out of ten, on the evidence of n others

With n ≥ 9 programs the interval is an order statistic: the next of n + 1 exchangeable deviations is no larger than the
k-th smallest of the others with probability k/(n + 1), so k = 0.9 (n + 1), between two of them as a rule. With fewer,
none of them is large enough; then it is their root mean square times the 95th percentile of Student's distribution with
n degrees of freedom. With fewer than three there is no number.

Intervals are from programs that constants may be fitted to. Among recorded operations others are held out, and it is
counted how many of their published times lie within the interval that is printed. In CSV files none is held out, and a
program that constants were fitted to lies closer for that reason: with p = 6 constants, 2 of links, fitted to N such
programs a deviation that is left out of the fit is larger by 1/(1 − p/N) on average (the leverage of a row), and is
weighted by that.

Two times of the same kernel share much of their errors, so their ratio has an interval of its own: the same rule,
applied to the difference between the deviations of a kernel's program and of its program nearest in sizes. Programs
that are compared with each other are nearer still, as a rule: they have equal sizes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from systolic.accuracy.time_error import (
    LINKS,
    CheckedKind,
    CheckedRatio,
    ProgramTraits,
    TimeErrors,
    machine_digest,
)
from systolic.chips import Chip, chip
from systolic.timing import Measurement
from systolic.validation.errors import WALL_CLOCK, ComparedRow
from systolic.validation.recorded.arguments import array_sizes

_COVERED = 0.9
_MIN_PROGRAMS = 3
FITTED_CONSTANTS = 6  # constants that were fitted together for one chip, at the most: v6e's
_LINK_CONSTANTS = 2  # of a generation's links: bytes a second, and the latency of a hop
_LIKE_SIZES = 2.0 + 1e-9  # the largest factor between sizes of programs whose ratio is looked at
# A host's dispatch time is known to a seventh of it; times with a larger share of dispatch are too uncertain.
_MAX_DISPATCH = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One published program: simulated, and timed once or several times."""

    chip: str
    sizes: tuple[int, ...]  # m, k and n; of a recorded operation, its arrays' sizes
    deviation: float  # device time over simulated time, less 1
    traits: ProgramTraits
    in_view: bool  # True if constants were fitted with it in view
    recorded: bool = False  # a recorded operation: if not in view, neither constants nor intervals come from it

    @property
    def held_out(self) -> bool:
        return self.recorded and not self.in_view

    @property
    def fitted(self) -> bool:
        """True if constants were fitted to it and nothing like it is held out."""
        return self.in_view and not self.recorded

    @property
    def generation(self) -> str:
        return chip(self.chip).generation


def compared_programs(rows: Iterable[ComparedRow], measured: Mapping[str, Measurement]) -> list[Compared]:
    """Return the programs of the counted rows, each once, with the median of its device times.

    Rows whose wall clock is mostly dispatch are left out: their errors are not the simulator's.

    Args:
      measured: the simulated times, by the text of the program.
    """
    of_program: dict[str, list[ComparedRow]] = {}
    for row in rows:
        dispatched = row.dispatch_us > _MAX_DISPATCH * row.published_us and row.timing == WALL_CLOCK
        if row.counted and row.predicted_us and row.program in measured and not dispatched:
            of_program.setdefault(row.program, []).append(row)
    result = []
    for program, shared in of_program.items():
        row, traits = shared[0], measured[program].traits
        if traits is None:
            continue
        device_us = statistics.median(timed.published_us - timed.dispatch_us for timed in shared)
        in_view = any(timed.in_view for timed in shared)
        result.append(
            Compared(
                chip=row.chip,
                sizes=array_sizes(row.arguments) if row.arguments else (row.m or 1, row.k or 1, row.n or 1),
                deviation=device_us / (row.predicted_us or math.inf) - 1,
                traits=traits,
                in_view=in_view,
                recorded=bool(row.arguments),
            )
        )
    return result


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A program, and the weight of its deviation if constants were fitted with it in view."""

    program: Compared
    factor: float

    @property
    def weighed(self) -> float:
        return self.program.deviation * self.factor


@dataclass(frozen=True, slots=True)
class _Pair:
    """A program of a kernel and the one nearest in its sizes, and the difference of their deviations."""

    generation: str
    kernel: str
    difference: float


def time_errors(
    programs: Sequence[Compared], *, command: str, versions: Mapping[str, str], chips: Mapping[str, Chip] | None = None
) -> TimeErrors:
    """Return the intervals of all kinds of programs, by generation and of all; `chips` replace known ones by name."""
    records = {
        name: (chips or {}).get(name) or chip(name) for name in dict.fromkeys(program.chip for program in programs)
    }
    weighed = [
        _Weighed(program, _widening(program, programs) if program.fitted else 1.0)
        for program in programs
        if not program.held_out
    ]
    used = [program for program in weighed if math.isfinite(program.factor)]
    of_kind: dict[tuple[str, str], list[_Weighed]] = {}
    for program in used:
        for place in _kind_places(program.program):
            of_kind.setdefault(place, []).append(program)
    of_kernel: dict[tuple[str, str], list[float]] = {}
    for pair in _pairs(used):
        for place in _ratio_places(pair):
            of_kernel.setdefault(place, []).append(pair.difference)
    errors = TimeErrors(
        command=command,
        versions=dict(versions),
        machines={name: machine_digest(record.machine) for name, record in records.items()},
        kinds=tuple(_checked(place, alike) for place, alike in sorted(of_kind.items())),
        ratios=tuple(
            CheckedRatio(
                generation=generation,
                kernel=kernel,
                pairs=len(differences),
                error_percent=_percent(half_width(differences)),
            )
            for (generation, kernel), differences in sorted(of_kernel.items())
        ),
    )
    return _with_coverage(errors, [program for program in programs if program.held_out])


def _kind_places(program: Compared) -> Iterator[tuple[str, str]]:
    kinds = program.traits.kinds
    yield from ((program.generation, kind) for kind in kinds)
    yield "", kinds[-1]


def _ratio_places(pair: _Pair) -> Iterator[tuple[str, str]]:
    yield from ((pair.generation, pair.kernel), (pair.generation, ""), ("", ""))


def _with_coverage(errors: TimeErrors, held_out: Sequence[Compared]) -> TimeErrors:
    """Count the held-out programs and pairs of each printed interval, and those within it."""
    kinds: dict[int, list[bool]] = {}
    for program in held_out:
        checked = errors.kind_of(program.generation, program.traits)
        if not isinstance(checked, str):
            covered = abs(program.deviation) * 100 <= (checked.error_percent or 0.0)
            kinds.setdefault(errors.kinds.index(checked), []).append(covered)
    ratios: dict[int, list[bool]] = {}
    for pair in _pairs([_Weighed(program, 1.0) for program in held_out]):
        if (ratio := errors.ratio_of(pair.generation, pair.kernel)) is not None:
            ratios.setdefault(errors.ratios.index(ratio), []).append(
                pair.difference * 100 <= (ratio.error_percent or 0.0)
            )
    return replace(
        errors,
        kinds=tuple(
            replace(kind, held_out=len(kinds.get(at, ())), covered=sum(kinds.get(at, ())))
            for at, kind in enumerate(errors.kinds)
        ),
        ratios=tuple(
            replace(ratio, held_out=len(ratios.get(at, ())), covered=sum(ratios.get(at, ())))
            for at, ratio in enumerate(errors.ratios)
        ),
    )


def half_width(deviations: Sequence[float]) -> float | None:
    """Return the half width that holds the next deviation nine times out of ten; None: too few deviations."""
    count = len(deviations)
    if count < _MIN_PROGRAMS:
        return None
    rank = _COVERED * (count + 1)
    if rank <= count:
        ordered, below = sorted(map(abs, deviations)), math.floor(rank)
        above = ordered[min(below, count - 1)]
        return ordered[below - 1] + (rank - below) * (above - ordered[below - 1])
    from scipy.stats import t  # takes a while, and only this needs it

    spread = math.sqrt(sum(deviation**2 for deviation in deviations) / count)
    return float(spread * t.ppf((1 + _COVERED) / 2, count))


def _widening(fitted: Compared, programs: Sequence[Compared]) -> float:
    """Return the factor on a fitted program's deviation; infinite if there are no more programs than constants."""
    constants = _LINK_CONSTANTS if fitted.traits.resource == LINKS else FITTED_CONSTANTS
    seen = sum(
        program.fitted
        and program.generation == fitted.generation
        and (program.traits.resource == LINKS) == (fitted.traits.resource == LINKS)
        for program in programs
    )
    return seen / (seen - constants) if seen > constants else math.inf


def _checked(place: tuple[str, str], alike: Sequence[_Weighed]) -> CheckedKind:
    traits = [weighed.program.traits for weighed in alike]
    return CheckedKind(
        generation=place[0],
        kind=place[1],
        programs=len(alike),
        bias_percent=round(100 * statistics.median(weighed.program.deviation for weighed in alike), 2),
        error_percent=_percent(half_width([weighed.weighed for weighed in alike])),
        least_us=round(min(compared_traits.time_us for compared_traits in traits), 2),
        most_copies_per_us=round(max(compared_traits.copies_per_us or 0.0 for compared_traits in traits), 3),
    )


def _pairs(programs: Sequence[_Weighed]) -> Iterator[_Pair]:
    """Yield each program of a kernel with the same kernel's program nearest in its sizes.

    None of its sizes may be more than twice as large or as small. A program that is the nearest of several counts with
    each.
    """
    of_kernels: dict[tuple[str, str], list[_Weighed]] = {}
    for program in programs:
        if program.program.traits.kernel:
            of_kernels.setdefault((program.program.chip, program.program.traits.kernel), []).append(program)
    for (_, kernel), alike in of_kernels.items():
        for compared in alike:
            others = [
                (_distance(compared.program.sizes, other.program.sizes), number)
                for number, other in enumerate(alike)
                if other is not compared
            ]
            distance, number = min(others, default=(math.inf, 0))
            if distance <= math.log(_LIKE_SIZES):
                yield _Pair(compared.program.generation, kernel, _apart(compared, alike[number]))


def _apart(first: _Weighed, second: _Weighed) -> float:
    difference = math.log1p(first.program.deviation) - math.log1p(second.program.deviation)
    return abs(difference) * max(first.factor, second.factor)


def _distance(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the largest factor between two sizes, as a logarithm."""
    if len(first) != len(second):
        return math.inf
    return max((abs(math.log(a / b)) for a, b in zip(first, second, strict=True)), default=0.0)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
