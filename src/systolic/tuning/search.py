"""Search: a model ranks the candidates, the compiler and the simulator try the most promising.

Trials that the store already has, from any process, are not repeated.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, cast

from systolic.compiler import WALL_TIMES, WorkerPool
from systolic.schedule import KernelConfig
from systolic.simulator import traits_of
from systolic.store import FunctionConfig, Subject, Trial, TrialStore
from systolic.support.call_errors import WrongCallError
from systolic.timing.experiment import Experiment
from systolic.timing.opponent import faster_xla, opponent_flags
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner, Running, Submit, first_ended
from systolic.tuning.ranking import Choice, ConfigT, Ranking
from systolic.tuning.saved import End

MAX_TRIALS = 12
COMPILE_LIMIT_S = 120.0
# Wall-clock limits of one trial without any trial that ends: then the workers are lost.
_PATIENCE = 1.5


class StalledError(WrongCallError, RuntimeError):
    """No trial ends: the workers are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Functions that a search calls while it runs."""

    planned: Callable[[int], None] = lambda trials: None  # the most trials that it will make
    tried: Callable[[Trial, Trial | None], None] = lambda trial, best: None  # one ended; the best so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits of a search, and where its trials run."""

    trials: int = MAX_TRIALS  # at most, including trials that are in the store
    time_budget_s: float = 120.0  # seconds after which no trial is begun
    exhaustive: bool = False  # try everything; `trials` and `time_budget_s` do not count
    workers: int = 2  # processes that compile
    time_limit_s: float = COMPILE_LIMIT_S  # seconds of CPU time for one trial
    # Of one of the processes; None: an equal share of what the machine has free.
    memory_limit_bytes: int | None = None
    submit: Submit | None = None  # compiles and simulates somewhere else; None: in worker processes here

    def pool(self) -> WorkerPool:
        return WorkerPool(
            max_workers=self.workers, time_limit_s=self.time_limit_s, memory_limit_bytes=self.memory_limit_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opponent:
    """XLA's program, to compare trials with."""

    # With each set of flags, the defaults first; the fastest in repeated calls counts.
    experiments: Sequence[Experiment]
    least_hbm_us: float  # the shortest time in which the operands can cross HBM, for that comparison
    keeps: bool = True  # the store keeps its time

    def trial(self, outcomes: Sequence[Outcome]) -> Trial:
        """Return the trial of the fastest, given how each experiment ended."""
        fastest = faster_xla(outcomes, self.least_hbm_us)
        flags = opponent_flags(fastest, self.experiments[0].chip)
        return dataclasses.replace(_trial(fastest, None), flags=flags)


@dataclass(slots=True, kw_only=True)
class Search(Generic[ConfigT]):
    """One search in progress."""

    subject: Subject  # trials are stored under it
    experiment: Callable[[ConfigT], Experiment]  # to compile for a configuration
    least_time_us: Callable[[ConfigT], float]  # a lower bound of the time of a program with a configuration
    first: list[Choice[ConfigT]]  # tried before anything else
    ranking: Ranking[ConfigT]  # all that can be tried
    considered: int  # number of configurations to choose from
    store: TrialStore
    watcher: Watcher
    effort: Effort
    trials: dict[ConfigT | None, Trial] = field(default_factory=dict)  # of this search and of earlier ones
    compiled: int = 0  # trials of this search
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = float("inf") if self.effort.exhaustive else time.monotonic() + self.effort.time_budget_s

    def run(self, earlier: Iterable[Trial], opponent: Opponent | None = None) -> End:
        """Try the most promising until a limit is reached.

        Args:
          earlier: trials of earlier searches that still count.
          opponent: XLA, whose time becomes the trial without a configuration, unless there is one.

        Raises:
          StalledError: no trial has ended for far longer than one may take.
        """
        if self.effort.submit is not None:
            return self._run(Runner(self.effort.submit), earlier, opponent)
        with self.effort.pool() as pool:
            return self._run(Runner(pool), earlier, opponent)

    def best(self) -> Trial | None:
        """Return the fastest by simulated time, which all have; measured times come later."""
        timed = [
            trial for config, trial in self.trials.items() if config is not None and trial.simulated_us is not None
        ]
        return min(timed, key=lambda ended: ended.simulated_us or 0.0, default=None)

    def _run(self, runner: Runner, earlier: Iterable[Trial], opponent: Opponent | None) -> End:
        for trial in earlier:
            self._learn(trial)
        opponent = None if None in self.trials else opponent
        planned = self.considered if self.effort.exhaustive else self.effort.trials
        self.watcher.planned(max(0, planned - self._tried()) + (opponent is not None))
        under_way: dict[Running, Choice[ConfigT] | None] = {}
        xla = [runner.start(experiment) for experiment in opponent.experiments] if opponent is not None else []
        under_way.update(dict.fromkeys(xla))
        end: End = "all"
        while True:
            while len(under_way) < self.effort.workers:
                over = self._over(sum(choice is not None for choice in under_way.values()))
                choice = self._next([running.config for running in under_way.values() if running is not None])
                if over is not None or choice is None:
                    end = over or end
                    break
                self.ranking.started(choice.config)
                if self._hopeless(choice.config):
                    end = "bound"
                    continue
                under_way[runner.start(self.experiment(choice.config))] = choice
            if not under_way:
                return end
            for running in self._ended(under_way):
                choice = under_way.pop(running)
                if choice is not None:
                    outcome = running.outcome()
                    self._take(_trial(outcome, choice), keeps=outcome.lasting)
                elif opponent is not None and under_way.keys().isdisjoint(xla):
                    outcomes = [form.outcome() for form in xla]
                    keeps = opponent.keeps and all(outcome.lasting for outcome in outcomes)
                    self._take(opponent.trial(outcomes), keeps=keeps)

    def _take(self, trial: Trial, *, keeps: bool) -> None:
        self.compiled += trial.tried is not None
        self._learn(trial)  # first, so that Ctrl-C leaves none that is kept and not shown
        if keeps:
            self.store.keep(self.subject, trial)
        self.watcher.tried(trial, self.best())

    def _ended(self, under_way: Iterable[Running]) -> list[Running]:
        patience_s = _PATIENCE * WALL_TIMES * self.effort.time_limit_s
        jobs = list(under_way)
        ended = first_ended(jobs, patience_s)
        if not ended:
            raise StalledError(
                f"none of {len(jobs)} trials has ended in {patience_s / 60:.0f} minutes, though each is "
                f"stopped after {patience_s / _PATIENCE / 60:.0f}: are there workers left? What had ended is "
                f"kept in {self.store.file}; the same command goes on"
            )
        return ended

    def _next(self, under_way: list[ConfigT]) -> Choice[ConfigT] | None:
        while self.first:
            choice = self.first.pop(0)
            if choice.config not in self.trials:
                return choice
        return self.ranking.next(under_way)

    def _learn(self, trial: Trial) -> None:
        config = cast(ConfigT | None, trial.tried)
        self.trials[config] = trial
        if config is None:
            return
        self.ranking.started(config)
        if trial.simulated_us is not None:
            self.ranking.learn(config, trial.simulated_us)

    def _tried(self) -> int:
        return sum(config is not None for config in self.trials)

    def _over(self, under_way: int) -> End | None:
        if not self.effort.exhaustive and self._tried() + under_way >= self.effort.trials:
            return "trials"
        return "time" if time.monotonic() >= self._until else None

    def _hopeless(self, config: ConfigT) -> bool:
        best = self.best()
        return best is not None and best.simulated_us is not None and self.least_time_us(config) >= best.simulated_us


def _trial(outcome: Outcome, choice: Choice[Any] | None) -> Trial:
    """Return the trial of a configuration, or of the program to compare with."""
    config = choice.config if choice is not None else None
    its_function = config if isinstance(config, FunctionConfig) else None
    trial = Trial(
        config=config if isinstance(config, KernelConfig) else None,
        function=its_function,
        status=outcome.status,
        modelled_us=choice.modelled_us if choice is not None else None,
        reason=outcome.reason,
    )
    if outcome.run is None:
        return trial
    return dataclasses.replace(
        trial,
        simulated_us=outcome.time_us,
        prefetch_us=outcome.run.prefetch_us,
        stalls=dict(outcome.run.stalls),
        vmem_bytes=outcome.run.vmem_bytes,
        hbm_bytes=outcome.hbm_bytes,
        bundles=outcome.run.bundles,
        compile_s=outcome.compile_s,
        traits=traits_of(outcome.run) if its_function is not None else None,
    )
