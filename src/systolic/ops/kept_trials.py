"""A store's trials of a product on a chip: the winner, and its time against XLA's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from systolic.accuracy.time_error import RatioVerdict, TimeError, ratio_error_percent, ratio_verdict
from systolic.chips import Chip, known_chip
from systolic.cost import machine_roofline, repeated_us
from systolic.ops.op import op_of
from systolic.ops.planner import Planner
from systolic.ops.trial_error import trial_error
from systolic.spec import Spec
from systolic.store import StoreError, Subject, Trial, best_first, fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTrials:
    """The trials of a product on a chip, and XLA's program."""

    spec: Any  # the requested product
    computed: Any  # the kernel's product, to which configurations belong
    chip: str
    trials: tuple[Trial, ...]  # fastest first
    xla: Trial | None  # XLA's program; None if it was not requested or has no time
    xla_us: float | None  # its time in repeated calls, where its early copy overlaps with the call before

    @classmethod
    def of(cls, spec: Spec, chip: Chip, trials: Iterable[Trial], **fields: Any) -> Self:
        """Return the record of a product's trials, in any order, XLA's program among them; subclasses add `fields`."""
        all_trials = list(trials)
        xla = next((trial for trial in all_trials if trial.tried is None), None)
        return cls(
            spec=spec,
            computed=op_of(spec).computed(spec),
            chip=chip.name,
            trials=tuple(best_first(trial for trial in all_trials if trial.tried is not None)),
            xla=xla,
            xla_us=None if xla is None else xla_repeated_us(xla, spec, chip),
            **fields,
        )

    @property
    def winner(self) -> Trial | None:
        """The fastest trial; None if no trial has a time."""
        return fastest(self.trials)

    @property
    def ratio_to_xla(self) -> float | None:
        """XLA's time over the winner's: above 1 the winner is faster."""
        winner, xla = self.winner, self.xla
        if winner is None or winner.time_us is None or xla is None or self.xla_us is None:
            return None
        if (winner.measured_us is None) != (xla.measured_us is None):
            return None  # a measured time is not comparable with a simulated one
        return self.xla_us / winner.time_us

    @property
    def winner_error(self) -> TimeError | None:
        return self._error(self.winner)

    @property
    def xla_error(self) -> TimeError | None:
        return self._error(self.xla)

    @property
    def ratio_error_percent(self) -> float | None:
        """The error of the ratio of simulated times; None: not known, or the times are measured."""
        mine, xla_error = self.winner_error, self.xla_error
        return None if mine is None or xla_error is None else ratio_error_percent(mine, xla_error, same_kernel=False)

    @property
    def verdict(self) -> RatioVerdict:
        """The verdict: faster or slower than XLA, if simulated times differ by more than their errors."""
        if self.ratio_to_xla is None:
            return "not known"
        measured = self.winner is not None and self.winner.measured_us is not None
        return ratio_verdict(self.ratio_to_xla, 0.0 if measured else self.ratio_error_percent)

    def _error(self, trial: Trial | None) -> TimeError | None:
        trial_chip = known_chip(self.chip)
        return None if trial is None or trial_chip is None else trial_error(trial, self.computed, trial_chip)


def kept_trials(planner: Planner, spec: Spec, chip: Chip) -> KeptTrials | None:
    """Return the stored trials of a product; the planner has warned of a store that cannot be read."""
    if planner.store is None or chip != known_chip(chip.name):
        return None
    try:
        trials = planner.store.trials(Subject.here(op_of(spec).computed(spec), chip.name))
    except StoreError:
        return None
    return KeptTrials.of(spec, chip, trials)


def xla_repeated_us(xla: Trial, spec: Spec, chip: Chip) -> float | None:
    if xla.measured_us is not None:
        return xla.measured_us
    if xla.simulated_us is None:
        return None
    return repeated_us(xla.simulated_us, xla.prefetch_us or 0.0, machine_roofline(spec, chip).hbm_us)
