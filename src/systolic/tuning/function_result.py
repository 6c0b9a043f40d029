"""The result of a search over the static arguments of a function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from systolic.accuracy.time_error import (
    RatioVerdict,
    TimeError,
    ratio_error_percent,
    ratio_verdict,
    shipped_time_errors,
)
from systolic.chips import known_chip
from systolic.compiler import NamedFunction, loaded_function
from systolic.explaining import records_with
from systolic.store import FUNCTIONS, FunctionConfig, FunctionSpec, Keyword, Subject, Trial, fastest
from systolic.support.summary import Summarised, Summary
from systolic.support.untrusted import UntrustedError, structured
from systolic.tuning.saved import End, SavedTuningError, read_result, write_result

_MOSTLY = 0.5  # of its time in Pallas kernels, from which two variants are compared like two tiles of one kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A combination that was not compiled, and why."""

    keywords: tuple[Keyword, ...]
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.keywords)) or 'as it is'}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Parts of a saved result that only functions have."""

    default: FunctionConfig | None
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTuning(Summarised):
    """The trials of a search, and of those before it.

    Attributes:
      fn: the function; None in a result that was read from a file without it.
      args: abstract arguments that it was tuned for.
      spec: its name and its arguments.
      trials: of this search and of those before it, fastest first.
      default: the function as it is, with its own defaults; None where that cannot be traced.
      left_out: combinations that were not compiled: they break a rule, or are the same program as another one.
      considered: combinations that can be tried.
      compiled: trials of this search.
      seconds: duration of the search.
      end: why it ended: number of trials, time budget, nothing left could be faster, or all were tried.
    """

    fn: Callable[..., Any] | NamedFunction | None
    args: tuple[Any, ...]
    spec: FunctionSpec
    chip: str
    trials: tuple[Trial, ...]
    default: FunctionConfig | None
    left_out: tuple[LeftOut, ...]
    considered: int
    compiled: int
    seconds: float
    end: End

    @property
    def unmodelled_trials(self) -> int:
        """Trials that no model has ranked, because they call no Pallas kernel: their order says nothing."""
        return sum(trial.modelled_us is None for trial in self.trials)

    def summary(self) -> Summary:
        """Return the winning static arguments, with a row for each trial."""
        named = f"{self.spec.name}({'; '.join(self.spec.arguments)}) on {self.chip}"
        ratio = "" if self.speed_ratio is None else f"{self.speed_ratio:.3f} ({self.verdict})"
        return Summary(
            heading=f"{named}: {self.winner.function if self.winner else 'no trial has a time'}",
            facts={
                "× as it is": ratio,
                "tried": f"{self.compiled} now, {len(self.trials)} in all, of {self.considered:,}",
                "ranked": f"{self.unmodelled_trials} trials by no model: no Pallas kernel"
                * bool(self.unmodelled_trials),
                "left out": f"{len(self.left_out):,} combinations" if self.left_out else "",
            },
            columns=("arguments", "status", "µs simulated", "waits for", "reason"),
            rows=tuple(
                (str(trial.function), trial.status, trial.simulated_us, trial.limit, trial.reason)
                for trial in self.trials
            ),
        )

    def to_json(self) -> str:
        """Write JSON text for `from_json`, without the function and its arguments."""
        left_out = list(map(dataclasses.asdict, self.left_out))
        default = None if self.default is None else dataclasses.asdict(self.default)
        subject = Subject.here(self.spec, self.chip)
        return write_result(self, subject, self.trials, default=default, left_out=left_out)

    @staticmethod
    def from_json(
        text: str, fn: Callable[..., Any] | NamedFunction | None = None, args: tuple[Any, ...] = ()
    ) -> FunctionTuning:
        """Read the text of `to_json`.

        Args:
          fn: the function, which `partial` needs.
          args: arrays or `jax.ShapeDtypeStruct`s, which `partial` needs where fields of records were tuned.

        Raises:
          SavedTuningError: the text is not such a result, or one of another version's format.
        """
        try:
            subject, trials, ended, document = read_result(text)
            if subject.op != FUNCTIONS.name:
                raise UntrustedError("it is of a product: systolic.TuningResult.from_json reads it")
            parts = structured({name: document.get(name) for name in ("default", "left_out")}, _Parts)
        except UntrustedError as error:
            raise SavedTuningError(f"this is not a result of tuning a function: {error}") from error
        return FunctionTuning(
            fn=fn,
            args=args,
            spec=subject.spec,
            chip=subject.chip,
            trials=tuple(trials),
            default=parts.default,
            left_out=parts.left_out,
            **dataclasses.asdict(ended),
        )

    @property
    def winner(self) -> Trial | None:
        """The fastest; None where no trial has a time."""
        return fastest(self.trials)

    @property
    def default_trial(self) -> Trial | None:
        """The function as it is; None where it was not tried."""
        return next((trial for trial in self.trials if trial.function == self.default is not None), None)

    @property
    def keywords(self) -> dict[str, Any]:
        """The winner's static arguments by name; of a record's field "block_sizes.block_q".

        Raises:
          LookupError: no trial has a time.
        """
        if self.winner is None or self.winner.function is None:
            raise LookupError("no trial has a time; their reasons are in `trials` and `left_out`")
        return self.winner.function.arguments

    @property
    def partial(self) -> functools.partial[Any]:
        """The function with the winner's static arguments, records among them. One that is named is imported.

        Raises:
          LookupError: no trial has a time, or the result was read from a file without the function.
        """
        keywords = self.keywords
        if self.fn is None:
            raise LookupError("the function is not in the file: FunctionTuning.from_json(text, fn) takes it")
        fields = {name: keywords.pop(name) for name in list(keywords) if "." in name}
        made = functools.partial(loaded_function(self.fn), **keywords)
        return functools.partial(made, **records_with(made, fields, self.args)) if fields else made

    @property
    def speed_ratio(self) -> float | None:
        """The time of the function as it is over the winner's: above 1 the winner is faster."""
        return None if self.default_trial is None else self.ratio_to_winner(self.default_trial)

    @property
    def verdict(self) -> RatioVerdict:
        """Faster or slower than the function as it is, if by more than their times may be off."""
        ratio = self.speed_ratio
        if ratio is None or self.default_trial is None:
            return "not known"
        return ratio_verdict(ratio, self.ratio_error_percent(self.default_trial))

    @property
    def level_trials(self) -> int | None:
        """Other trials that are no further from the winner than their times may be off; None: not known."""
        result = [
            ratio_verdict(self.ratio_to_winner(trial) or 1.0, self.ratio_error_percent(trial))
            for trial in self.trials
            if trial is not self.winner and trial.time_us is not None
        ]
        return None if "not known" in result else result.count("level")

    def ratio_to_winner(self, trial: Trial) -> float | None:
        """Return a trial's time over the winner's."""
        if self.winner is None or not self.winner.time_us or trial.time_us is None:
            return None
        return trial.time_us / self.winner.time_us

    def ratio_error_percent(self, trial: Trial) -> float | None:
        """Return the error of the ratio of a trial's time to the winner's; None: not known."""
        mine, other = self.error(self.winner), self.error(trial)
        if mine is None or other is None:
            return None
        kernels = [
            measured is not None and measured.traits is not None and measured.traits.pallas_share >= _MOSTLY
            for measured in (self.winner, trial)
        ]
        return ratio_error_percent(mine, other, same_kernel=all(kernels))

    def error(self, trial: Trial | None) -> TimeError | None:
        """Return the error of a trial's simulated time; None where it has none."""
        chip = known_chip(self.chip)
        if trial is None or trial.traits is None or chip is None:
            return None
        return shipped_time_errors().of(chip, trial.traits)
