"""Run the parts of a lesson: in TPU interpret mode, through the compiler, on the chips' models."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future

from systolic.checking import RunOutcome, run_in_worker
from systolic.chips import Chip
from systolic.compiler import WorkerPool, check_available
from systolic.lessons.lesson import Part, PartResult, Results
from systolic.timing import Call
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner

_SEEDS = (0, 1)
_NOT_RUN = Outcome(label="")


def run_parts(parts: Sequence[Part], chips: Sequence[Chip]) -> Results:
    """Run every part in interpret mode with race detection, and compile and simulate it for every chip.

    The run imitates the chip with the most cores per device among those that support the part, because cores share
    the steps along parallel axes. A part that no chip supports is not run.

    Args:
      parts: parts of the lesson, with distinct names.
      chips: chips to simulate.

    Raises:
      CompilerMissing: there is no TPU compiler on this machine.
    """
    check_available()
    with WorkerPool(max_workers=2) as pool:
        runs = {part.name: _run(pool, part, chips) for part in parts}
        experiments = {
            (part.name, chip.name): Experiment(
                fn=part.fn, args=part.args, chip=chip, label=f"{part.name} for {chip.name}"
            )
            for part in parts
            for chip in chips
            if part.simulated and not part.lacks(chip)
        }
        outcomes = dict(zip(experiments, Runner(pool).run(experiments.values()), strict=True))
        return Results(
            tuple(
                _result(part, chip, runs[part.name], outcomes.get((part.name, chip.name), _NOT_RUN))
                for part in parts
                for chip in chips
            )
        )


def _run(pool: WorkerPool, part: Part, chips: Sequence[Chip]) -> Future[RunOutcome] | None:
    args = part.args if part.run_args is None else part.run_args
    able = [chip for chip in chips if not part.lacks(chip)]
    if (part.args and not args) or not able:
        return None
    chip = max(able, key=lambda chip_record: chip_record.cores_per_device)
    job = functools.partial(run_in_worker, reference=part.reference, seeds=_SEEDS)
    return pool.submit(job, Call.described(part.fn, args, chip), label=f"running {part.name}")


def _result(part: Part, chip: Chip, run: Future[RunOutcome] | None, timed: Outcome) -> PartResult:
    if lacking := part.lacks(chip):
        return PartResult(part=part.name, chip=chip.name, status="unsupported", reason=lacking)
    checked = run.result() if run is not None else None
    rules = (
        tuple(dict.fromkeys(finding.rule for finding in checked.findings if finding.grade == "error"))
        if checked
        else ()
    )
    status, reason = timed.status, timed.located_reason
    missed = part.finds - set(rules) if part.finds else rules
    # A part that is wrong on purpose may end its run; it must have found the planted fault then.
    if status == "ok" and checked is not None and (missed or not (checked.summary.ran or part.finds)):
        status = "wrong"
        reason = (
            "; ".join(str(finding) for finding in checked.findings) or f"the run found none of {', '.join(part.finds)}"
        )
    simulated = timed.run
    if status == "ok" and simulated is not None and simulated.provenance != "simulated":
        reason = simulated.provenance  # SparseCores did the work
    return PartResult(
        part=part.name,
        chip=chip.name,
        status=status,
        reason=reason,
        time_us=timed.time_us,
        time_error=simulated.error if simulated is not None else None,
        hbm_bytes=timed.hbm_bytes,
        matrix_busy=simulated.matrix_busy_share if simulated is not None else None,
        waiting=simulated.stalls["copy"] if simulated is not None else None,
        vmem_bytes=simulated.vmem_bytes if simulated is not None else None,
        error=checked.summary.error if checked is not None else None,
        tolerance=checked.summary.tolerance if checked is not None else None,
        violated=rules,
    )
