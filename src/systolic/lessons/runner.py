"""Runs the parts of a lesson: in TPU interpret mode, through the compiler, on the chips' models."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future

from systolic.checking import RunOutcome, run_in_worker
from systolic.chips import Chip
from systolic.compiler import (
    CompilerError,
    CompilerMissing,
    WorkerPool,
    abstract_arguments,
    argument_values,
    check_available,
    tracing_settings,
)
from systolic.lessons.lesson import Part, Results, Shown
from systolic.simulator import SimulationError
from systolic.timing import Measurement, submit_simulation

_SEEDS = (0, 1)


def run_parts(parts: Sequence[Part], chips: Sequence[Chip], *, time_limit_s: float = 300) -> Results:
    """Runs every part in interpret mode with race detection, and compiles and simulates it for every chip.

    The run is as on that chip, of those that lack nothing for the part, whose device has the most cores: there, cores
    share the steps along parallel axes. A part that every chip lacks something for is not run.

    Args:
      parts: of the lesson, each by another name.
      chips: to simulate on.
      time_limit_s: seconds for one run or compilation.

    Raises:
      CompilerMissing: there is no TPU compiler on this machine.
    """
    check_available()
    with WorkerPool(max_workers=2, time_limit_s=time_limit_s) as pool:
        runs = {part.name: _run(pool, part, chips) for part in parts}
        times = {
            (part.name, chip.name): submit_simulation(
                pool, part.fn, part.args, chip, label=f"{part.name} for {chip.name}"
            )
            for part in parts
            for chip in chips
            if part.simulated and not part.lacks(chip)
        }
        return Results(
            tuple(
                _shown(part, chip, runs[part.name], times.get((part.name, chip.name)))
                for part in parts
                for chip in chips
            )
        )


def _run(pool: WorkerPool, part: Part, chips: Sequence[Chip]) -> Future[RunOutcome] | None:
    args = part.args if part.run_args is None else part.run_args
    able = [chip for chip in chips if not part.lacks(chip)]
    if (part.args and not args) or not able:
        return None
    chip = max(able, key=lambda each: each.cores_per_device)
    job = functools.partial(run_in_worker, reference=part.reference, seeds=_SEEDS, settings=tracing_settings())
    return pool.submit(
        job, part.fn, abstract_arguments(args), argument_values(args), chip, label=f"running {part.name}"
    )


def _shown(part: Part, chip: Chip, run: Future[RunOutcome] | None, time: Future[Measurement] | None) -> Shown:
    if lacking := part.lacks(chip):
        return Shown(part=part.name, chip=chip.name, status="not on this chip", reason=lacking)
    outcome = run.result() if run is not None else None
    found = tuple(dict.fromkeys(each.rule for each in outcome.findings if each.grade == "error")) if outcome else ()
    summary = outcome.summary if outcome is not None else None
    status, reason = "ok", ""
    missed = part.finds - set(found) if part.finds else found
    # What is wrong on purpose may end its run: then it did so by what it had to find.
    if outcome is not None and (missed or not (outcome.summary.ran or part.finds)):
        status = "wrong"
        reason = "; ".join(str(each) for each in outcome.findings) or f"the run found none of {', '.join(part.finds)}"
    simulated = None
    if time is not None:
        try:
            simulated = time.result().run
        except CompilerMissing:
            raise
        except (CompilerError, SimulationError) as error:
            status, reason = "refused", f"{type(error).__name__}: {error}"
    return Shown(
        part=part.name,
        chip=chip.name,
        status=status,
        reason=reason,
        time_us=simulated.time_us if simulated is not None else None,
        hbm_bytes=simulated.hbm_read_bytes + simulated.hbm_written_bytes if simulated is not None else None,
        matrix_busy=simulated.matrix_busy_share if simulated is not None else None,
        waiting=simulated.stalls["copy"] if simulated is not None else None,
        vmem_bytes=simulated.vmem_bytes if simulated is not None else None,
        error=summary.error if summary is not None else None,
        tolerance=summary.tolerance if summary is not None else None,
        found=found,
    )
