"""Simulate published programs, and prepare them to be simulated again with other constants."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, as_completed

from systolic.chips import Chip, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import CompilerFlagError, WorkerPool
from systolic.simulator import SimulationError
from systolic.support.bugs import runs_user_code
from systolic.timing import Measurement, Program, submit_preparation
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import QUIET, Progress, Runner, Running
from systolic.validation.calibration import Sample
from systolic.validation.errors import ComparedRow, PublishedProgram, compared
from systolic.validation.kept_results import KeptResults
from systolic.validation.published import PublishedRow

Programs = Sequence[PublishedProgram | str]  # the program of each row, or why it has none


def simulated(
    runner: Runner, programs: Programs, chips: Mapping[str, Chip], store: KeptResults | None = None
) -> dict[PublishedProgram, Measurement | str]:
    """Return the simulated time and run of each distinct program, or why there is none.

    Args:
      chips: records to use in place of those that are known, by name.
      store: results that are not simulated again; each new result is added to it.
    """
    distinct = _distinct(programs)
    records = {
        program: with_flags(chips.get(program.chip) or chip_named(program.chip), dict(program.flags))
        for program in distinct
    }
    before = {program: store.result(program, records[program]) if store is not None else None for program in distinct}
    result = {program: prediction for program, prediction in before.items() if prediction is not None}
    waiting = [program for program in distinct if program not in result]
    runner.progress.planned(len(waiting))
    sent = {program: runner.start(_experiment(program, records[program])) for program in waiting}
    of_job = {running.job: program for program, running in sent.items()}
    for job in as_completed(of_job):  # so that each is kept as soon as it is known
        program = of_job[job]
        result[program] = _awaited(program, records[program], sent[program], store)
    return {program: result[program] for program in distinct}


def _experiment(program: PublishedProgram, chip: Chip) -> Experiment:
    return Experiment(
        fn=program.function, args=program.arguments, chip=chip, label=str(program), topology=program.topology
    )


def _awaited(program: PublishedProgram, chip: Chip, running: Running, store: KeptResults | None) -> Measurement | str:
    try:
        outcome = running.outcome()
    except CompilerFlagError as error:  # one row's: other rows have other flags
        return str(error)
    result = outcome.reason if outcome.measurement is None else outcome.measurement
    if store is not None and outcome.lasting:
        store.keep(program, chip, result)
    return result


def prepared(
    pool: WorkerPool, programs: Programs, chip: Chip, progress: Progress = QUIET
) -> dict[PublishedProgram, Program | str]:
    """Return each distinct program, ready to run again with other constants, or the reason why not."""
    different = _distinct(programs)
    distinct = [program for program in different if program.topology is None]
    progress.planned(len(distinct))
    jobs = {
        program: submit_preparation(
            pool, program.function, program.arguments, with_flags(chip, dict(program.flags)), label=str(program)
        )
        for program in distinct
    }
    result: dict[PublishedProgram, Program | str] = dict.fromkeys(
        (program for program in different if program.topology is not None),
        "constants are not fitted to times of slices",
    )
    for program, job in jobs.items():
        try:
            result[program] = _prepared(job)
        except CompilerFlagError as error:
            result[program] = str(error)
        except Exception as error:  # noqa: BLE001 -- whatever a program raises as it is traced is its reason
            result[program] = Outcome.failed(str(program), error).reason
        progress.done(str(program))
    return result


@runs_user_code
def _prepared(job: Future[Program]) -> Program:
    return job.result()


def predicted_us(
    ready: Mapping[PublishedProgram, Program | str], chip: Chip
) -> tuple[dict[PublishedProgram, float | str], dict[str, float]]:
    """Return simulated µs with this chip's constants, or why there are none, and the seconds of each simulation."""
    result: dict[PublishedProgram, float | str] = {}
    seconds: dict[str, float] = {}
    for program, calls in ready.items():
        started = time.perf_counter()
        try:
            result[program] = calls if isinstance(calls, str) else _simulated_us(calls, chip)
        except SimulationError as error:
            result[program] = Outcome.failed(str(program), error).reason
        seconds[str(program)] = time.perf_counter() - started
    return result, seconds


def compared_rows(
    published: Sequence[PublishedRow],
    programs: Programs,
    predicted: Mapping[PublishedProgram, Measurement | float | str],
    *,
    dispatch_us: float,
    fitted_on: Collection[str] = (),
) -> list[ComparedRow]:
    return [
        compared(
            row,
            program,
            program if isinstance(program, str) else predicted[program],
            dispatch_us=dispatch_us,
            fitted_on=fitted_on,
        )
        for row, program in zip(published, programs, strict=True)
    ]


def samples(
    rows: Sequence[ComparedRow], programs: Programs, ready: Mapping[PublishedProgram, Program | str]
) -> list[Sample]:
    """Return the programs of the counted rows, each with the device times of all its rows."""
    times: dict[PublishedProgram, list[float]] = {}
    for row, program in zip(rows, programs, strict=True):
        if row.counted and isinstance(program, PublishedProgram):
            times.setdefault(program, []).append(row.published_us - row.dispatch_us)
    result = []
    for program, device_us in times.items():
        prepared = ready[program]
        assert not isinstance(prepared, str)  # its rows would not be counted
        predict_us = functools.partial(_simulated_us, prepared)
        result.append(Sample(name=str(program), device_us=tuple(device_us), predict_us=predict_us))
    return result


def _simulated_us(ready: Program, chip: Chip) -> float:
    return ready.run(machine=chip.machine).time_us


def _distinct(programs: Programs) -> list[PublishedProgram]:
    return list(dict.fromkeys(program for program in programs if isinstance(program, PublishedProgram)))
