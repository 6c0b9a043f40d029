"""The interval around a simulated time: how far published times of such programs lie from the simulated ones.

    deviation = device time / simulated time − 1
    interval  = what the deviation of the next program stays within nine times out of ten, on the evidence of n others

With n ≥ 9 programs the interval is an order statistic: the next of n + 1 exchangeable deviations is no larger than the
k-th smallest of the others with probability k/(n + 1), so k = ⌈0.9 (n + 1)⌉. With fewer, none of them is large enough;
then it is their root mean square times the 95th percentile of Student's distribution with n degrees of freedom. With
fewer than three there is no number.

Constants were fitted to some of the programs, which lie closer for that. With p constants fitted to N programs a
deviation that is left out of the fit is larger by 1/(1 − p/N) on average (the leverage of a row), and counts so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from systolic.chips import Chip, chip
from systolic.chips.constants import fittable
from systolic.chips.time_error import CheckedKind, TimeErrors, machine_digest
from systolic.simulator import SimulatedRun, kernel_name, traits_of
from systolic.validation.errors import WALL_CLOCK, ComparedRow

_COVERED = 0.9
_LEAST_PROGRAMS = 3
# What a host needs to send a call off is known to a seventh of it; of a time of which it is more, too little is known.
_MOST_DISPATCH = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One published program: simulated, and timed once or several times.

    Attributes:
      in_view: whether constants were fitted with it in view.
    """

    chip: str
    device_us: float
    run: SimulatedRun
    in_view: bool

    @property
    def deviation(self) -> float:
        """Device time over simulated time, less 1."""
        return self.device_us / self.run.time_us - 1

    @property
    def kernel(self) -> str:
        """The Pallas kernel that takes most of the time; "" where an operation of XLA's does."""
        return kernel_name(self.run)


def compared_programs(rows: Iterable[ComparedRow], runs: Mapping[str, SimulatedRun]) -> list[Compared]:
    """The programs behind the counted rows, each once, with the median of its device times.

    Rows whose wall clock is dispatch for a large part are left out: their errors are not the simulator's.

    Args:
      runs: by the text of the program.
    """
    of_program: dict[str, list[ComparedRow]] = {}
    for row in rows:
        dispatched = row.dispatch_us > _MOST_DISPATCH * row.published_us and row.timing == WALL_CLOCK
        if row.counted and row.program in runs and not dispatched:
            of_program.setdefault(row.program, []).append(row)
    return [
        Compared(
            chip=shared[0].chip,
            device_us=statistics.median(row.published_us - row.dispatch_us for row in shared),
            run=runs[program],
            in_view=any(row.in_view for row in shared),
        )
        for program, shared in of_program.items()
    ]


def time_errors(
    programs: Sequence[Compared], *, command: str, versions: Mapping[str, str], chips: Mapping[str, Chip] | None = None
) -> TimeErrors:
    """The intervals of every kind of program among them, of each chip and clock state.

    Args:
      chips: records in place of those that are known, by name.
    """
    records = {name: (chips or {}).get(name) or chip(name) for name in dict.fromkeys(each.chip for each in programs)}
    kinds = []
    for name, record in records.items():
        widening = _widening(record, programs)
        of_kind: dict[str, list[Compared]] = {}
        for each in programs:
            if each.chip == name and (kind := traits_of(each.run).kind):
                of_kind.setdefault(kind, []).append(each)
        kinds += [_checked(name, kind, alike, widening) for kind, alike in sorted(of_kind.items())]
    return TimeErrors(
        command=command,
        versions=dict(versions),
        machines={name: machine_digest(record.machine) for name, record in records.items()},
        kinds=tuple(kinds),
    )


def half_width(deviations: Sequence[float]) -> float | None:
    """What the next deviation stays within nine times out of ten; None: too few say so."""
    count = len(deviations)
    if count < _LEAST_PROGRAMS:
        return None
    rank = math.ceil(_COVERED * (count + 1))
    if rank <= count:
        return sorted(map(abs, deviations))[rank - 1]
    from scipy.stats import t  # takes a while, and only this needs it

    spread = math.sqrt(sum(each**2 for each in deviations) / count)
    return float(spread * t.ppf((1 + _COVERED) / 2, count))


def _widening(known: Chip, programs: Sequence[Compared]) -> float:
    """By how much deviations of programs in view count for more; infinite where as many constants were fitted."""
    fitted = len(fittable(known))
    seen = sum(each.in_view and chip(each.chip).generation == known.generation for each in programs)
    return seen / (seen - fitted) if seen > fitted else math.inf


def _checked(name: str, kind: str, alike: Sequence[Compared], widening: float) -> CheckedKind:
    factors = [widening if each.in_view else 1.0 for each in alike]
    deviations = [each.deviation * by for each, by in zip(alike, factors, strict=True) if math.isfinite(by)]
    pairs = [
        abs(math.log((one.deviation + 1) / (other.deviation + 1))) * max(factors[at], factors[beside])
        for (at, one), (beside, other) in combinations(enumerate(alike), 2)
        if one.kernel == other.kernel != "" and math.isfinite(max(factors[at], factors[beside]))
    ]
    return CheckedKind(
        chip=name,
        kind=kind,
        programs=len(deviations),
        bias_percent=round(100 * statistics.median(each.deviation for each in alike), 2),
        error_percent=_percent(half_width(deviations)),
        pairs=len(pairs),
        ratio_percent=_percent(half_width(pairs)),
        least_us=round(min(each.run.time_us for each in alike), 2),
        most_copies_per_us=round(max(traits_of(each.run).copies_per_us or 0.0 for each in alike), 3),
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
