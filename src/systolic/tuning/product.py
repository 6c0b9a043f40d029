"""The fastest configuration of a product: the search over every legal one."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from systolic.chips import Chip, FlagError, flags_text
from systolic.chips import chip as chip_named
from systolic.ops.op import Programs, op_of
from systolic.ops.planner import check_dtype, planner_in_use
from systolic.schedule import KernelConfig
from systolic.spec import Spec
from systolic.store import Subject, TrialStore
from systolic.timing import NoDeviceError, device_of, measure
from systolic.timing.experiment import Experiment
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
    """Finds the fastest configuration of a product; see `tune`."""
    begun = time.monotonic()
    known = known_chip(chip)
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
    subject = Subject.here(programs.computed, known.name)
    search = Search[KernelConfig](
        subject=subject,
        experiment=_Experiments(programs=programs, chip=known),
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
    """What to compile for a configuration; XLA's program for None."""

    programs: Programs
    chip: Chip

    def __call__(self, config: KernelConfig | None) -> Experiment:
        fn = self.programs.xla() if config is None else self.programs.kernel(config)
        label = "XLA" if config is None else f"{config} for {self.chip.name}"
        return Experiment(fn=fn, args=self.programs.arguments, chip=self.chip, label=label)


def _measure(search: Search[KernelConfig], programs: Programs, chip: Chip, count: int) -> None:
    """The best few by simulated time, and XLA's program, on the device; what was measured before is not again."""
    timed = [one for one in search.found.values() if one.simulated_us is not None]
    kernels = sorted((one for one in timed if one.config is not None), key=lambda one: one.simulated_us or 0.0)
    xla = [one for one in timed if one.config is None]
    for trial in [*kernels[:count], *(xla if count else [])]:
        if trial.measured_us is not None:
            continue
        fn = programs.xla() if trial.config is None else programs.kernel(trial.config)
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
