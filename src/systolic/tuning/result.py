"""The result of a search for tiles."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from systolic.accuracy.time_error import ratio_error_percent, ratio_verdict
from systolic.chips import chip
from systolic.ops.kept_trials import KeptTrials
from systolic.ops.op import op_of, read_spec, record_of
from systolic.schedule import KernelConfig
from systolic.store import Subject
from systolic.support.summary import Summarised, Summary
from systolic.support.untrusted import UntrustedError, mapping
from systolic.tuning.saved import End, SavedTuningError, read_result, write_result


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult(KeptTrials, Summarised):
    """The trials of a search, and of those before it.

    Attributes:
      considered: legal configurations that the model ranked.
      compiled: trials of this search.
      seconds: duration of the search.
      end: why it ended: number of trials, time budget, nothing left could be faster, all tried, or Ctrl-C.
    """

    considered: int
    compiled: int
    seconds: float
    end: End

    def summary(self) -> Summary:
        """Return the winning configuration, with a row for each trial."""
        sizes, dtypes, _ = op_of(self.spec).words(self.spec)
        return Summary(
            heading=f"{sizes}, {dtypes} on {self.chip}: {self.winner.config if self.winner else 'no trial has a time'}",
            facts={
                "× XLA": "" if self.ratio_to_xla is None else f"{self.ratio_to_xla:.3f} ({self.verdict})",
                "tried": f"{self.compiled} now, {len(self.trials)} in all, of {self.considered:,}",
            },
            columns=("configuration", "status", "µs simulated", "µs measured", "waits for", "reason"),
            rows=tuple(
                (str(trial.config), trial.status, trial.simulated_us, trial.measured_us, trial.limit, trial.reason)
                for trial in self.trials
            ),
        )

    def to_json(self) -> str:
        """Write JSON text for `from_json`."""
        trials = self.trials if self.xla is None else (*self.trials, self.xla)
        return write_result(self, Subject.here(self.computed, self.chip), trials, asked=record_of(self.spec))

    @staticmethod
    def from_json(text: str) -> TuningResult:
        """Read the text of `to_json`.

        Raises:
          SavedTuningError: the text is not such a result, or one of another version's format.
        """
        try:
            subject, trials, ended, document = read_result(text)
            question = mapping(document.get("asked"), "asked")
            spec = read_spec(question.get("op"), question.get("spec"))
        except UntrustedError as error:
            raise SavedTuningError(f"this is not a tuning result: {error}") from error
        return TuningResult.of(spec, chip(subject.chip), trials, **dataclasses.asdict(ended))

    @property
    def config(self) -> KernelConfig:
        """The winner's configuration, for `systolic.matmul(tiles=…)` and `systolic.plan(tiles=…)`.

        Raises:
          LookupError: no trial has a time.
        """
        if self.winner is None or self.winner.config is None:
            raise LookupError("no trial has a time; their reasons are in `trials`")
        return self.winner.config

    @property
    def level_trials(self) -> int | None:
        """Other trials that are no further from the winner than their times may be off; None: not known."""
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
