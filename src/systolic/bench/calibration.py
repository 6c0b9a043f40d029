"""Constants of a chip's model, fitted to half of the published programs and checked on the other half.

The objective is the mean, over the programs of the fitting half, of |log(predicted / device time)|; a program that
several sources timed counts once, with the mean over its rows. It is an absolute error and not a squared one, so that
one time that nothing explains pulls no harder than any other.

The constants are looked for by Nelder and Mead's simplex, within bounds and from the shipped values: predictions are
maxima of sums, which have kinks where a derivative would mislead. How well the rows determine a constant is said by
its bracket: as far as it can move alone while the objective stays within 15 % of the best (and within a thousandth of
it at the least, since a few programs can be fitted perfectly, by many constants).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from systolic.chips import Chip
from systolic.chips.constants import Bounds, fittable, is_cycles

LEAST_PROGRAMS = 4
BRACKET = 0.15
USUALLY_FITTED = ("hbm_bytes_per_s", "dma_latency_cycles", "dma_issue_cycles", "dma_wait_cycles")
SPLIT = "distinct programs in the order of their published times, one to fit and the next to check in turn"

# In shares of the range between a constant's bounds: a simplex's first step, and where it is taken to have ended. The
# second is there because the first may have collapsed on the way.
_PASSES = ((0.10, 2e-2), (0.04, 2e-3))
_BRACKET_STEP = 0.01  # doubled until the objective is too large, then halved
_BISECTIONS = 3
_LEAST_DIFFERENCE = 1e-3  # of two objectives: published times are not known to a thousandth


class TooFewProgramsError(ValueError):
    """Too few distinct programs to fit to some and check on others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One distinct program: the device times that were published for it, and its prediction with other constants."""

    name: str
    device_us: tuple[float, ...]
    predict_us: Callable[[Chip], float] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A constant that was fitted. `low` and `high` are its bracket, which ends at the bounds at the latest."""

    name: str
    shipped: float
    fitted: float
    low: float
    high: float
    least: float
    most: float

    @property
    def determined(self) -> bool:
        """Whether the rows say anything: false where every value between the bounds does as well."""
        return self.low > self.least or self.high < self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The outcome. Objectives are those of the fitting half, with the shipped and with the fitted constants."""

    chip: Chip  # with the fitted constants
    constants: tuple[FittedConstant, ...]
    fitted_on: tuple[str, ...]
    checked_on: tuple[str, ...]
    objective_before: float
    objective_after: float
    rounds: int  # evaluations of the objective


def split(samples: Sequence[Sample], chip: Chip) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """The half to fit and the half to check: sorted by device time, in turn.

    Raises:
      TooFewProgramsError: there are fewer than four.
    """
    require_programs(len(samples), chip)
    ordered = sorted(samples, key=lambda sample: (statistics.median(sample.device_us), sample.name))
    return tuple(ordered[::2]), tuple(ordered[1::2])


def require_programs(programs: int, chip: Chip) -> None:
    """Two to fit and two to check are the least that can be called either.

    Raises:
      TooFewProgramsError: there are fewer.
    """
    if programs < LEAST_PROGRAMS:
        raise TooFewProgramsError(
            f"{chip.name} has {programs} distinct program{'s' * (programs != 1)} with a published time to compare "
            "with; "
            f"a fit that is also checked needs at least {LEAST_PROGRAMS}"
        )


def most_rounds(constants: int) -> int:
    """Rounds of simulating the fitting half that `calibrate` makes at the most."""
    edge = math.ceil(math.log2(1 / _BRACKET_STEP)) + 1 + _BISECTIONS
    return 1 + len(_PASSES) * _search_rounds(constants) + 2 * constants * edge


def _search_rounds(constants: int) -> int:
    return 30 * constants


def calibrate(
    samples: Sequence[Sample],
    chip: Chip,
    names: Sequence[str] = USUALLY_FITTED,
    *,
    done: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Fits the constants `names` of `chip.machine`.

    Args:
      names: among those of `fittable`.
      done: told after each round, with the smallest objective so far.

    Raises:
      TooFewProgramsError: there are fewer than four samples.
    """
    fitting, checking = split(samples, chip)
    search = _Search(fitting, chip, names, done)
    before = search.at(search.shipped)
    best = search.best_from(search.shipped)
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
    """The objective over shares: each constant as its place between its bounds, from 0 to 1."""

    def __init__(
        self, samples: Sequence[Sample], chip: Chip, names: Sequence[str], done: Callable[[str], None]
    ) -> None:
        known = fittable(chip)
        self._samples = samples
        self._chip = chip
        self._bounds: Mapping[str, Bounds] = {name: known[name] for name in names}
        self._done = done
        self._seen: dict[tuple[float, ...], float] = {}
        self._least = math.inf
        self.rounds = 0
        self.shipped = np.array(
            [
                (getattr(chip.machine, name) - bounds.least) / (bounds.most - bounds.least)
                for name, bounds in self._bounds.items()
            ]
        )

    def values(self, shares: np.ndarray) -> dict[str, float]:
        """The constants at that place, cycles rounded to whole ones."""
        found = {}
        for share, (name, bounds) in zip(shares, self._bounds.items(), strict=True):
            value = float(bounds.least + min(1.0, max(0.0, float(share))) * (bounds.most - bounds.least))
            found[name] = round(value) if is_cycles(name) else value
        return found

    def chip_at(self, shares: np.ndarray) -> Chip:
        return replace(self._chip, machine=replace(self._chip.machine, **self.values(shares)))  # pyright: ignore[reportArgumentType]

    def at(self, shares: np.ndarray) -> float:
        """The objective. Places that round to the same constants are worked out once."""
        key = tuple(self.values(shares).values())
        if key not in self._seen:
            chip = self.chip_at(shares)
            self._seen[key] = statistics.fmean(_error(sample, chip) for sample in self._samples)
            self.rounds += 1
            self._least = min(self._least, self._seen[key])
            self._done(f"mean error {math.expm1(self._least):.2%}")
        return self._seen[key]

    def best_from(self, start: np.ndarray) -> np.ndarray:
        """The best place found."""
        from scipy.optimize import minimize  # takes a while, and only this needs it

        best = np.clip(start, 0, 1)
        for step, tolerance in _PASSES:
            # Away from the bound: a corner that is cut off there would make the simplex flat.
            corners = [
                best + np.eye(len(best))[index] * (step if best[index] <= 0.5 else -step) for index in range(len(best))
            ]
            options = {
                "initial_simplex": np.array([best, *corners]),
                "maxfev": _search_rounds(len(best)),
                "xatol": tolerance,
                "fatol": tolerance * max(self.at(best), 1e-6),
            }
            best = minimize(self.at, best, method="Nelder-Mead", bounds=[(0, 1)] * len(best), options=options).x
        return best

    def constant(self, index: int, best: np.ndarray, objective: float) -> FittedConstant:
        """One constant with its bracket, the others left at the best."""
        name = list(self._bounds)[index]
        bounds = self._bounds[name]
        allowed = max(objective * (1 + BRACKET), objective + _LEAST_DIFFERENCE)

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


def _error(sample: Sample, chip: Chip) -> float:
    predicted_us = sample.predict_us(chip)
    return statistics.fmean(abs(math.log(predicted_us / device_us)) for device_us in sample.device_us)
