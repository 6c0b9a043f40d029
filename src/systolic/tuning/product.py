"""Search every legal configuration of a product for the fastest."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip, FlagError, SliceError, flags_text, with_flags
from systolic.chips import chip as chip_named
from systolic.cost import machine_roofline
from systolic.ops.op import op_of
from systolic.ops.op_programs import Programs
from systolic.ops.planner import check_spec, planner_in_use
from systolic.schedule import KernelConfig
from systolic.spec import SliceMesh, Spec
from systolic.store import Subject, TrialStore
from systolic.timing import NoDeviceError, device_of, measure
from systolic.timing.experiment import Experiment
from systolic.timing.on_mesh import on_mesh
from systolic.timing.opponent import xla_experiments
from systolic.timing.runner import Stopped
from systolic.tuning.ranking import Ranking
from systolic.tuning.result import TuningResult
from systolic.tuning.saved import End
from systolic.tuning.search import Effort, Opponent, Search, Watcher


def known_chip(chip: str | Chip) -> Chip:
    """Return the chip that trials are kept by.

    Raises:
      UnknownChipError: no such chip, or a record that is not registered (`chips.register`).
      FlagError: the chip has compiler flags of a user's.
    """
    named = chip_named(chip if isinstance(chip, str) else chip.name)
    chip_model = named if isinstance(chip, str) else chip
    if chip_model.given_flags:
        raise FlagError(
            f"{flags_text(chip_model.given_flags)}: trials are kept by chip and versions; tune without flags"
        )
    return chip_model


def tune_product(
    spec: Spec,
    chip: str | Chip = "v5e",
    *,
    effort: Effort,
    against_xla: bool = True,
    xla_default_flags: bool = False,
    store: TrialStore | None = None,
    measured: int = 0,
    watcher: Watcher | None = None,
) -> TuningResult:
    begun = time.monotonic()
    chip_model = known_chip(chip)
    check_spec(spec, chip_model)
    op = op_of(spec)
    mesh = op.mesh(spec)
    # Before the work, not after it.
    planner = planner_in_use()
    store = store or planner.store or TrialStore.at()
    store.check_writable()
    if measured:
        if mesh is not None:
            raise SliceError("trials on a slice are simulated: leave `measured` out")
        device_of(chip_model)
    programs = op.programs(spec, chip_model)
    first, choices = op.search(programs.computed, chip_model)
    subject = Subject.here(programs.computed, chip_model.name)
    experiments = _Experiments(programs=programs, chip=chip_model, mesh=mesh)
    search = Search[KernelConfig](
        subject=subject,
        experiment=experiments,
        least_time_us=lambda config: op.least_time_us(programs.computed, config, chip_model),
        first=list(first),
        ranking=Ranking(choices),
        considered=len(choices),
        store=store,
        watcher=watcher or Watcher(),
        effort=effort,
    )

    kept_trials = [trial for trial in store.trials(subject) if trial.config is not None or not xla_default_flags]
    opponent = Opponent(
        experiments=experiments.xla(default_flags_only=xla_default_flags),
        least_hbm_us=machine_roofline(spec, chip_model).hbm_us,
        keeps=not xla_default_flags,
    )

    def result(end: End) -> TuningResult:
        return TuningResult.of(
            spec,
            chip_model,
            search.trials.values(),
            considered=len(choices),
            compiled=search.compiled,
            seconds=time.monotonic() - begun,
            end=end,
        )

    try:
        end = search.run(kept_trials, opponent if against_xla else None)
        _measure(search, programs, chip_model, measured)
    except KeyboardInterrupt:
        raise Stopped(result("stopped")) from None
    finally:
        planner.forget()  # its plans may have been made without these trials
    return result(end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experiments:
    """The programs of a configuration, and XLA's."""

    programs: Programs
    chip: Chip
    mesh: SliceMesh | None

    def __call__(self, config: KernelConfig) -> Experiment:
        return self._experiment(self.programs.kernel(config), f"{config} for {self.chip.name}", explicit=True)

    def xla(self, *, default_flags_only: bool) -> list[Experiment]:
        """Return XLA's program with each of the flags whose faster program is the opponent."""
        xla = self._experiment(self.programs.xla, "XLA", explicit=False)
        return xla_experiments(xla, default_flags_only=default_flags_only)

    def _experiment(self, fn: Callable[..., Any], label: str, *, explicit: bool) -> Experiment:
        experiment = Experiment(fn=fn, args=self.programs.arguments, chip=self.chip, label=label)
        return on_mesh(experiment, self.mesh, self.programs.shardings, explicit=explicit)


def _measure(search: Search[KernelConfig], programs: Programs, chip: Chip, count: int) -> None:
    """Run the best few by simulated time, and XLA's program, on the device, but for those measured before."""
    timed = [trial for trial in search.trials.values() if trial.simulated_us is not None]
    kernels = [trial for trial in timed if trial.config is not None]
    kernels.sort(key=lambda trial: trial.simulated_us or 0.0)
    xla = [trial for trial in timed if trial.config is None]
    for trial in [*kernels[:count], *(xla if count else [])]:
        if trial.measured_us is not None:
            continue
        fn = programs.xla if trial.config is None else programs.kernel(trial.config)
        try:
            time_us = measure(fn, programs.arguments, with_flags(chip, trial.flags)).time_us
        except NoDeviceError:
            raise
        except Exception as error:  # noqa: BLE001 -- the device's error: one trial's failure ends no search
            reason = f"not measured: {type(error).__name__}: {error}"
            search.trials[trial.config] = dataclasses.replace(trial, reason=reason)
            continue
        search.trials[trial.config] = dataclasses.replace(trial, measured_us=time_us)
        search.store.keep(search.subject, search.trials[trial.config])
