"""What a search for tiles found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from systolic.accuracy.time_error import RatioVerdict, TimeError, ratio_error_percent, ratio_verdict
from systolic.chips import Chip, chip, known_chip
from systolic.cost import machine_roofline, repeated_us
from systolic.ops.op import op_of, read_spec, record_of
from systolic.ops.trial_error import trial_error
from systolic.schedule import KernelConfig
from systolic.spec import Spec
from systolic.store import Subject, Trial, best_first
from systolic.support.summary import Summarised, Summary
from systolic.support.untrusted import UntrustedError, mapping
from systolic.tuning.saved import End, SavedTuningError, read_result, write_result


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTrials:
    """What is known of a product on a chip beside XLA.

    Attributes:
      spec: as asked for.
      computed: what the kernel computes, to which configurations belong.
      trials: fastest first.
      xla: XLA's program; None where nobody asked for it or it has no time.
      xla_us: its time in repeated calls, where its copy ahead of the call hides behind the call before.
    """

    spec: Any
    computed: Any
    chip: str
    trials: tuple[Trial, ...]
    xla: Trial | None
    xla_us: float | None

    @classmethod
    def of(cls, spec: Spec, chip: Chip, trials: Iterable[Trial], **more: Any) -> Self:
        """What these trials say of a product, in any order, XLA's program among them.

        Args:
          more: what a subclass has besides.
        """
        every = list(trials)
        xla = next((trial for trial in every if trial.tried is None), None)
        return cls(
            spec=spec,
            computed=op_of(spec).computed(spec),
            chip=chip.name,
            trials=tuple(best_first(trial for trial in every if trial.tried is not None)),
            xla=xla,
            xla_us=None if xla is None else xla_repeated_us(xla, spec, chip),
            **more,
        )

    @property
    def winner(self) -> Trial | None:
        """The fastest; None where no trial has a time."""
        return next((trial for trial in self.trials if trial.time_us is not None), None)

    @property
    def ratio_to_xla(self) -> float | None:
        """XLA's time over the winner's: above 1 the winner is faster."""
        winner, xla = self.winner, self.xla
        if winner is None or winner.time_us is None or xla is None or self.xla_us is None:
            return None
        if (winner.measured_us is None) != (xla.measured_us is None):
            return None  # a measured time over a simulated one says nothing
        return self.xla_us / winner.time_us

    @property
    def winner_error(self) -> TimeError | None:
        """The error of the winner's simulated time."""
        return self._error(self.winner)

    @property
    def xla_error(self) -> TimeError | None:
        """The error of XLA's simulated time."""
        return self._error(self.xla)

    @property
    def ratio_error_percent(self) -> float | None:
        """The error of the ratio of simulated times to XLA; None: not known, or the times are measured."""
        mine, other = self.winner_error, self.xla_error
        return None if mine is None or other is None else ratio_error_percent(mine, other, same_kernel=False)

    @property
    def verdict(self) -> RatioVerdict:
        """Whether the winner is faster than XLA by more than their simulated times may be off; measured times hold."""
        if self.ratio_to_xla is None:
            return "not known"
        measured = self.winner is not None and self.winner.measured_us is not None
        return ratio_verdict(self.ratio_to_xla, 0.0 if measured else self.ratio_error_percent)

    def _error(self, trial: Trial | None) -> TimeError | None:
        known = known_chip(self.chip)
        return None if trial is None or known is None else trial_error(trial, self.computed, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult(KeptTrials, Summarised):
    """What a search found, and the trials of those before it.

    Attributes:
      considered: legal configurations that the model ranked.
      compiled: trials of this search.
      seconds: it took.
      end: why it ended: so many trials, the time was over, nothing left could be faster, all were
        tried, or Ctrl-C.
    """

    considered: int
    compiled: int
    seconds: float
    end: End

    def summary(self) -> Summary:
        """Says which configuration won, with a row for each trial."""
        sizes, dtypes, _ = op_of(self.spec).words(self.spec)
        return Summary(
            heading=f"{sizes}, {dtypes} on {self.chip}: {self.winner.config if self.winner else 'no trial has a time'}",
            facts={
                "× XLA": "" if self.ratio_to_xla is None else f"{self.ratio_to_xla:.3f} ({self.verdict})",
                "tried": f"{self.compiled} now, {len(self.trials)} in all, of {self.considered:,}",
            },
            columns=("configuration", "status", "µs simulated", "µs measured", "waits for", "reason"),
            rows=tuple(
                (str(one.config), one.status, one.simulated_us, one.measured_us, one.limit, one.reason)
                for one in self.trials
            ),
        )

    def to_json(self) -> str:
        """Writes JSON text, which `from_json` reads."""
        trials = self.trials if self.xla is None else (*self.trials, self.xla)
        return write_result(self, Subject.here(self.computed, self.chip), trials, asked=record_of(self.spec))

    @staticmethod
    def from_json(text: str) -> TuningResult:
        """Reads a result that `to_json` wrote.

        Raises:
          SavedTuningError: the text is no such result, or one of another version's format.
        """
        try:
            subject, trials, ended, document = read_result(text)
            asked = mapping(document.get("asked"), "asked")
            spec = read_spec(asked.get("op"), asked.get("spec"))
        except UntrustedError as error:
            raise SavedTuningError(f"this is no tuning result: {error}") from error
        return TuningResult.of(spec, chip(subject.chip), trials, **dataclasses.asdict(ended))

    @property
    def config(self) -> KernelConfig:
        """The winner's, for `systolic.matmul(tiles=…)` and `systolic.plan(tiles=…)`.

        Raises:
          LookupError: no trial has a time.
        """
        if self.winner is None or self.winner.config is None:
            raise LookupError("no trial has a time; their reasons are in `trials`")
        return self.winner.config

    @property
    def level_trials(self) -> int | None:
        """Other trials whose times say nothing against them beside the winner's; None: not known."""
        winner, error = self.winner, self.winner_error
        if winner is None or winner.config is None or not winner.time_us or error is None:
            return None
        percent = ratio_error_percent(error, error, same_kernel=True)
        alike = [
            trial.simulated_us / winner.time_us
            for trial in self.trials
            if trial is not winner
            and trial.simulated_us
            and trial.config is not None
            and trial.config.kernel == winner.config.kernel
        ]
        return None if percent is None else sum(ratio_verdict(ratio, percent) == "level" for ratio in alike)


def xla_repeated_us(xla: Trial, spec: Spec, chip: Chip) -> float | None:
    """XLA's time in repeated calls."""
    if xla.measured_us is not None:
        return xla.measured_us
    if xla.simulated_us is None:
        return None
    return repeated_us(xla.simulated_us, xla.prefetch_us or 0.0, machine_roofline(spec, chip).hbm_us)
