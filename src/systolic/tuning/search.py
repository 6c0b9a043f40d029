"""The search: the model ranks every legal configuration, the compiler and the simulator try the most promising.

What was tried before, by anybody who writes to the same store, is not tried again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from systolic.bugs import reports_bugs
from systolic.call_errors import WrongCallError
from systolic.chips import Chip, FlagError, flags_text
from systolic.chips import chip as chip_named
from systolic.compiler import WALL_TIMES, WorkerPool
from systolic.cost import TimedConfig
from systolic.experiments import Experiment, Outcome, Runner, Running, Submit, first_ended
from systolic.op import Op, Programs, op_of
from systolic.ops import Planner, planner_in_use
from systolic.ops.planner import check_dtype
from systolic.schedule import KernelConfig
from systolic.spec import Spec
from systolic.store import Subject, Trial, TrialStore, best_first
from systolic.timing import NoDeviceError, device_of, measure
from systolic.tuning.ranking import Ranking
from systolic.tuning.result import End, TuningResult, xla_repeated_us

MOST_TRIALS = 12
COMPILE_LIMIT_S = 120.0
# Without a trial that ends, in limits by the clock of one trial: then whoever should run them is gone.
_PATIENCE = 1.5


class StalledError(WrongCallError, RuntimeError):
    """No trial ends: whoever should run them is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """What a search tells while it runs."""

    planned: Callable[[int], None] = lambda trials: None  # how many it will make at the most
    tried: Callable[[Trial, Trial | None], None] = lambda trial, best: None  # one ended; the best so far


@reports_bugs
def tune(
    spec: Spec,
    chip: str | Chip = "v5e",
    *,
    trials: int = MOST_TRIALS,
    time_budget_s: float = 120.0,
    exhaustive: bool = False,
    against_xla: bool = True,
    workers: int = 2,
    time_limit_s: float = COMPILE_LIMIT_S,
    memory_limit_bytes: int | None = None,
    store: TrialStore | None = None,
    submit: Submit | None = None,
    measured: int = 0,
    watcher: Watcher | None = None,
) -> TuningResult:
    """The fastest configuration of a product on a chip that is not there, by simulated time.

    Args:
      spec: of any op; of a product with an activation that systolic has a name for.
      chip: a name such as "v6e" (`systolic chips` lists them), or a record of your own.
      trials: to compile at the most, those counted that the store has already.
      time_budget_s: seconds after which no trial is begun.
      exhaustive: try every legal configuration, however long it takes; `trials` and `time_budget_s` do not count.
      against_xla: compile XLA's program too, which is no trial.
      workers: processes that compile.
      time_limit_s: seconds of CPU time for one trial.
      memory_limit_bytes: of one of the processes; None: an equal share of what the machine has free.
      store: keeps every trial; None: that of the planner in use, and if it has none the user's.
      submit: compiles and simulates somewhere else; None: in worker processes here.
      measured: so many of the best, and XLA's program, are run at the end on the TPU that is attached; the winner is
        then the best of these, by the device's own clock.
      watcher: is told of every trial.

    Raises:
      SpecError: what is fused cannot be built from its description.
      UnknownChipError, UnsupportedDtypeError: no such chip, or a record that is not registered (`chips.register`); the
        chip does not multiply these dtypes.
      FlagError: the chip has compiler flags of a user's.
      IllegalTilesError: no configuration is legal.
      StoreError: the store cannot be read or written; before anything is compiled.
      NoDeviceError: `measured` is asked for, and no such chip is attached.
      StalledError: no trial has ended for far longer than one may take, as when all workers of a cluster are lost.
      SystolicBug: this package is at fault, and not what was asked.
    """
    named = chip_named(chip if isinstance(chip, str) else chip.name)  # a record's too: trials are kept by it
    known = named if isinstance(chip, str) else chip
    if known.given_flags:
        raise FlagError(f"{flags_text(known.given_flags)}: trials are kept by chip and versions; tune without flags")
    check_dtype(spec, known)
    # Before the work, not after it.
    planner = planner_in_use()
    store = store or planner.store or TrialStore.at()
    store.check_writable()
    if measured:
        device_of(known)
    op = op_of(spec)
    programs = op.programs(spec, known)
    first, choices = op.search(programs.computed, known)
    search = _Search(
        spec=spec,
        op=op,
        programs=programs,
        planner=planner,
        chip=known,
        first=first,
        choices=choices,
        store=store,
        watcher=watcher or Watcher(),
        most=None if exhaustive else trials,
        measured=measured,
        until=float("inf") if exhaustive else time.monotonic() + time_budget_s,
        patience_s=_PATIENCE * WALL_TIMES * time_limit_s,
    )
    if submit is not None:
        return search.run(Runner(submit), workers, against_xla=against_xla)
    with WorkerPool(max_workers=workers, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return search.run(Runner(pool), workers, against_xla=against_xla)


@dataclass(slots=True, kw_only=True)
class _Search:
    spec: Spec
    op: Op
    programs: Programs
    planner: Planner
    chip: Chip
    first: list[TimedConfig]
    choices: list[TimedConfig]
    store: TrialStore
    watcher: Watcher
    most: int | None
    measured: int
    until: float
    patience_s: float
    found: dict[KernelConfig | None, Trial] = field(default_factory=dict)
    compiled: int = 0

    @property
    def subject(self) -> Subject:
        return Subject.here(self.programs.computed, self.chip.name)

    def run(self, runner: Runner, workers: int, *, against_xla: bool) -> TuningResult:
        begun = time.monotonic()
        ranking = Ranking(self.choices)
        for trial in self.store.trials(self.subject):
            self.found[trial.config] = trial
            self._teach(ranking, trial)
        planned = len(self.choices) if self.most is None else self.most
        self.watcher.planned(max(0, planned - self._tried()) + (against_xla and None not in self.found))
        under_way: dict[Running, TimedConfig | None] = {}
        if against_xla and None not in self.found:
            under_way[runner.start(self._experiment(None))] = None
        end: End = "all"
        while True:
            while len(under_way) < workers:
                over = self._over(sum(choice is not None for choice in under_way.values()))
                choice = self._next(ranking, [one.config for one in under_way.values() if one is not None])
                if over is not None or choice is None:
                    end = over or end
                    break
                ranking.started(choice.config)
                if self._hopeless(choice):
                    end = "bound"
                    continue
                under_way[runner.start(self._experiment(choice.config))] = choice
            if not under_way:
                break
            ended = first_ended(under_way, self.patience_s)
            if not ended:
                raise StalledError(
                    f"none of {len(under_way)} trials has ended in {self.patience_s / 60:.0f} minutes, though each is "
                    f"stopped after {self.patience_s / _PATIENCE / 60:.0f}: are there workers left? What had ended is "
                    f"kept in {self.store.file}; the same command goes on"
                )
            for running in ended:
                choice, outcome = under_way.pop(running), running.outcome()
                trial = _trial(outcome, choice)
                self.compiled += choice is not None
                self.found[trial.config] = trial
                if outcome.lasting:
                    self.store.keep(self.subject, trial)
                self._teach(ranking, trial)
                self.watcher.tried(trial, self._best())
        try:
            self._measure()
        finally:
            self.planner.forget()  # its plans may have been made without these trials
        kernels = [trial for config, trial in self.found.items() if config is not None]
        xla = self.found.get(None)
        return TuningResult(
            spec=self.spec,
            computed=self.programs.computed,
            chip=self.chip.name,
            trials=tuple(best_first(kernels)),
            xla=xla,
            xla_us=None if xla is None else xla_repeated_us(xla, self.spec, self.chip),
            considered=len(self.choices),
            compiled=self.compiled,
            seconds=time.monotonic() - begun,
            end=end,
        )

    def _experiment(self, config: KernelConfig | None) -> Experiment:
        fn = self.programs.xla() if config is None else self.programs.kernel(config)
        label = "XLA" if config is None else f"{config} for {self.chip.name}"
        return Experiment(fn=fn, args=self.programs.arguments, chip=self.chip, label=label)

    def _next(self, ranking: Ranking, under_way: Sequence[KernelConfig]) -> TimedConfig | None:
        while self.first:
            choice = self.first.pop(0)
            if choice.config not in self.found:
                return choice
        return ranking.next(under_way)

    def _measure(self) -> None:
        """The best few by simulated time, and XLA's program, on the device; what was measured before is not again."""
        timed = [one for one in self.found.values() if one.simulated_us is not None]
        kernels = sorted((one for one in timed if one.config is not None), key=lambda one: one.simulated_us or 0.0)
        xla = [one for one in timed if one.config is None]
        for trial in [*kernels[: self.measured], *(xla if self.measured else [])]:
            if trial.measured_us is not None:
                continue
            fn = self.programs.xla() if trial.config is None else self.programs.kernel(trial.config)
            try:
                time_us = measure(fn, self.programs.arguments, self.chip).time_us
            except NoDeviceError:
                raise
            except Exception as error:  # noqa: BLE001 -- the device's: one trial's failure ends no search
                reason = f"not measured: {type(error).__name__}: {error}"
                self.found[trial.config] = dataclasses.replace(trial, reason=reason)
                continue
            self.found[trial.config] = dataclasses.replace(trial, measured_us=time_us)
            self.store.keep(self.subject, self.found[trial.config])

    def _tried(self) -> int:
        return sum(config is not None for config in self.found)

    def _over(self, under_way: int) -> End | None:
        if self.most is not None and self._tried() + under_way >= self.most:
            return "trials"
        return "time" if time.monotonic() >= self.until else None

    def _best(self) -> Trial | None:
        """By simulated time, which all have; what is measured comes at the end."""
        timed = [one for config, one in self.found.items() if config is not None and one.simulated_us is not None]
        return min(timed, key=lambda one: one.simulated_us or 0.0, default=None)

    def _hopeless(self, choice: TimedConfig) -> bool:
        best = self._best()
        if best is None or best.simulated_us is None:
            return False
        return self.op.least_time_us(self.programs.computed, choice.config, self.chip) >= best.simulated_us

    @staticmethod
    def _teach(ranking: Ranking, trial: Trial) -> None:
        if trial.config is None:
            return
        ranking.started(trial.config)
        if trial.simulated_us is not None:
            ranking.learn(trial.config, trial.simulated_us)


def _trial(outcome: Outcome, choice: TimedConfig | None) -> Trial:
    """What came of a configuration, or of XLA's program."""
    trial = Trial(
        config=choice.config if choice is not None else None,
        status=outcome.status,
        modelled_us=choice.modelled.time_us if choice is not None else None,
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
    )
