"""Fit constants of a chip's model to half of the published programs and check them on the other half.

The objective is the mean, over the programs of the fitting half, of |log(predicted / device time)|; a program that
several sources timed counts once, with the mean over its rows. It is an absolute error and not a squared one, so that a
time that nothing explains has no more weight than any other.

The method is successive linear programming, within bounds, from the shipped values. Around the best constants so far
every program's error is taken to be linear in the constants; the constants within reach that minimize the mean absolute
error are then the solution of a linear program. The reach shrinks if the linear model predicts a larger gain than the
simulator confirms. Times are nearly linear in these constants over wide ranges, so the search ends after a few dozen
rounds.

A constant's bracket shows how well the rows determine it: how far it can move alone while the objective stays within 15
% of the best (or at least within a thousandth, since many constants can fit a few programs perfectly).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from systolic.chips import Chip
from systolic.chips.constants import Bounds, fittable, is_cycles
from systolic.support.call_errors import WrongCallError

MIN_PROGRAMS = 4
BRACKET = 0.15
USUALLY_FITTED = ("hbm_bytes_per_s", "dma_latency_cycles", "dma_issue_cycles", "dma_wait_cycles")
SPLIT = "distinct programs in the order of their published times, one to fit and the next to check in turn"

# In shares of the range between a constant's bounds.
_SLOPE_STEP = 0.01  # over which an error's slope is taken; a few cycles, so that rounding to whole ones does not show
_FIRST_REACH, _LAST_REACH, _MAX_REACH = 0.10, 0.002, 0.30
_BRACKET_STEP = 0.02  # doubled until the objective is too large, then halved
_BISECTIONS = 3

_MIN_GAIN = 1e-5  # of the objective, for another step
_MIN_DIFFERENCE = 1e-3  # of two objectives: published times are not known to a thousandth


class TooFewProgramsError(WrongCallError, ValueError):
    """Too few distinct programs to fit to some and check on others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One distinct program: its published device times, and its prediction with other constants."""

    name: str
    device_us: tuple[float, ...]
    predict_us: Callable[[Chip], float] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A constant that was fitted. `low` and `high` are its bracket, which ends at the bounds."""

    name: str
    shipped: float
    fitted: float
    low: float
    high: float
    least: float
    most: float

    @property
    def determined(self) -> bool:
        """False if every value between the bounds is as good."""
        return self.low > self.least or self.high < self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    chip: Chip  # with the fitted constants
    constants: tuple[FittedConstant, ...]
    fitted_on: tuple[str, ...]
    checked_on: tuple[str, ...]
    objective_before: float
    objective_after: float
    rounds: int  # evaluations of the objective


def split(samples: Sequence[Sample], chip: Chip) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return halves to fit and to check, by device time, in turn; raise TooFewProgramsError for fewer than four."""
    require_programs(len(samples), chip)
    ordered = sorted(samples, key=lambda sample: (statistics.median(sample.device_us), sample.name))
    return tuple(ordered[::2]), tuple(ordered[1::2])


def require_programs(programs: int, chip: Chip) -> None:
    """Require two programs to fit and two to check, or raise TooFewProgramsError."""
    if programs < MIN_PROGRAMS:
        raise TooFewProgramsError(
            f"{chip.name} has {programs} distinct program{'s' * (programs != 1)} with a published time to compare "
            "with; "
            f"a fit that is also checked needs at least {MIN_PROGRAMS}"
        )


def most_rounds(constants: int) -> int:
    """Return the most rounds of simulating the fitting half that `calibrate` makes."""
    edge = math.ceil(math.log2(1 / _BRACKET_STEP)) + 1 + _BISECTIONS
    return _search_rounds(constants) + constants + 2 * constants * edge


def _search_rounds(constants: int) -> int:
    return 15 * (constants + 1)


def calibrate(
    samples: Sequence[Sample],
    chip: Chip,
    names: Sequence[str] = USUALLY_FITTED,
    *,
    done: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Fit the constants `names` (see `fittable`) of `chip.machine`; raise TooFewProgramsError for fewer than four.

    `done` is called after each round with the smallest objective so far.
    """
    fitting, checking = split(samples, chip)
    search = _Search(fitting, chip, names, done)
    before = search.at(search.shipped)
    best = search.best()
    after = search.at(best)
    constants = [search.constant(index, best, after) for index in range(len(names))]
    return Calibration(
        chip=search.chip_at(best),
        constants=tuple(constants),
        fitted_on=tuple(sample.name for sample in fitting),
        checked_on=tuple(sample.name for sample in checking),
        objective_before=before,
        objective_after=after,
        rounds=search.rounds,
    )


class _Search:
    """The objective over shares: each constant's position between its bounds, from 0 to 1."""

    def __init__(
        self, samples: Sequence[Sample], chip: Chip, names: Sequence[str], done: Callable[[str], None]
    ) -> None:
        all_bounds = fittable(chip)
        self._samples = samples
        self._chip = chip
        self._bounds: Mapping[str, Bounds] = {name: all_bounds[name] for name in names}
        self._done = done
        self._weights = np.concatenate(
            [np.full(len(sample.device_us), 1 / len(samples) / len(sample.device_us)) for sample in samples]
        )
        self._seen: dict[tuple[float, ...], np.ndarray] = {}
        self._least = math.inf
        self.rounds = 0
        self.shipped = np.array(
            [
                (getattr(chip.machine, name) - bounds.least) / (bounds.most - bounds.least)
                for name, bounds in self._bounds.items()
            ]
        )

    def values(self, shares: np.ndarray) -> dict[str, float]:
        """Return the constants at that place, cycles rounded to whole ones."""
        result = {}
        for share, (name, bounds) in zip(shares, self._bounds.items(), strict=True):
            value = float(bounds.least + min(1.0, max(0.0, float(share))) * (bounds.most - bounds.least))
            result[name] = round(value) if is_cycles(name) else value
        return result

    def chip_at(self, shares: np.ndarray) -> Chip:
        return replace(self._chip, machine=replace(self._chip.machine, **self.values(shares)))  # pyright: ignore[reportArgumentType]

    def errors(self, shares: np.ndarray) -> np.ndarray:
        """Return log(predicted / device time) of every row, computed once for each set of constants."""
        key = tuple(self.values(shares).values())
        if key not in self._seen:
            chip = self.chip_at(shares)
            predicted = [(sample.predict_us(chip), sample.device_us) for sample in self._samples]
            self._seen[key] = np.array(
                [math.log(time_us / one_us) for time_us, row_us in predicted for one_us in row_us]
            )
            self.rounds += 1
            self._least = min(self._least, self.at(shares))
            self._done(f"mean error {math.expm1(self._least):.2%}")
        return self._seen[key]

    def at(self, shares: np.ndarray) -> float:
        return float(self._weights @ np.abs(self.errors(shares)))

    def best(self) -> np.ndarray:
        place, reach = np.clip(self.shipped, 0, 1), _FIRST_REACH
        slopes = self._slopes(place)
        while reach > _LAST_REACH and self.rounds < _search_rounds(len(place)):
            step = self._linear_step(place, slopes, reach)
            promised = self.at(place) - float(self._weights @ np.abs(self.errors(place) + slopes @ step))
            if promised < _MIN_GAIN:
                break
            saving = self.at(place) - self.at(place + step)
            if saving < 0.1 * promised:
                reach /= 3
                continue
            place = place + step
            slopes = self._slopes(place)
            if saving > 0.7 * promised:
                reach = min(2 * reach, _MAX_REACH)
        return place

    def _slopes(self, place: np.ndarray) -> np.ndarray:
        """Return how each row's error changes with each share."""
        columns = []
        for index, share in enumerate(place):
            moved = place.copy()
            moved[index] += _SLOPE_STEP if share <= 0.5 else -_SLOPE_STEP
            columns.append((self.errors(moved) - self.errors(place)) / (moved[index] - share))
        return np.stack(columns, axis=1)

    def _linear_step(self, place: np.ndarray, slopes: np.ndarray, reach: float) -> np.ndarray:
        """Return the best step within reach and bounds for linear errors: least Σ weight · size with |error| ≤ size."""
        from scipy.optimize import linprog  # takes a while, and only this needs it

        errors, rows = self.errors(place), len(self._weights)
        answer = linprog(
            np.concatenate([np.zeros(len(place)), self._weights]),
            A_ub=np.block([[slopes, -np.eye(rows)], [-slopes, -np.eye(rows)]]),
            b_ub=np.concatenate([-errors, errors]),
            bounds=[(max(-reach, -share), min(reach, 1 - share)) for share in place] + [(0, None)] * rows,
        )
        return answer.x[: len(place)]

    def constant(self, index: int, best: np.ndarray, objective: float) -> FittedConstant:
        """Return one constant with its bracket, the others left at the best."""
        name = list(self._bounds)[index]
        bounds = self._bounds[name]
        allowed = max(objective * (1 + BRACKET), objective + _MIN_DIFFERENCE)

        def moved(share: float) -> np.ndarray:
            place = best.copy()
            place[index] = share
            return place

        def edge(end: float) -> float:
            within, sign, step = float(best[index]), math.copysign(1, end - 0.5), _BRACKET_STEP
            beyond = within
            while beyond != end:
                beyond = min(1.0, max(0.0, within + sign * step))
                if self.at(moved(beyond)) > allowed:
                    break
                within, step = beyond, 2 * step
            else:
                return self.values(moved(end))[name]
            for _ in range(_BISECTIONS):
                middle = (within + beyond) / 2
                if self.at(moved(middle)) > allowed:
                    beyond = middle
                else:
                    within = middle
            return self.values(moved(within))[name]

        return FittedConstant(
            name=name,
            shipped=getattr(self._chip.machine, name),
            fitted=self.values(best)[name],
            low=edge(0.0),
            high=edge(1.0),
            least=bounds.least,
            most=bounds.most,
        )
