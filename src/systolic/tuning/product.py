"""The fastest configuration of a product: the search over every legal one."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from systolic.chips import Chip, FlagError, SliceError, flags_text
from systolic.chips import chip as chip_named
from systolic.ops.op import op_of
from systolic.ops.op_programs import Programs
from systolic.ops.planner import check_spec, planner_in_use
from systolic.schedule import KernelConfig
from systolic.spec import SliceMesh, Spec
from systolic.store import Subject, TrialStore
from systolic.timing import NoDeviceError, device_of, measure
from systolic.timing.experiment import Experiment
from systolic.timing.on_mesh import on_mesh
from systolic.timing.runner import Stopped
from systolic.tuning.ranking import Ranking
from systolic.tuning.result import TuningResult
from systolic.tuning.saved import End
from systolic.tuning.search import Effort, Search, Watcher


def known_chip(chip: str | Chip) -> Chip:
    """The chip that trials are kept by.

    Raises:
      UnknownChipError: no such chip, or a record that is not registered (`chips.register`).
      FlagError: the chip has compiler flags of a user's.
    """
    named = chip_named(chip if isinstance(chip, str) else chip.name)
    known = named if isinstance(chip, str) else chip
    if known.given_flags:
        raise FlagError(f"{flags_text(known.given_flags)}: trials are kept by chip and versions; tune without flags")
    return known


def tune_product(
    spec: Spec,
    chip: str | Chip = "v5e",
    *,
    effort: Effort,
    against_xla: bool = True,
    store: TrialStore | None = None,
    measured: int = 0,
    watcher: Watcher | None = None,
) -> TuningResult:
    begun = time.monotonic()
    known = known_chip(chip)
    check_spec(spec, known)
    op = op_of(spec)
    mesh = op.mesh(spec)
    # Before the work, not after it.
    planner = planner_in_use()
    store = store or planner.store or TrialStore.at()
    store.check_writable()
    if measured:
        if mesh is not None:
            raise SliceError("trials on a slice are simulated: leave `measured` out")
        device_of(known)
    programs = op.programs(spec, known)
    first, choices = op.search(programs.computed, known)
    subject = Subject.here(programs.computed, known.name)
    search = Search[KernelConfig](
        subject=subject,
        experiment=_Experiments(programs=programs, chip=known, mesh=mesh),
        least_time_us=lambda config: op.least_time_us(programs.computed, config, known),
        first=list(first),
        ranking=Ranking(choices),
        considered=len(choices),
        store=store,
        watcher=watcher or Watcher(),
        effort=effort,
    )

    def result(end: End) -> TuningResult:
        return TuningResult.of(
            spec,
            known,
            search.found.values(),
            considered=len(choices),
            compiled=search.compiled,
            seconds=time.monotonic() - begun,
            end=end,
        )

    try:
        end = search.run(store.trials(subject), with_other=against_xla)
        _measure(search, programs, known, measured)
    except KeyboardInterrupt:
        raise Stopped(result("stopped")) from None
    finally:
        planner.forget()  # its plans may have been made without these trials
    return result(end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experiments:
    """The program of a configuration; XLA's for None."""

    programs: Programs
    chip: Chip
    mesh: SliceMesh | None

    def __call__(self, config: KernelConfig | None) -> Experiment:
        fn = self.programs.xla if config is None else self.programs.kernel(config)
        label = "XLA" if config is None else f"{config} for {self.chip.name}"
        experiment = Experiment(fn=fn, args=self.programs.arguments, chip=self.chip, label=label)
        return on_mesh(experiment, self.mesh, self.programs.shardings, explicit=config is not None)


def _measure(search: Search[KernelConfig], programs: Programs, chip: Chip, count: int) -> None:
    """Run the best few by simulated time, and XLA's program, on the device, but for those measured before."""
    timed = [trial for trial in search.found.values() if trial.simulated_us is not None]
    kernels = [trial for trial in timed if trial.config is not None]
    kernels.sort(key=lambda trial: trial.simulated_us or 0.0)
    xla = [trial for trial in timed if trial.config is None]
    for trial in [*kernels[:count], *(xla if count else [])]:
        if trial.measured_us is not None:
            continue
        fn = programs.xla if trial.config is None else programs.kernel(trial.config)
        try:
            time_us = measure(fn, programs.arguments, chip).time_us
        except NoDeviceError:
            raise
        except Exception as error:  # noqa: BLE001 -- the device's: one trial's failure ends no search
            reason = f"not measured: {type(error).__name__}: {error}"
            search.found[trial.config] = dataclasses.replace(trial, reason=reason)
            continue
        search.found[trial.config] = dataclasses.replace(trial, measured_us=time_us)
        search.store.keep(search.subject, search.found[trial.config])
