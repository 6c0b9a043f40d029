"""Run the kernels of `kernels/sparse_core.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from systolic.checking import RunOutcome, run_in_worker, traced_as_on
from systolic.chips import Chip
from systolic.compiler import WorkerPool, check_available
from systolic.lessons.kernels.sparse_core import BLOCK, copy_rows, gather, take
from systolic.lessons.lesson import Lesson, Part, PartResult, Results
from systolic.lessons.runner import run_parts
from systolic.timing import Call
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner


def _numbers(rows: int, m: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, m, rows).astype(np.int32)


TABLE = jax.ShapeDtypeStruct((1_048_576, 128), jnp.float32)
ARGS = (TABLE, _numbers(32_768, TABLE.shape[0]))
RUN_ARGS = (jax.ShapeDtypeStruct((512, 128), jnp.float32), _numbers(512, 512))
MOVED_BYTES = 2 * ARGS[1].size * TABLE.shape[1] * 4 + ARGS[1].nbytes  # read and written, and the numbers


def subcores(chip: Chip) -> int:
    """Return the number of subcores of all SparseCores of a device, as JAX knows it; 0 if it has none."""
    with traced_as_on(chip):
        cores = pltpu.get_tpu_info().sparse_core
    return cores.num_cores * cores.num_subcores if cores is not None else 0


def _run_on_subcores(pool: WorkerPool, chip: Chip) -> RunOutcome:
    """Run the SparseCore's gather in interpret mode, as far as it supports that."""
    args = (RUN_ARGS[0], _numbers(BLOCK * subcores(chip), 512))
    job = functools.partial(run_in_worker, reference=take, seeds=(0,))
    return pool.submit(job, Call.described(gather, args, chip)).result()


def _on_subcores(pool: WorkerPool, chip: Chip, timed: Outcome | None) -> PartResult:
    """Return the result of the SparseCore's gather on a chip."""
    if timed is None:
        return PartResult(part="gather", chip=chip.name, status="unsupported", reason="JAX knows no SparseCores on it")
    if timed.run is None:
        return PartResult(part="gather", chip=chip.name, status=timed.status, reason=timed.located_reason)
    run = _run_on_subcores(pool, chip)
    wrong = run.summary.ran and any(finding.grade == "error" for finding in run.findings)
    checked = "values checked in interpret mode" if run.summary.ran else "interpret mode cannot run it"
    return PartResult(
        part="gather",
        chip=chip.name,
        status="wrong" if wrong else "ok",
        reason=f"{timed.run.provenance}; {checked}",
        time_us=timed.time_us,
        hbm_bytes=timed.hbm_bytes,
        error=run.summary.error,
        tolerance=run.summary.tolerance,
    )


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Gather rows by XLA, by copies of the TensorCore, and by the SparseCores."""
    check_available()
    able = [chip for chip in chips if subcores(chip)]
    with WorkerPool(max_workers=1) as pool:
        gathers = [Experiment(fn=gather, args=ARGS, chip=chip, label=f"gather for {chip.name}") for chip in able]
        timed = dict(zip((chip.name for chip in able), Runner(pool).run(gathers), strict=True))
        on_subcores = [_on_subcores(pool, chip, timed.get(chip.name)) for chip in chips]
    by_xla = Part(name="jnp.take", fn=take, args=ARGS, run_args=RUN_ARGS, reference=take)
    by_hand = Part(name="copy_rows", fn=copy_rows, args=ARGS, run_args=RUN_ARGS, reference=take)
    results = run_parts((by_xla, by_hand), chips)
    all_results = Results((*results.parts, *on_subcores))

    def times(part: str) -> str:
        shown = [(chip, all_results[part, chip.name].time_us) for chip in chips]
        return ", ".join(f"{chip.name} {time_us:,.0f} µs" for chip, time_us in shown if time_us) or "nowhere"

    hbm = ", ".join(f"{chip.name} {MOVED_BYTES / chip.hbm_bytes_per_s * 1e6:.0f} µs" for chip in chips)
    faster = all_results.ratios("gather", "copy_rows", able)
    return Lesson(
        lines=(
            f"The bytes over HBM's published bandwidth, modelled: {hbm}.",
            f"A copy a row by hand on the TensorCore, simulated: {times('copy_rows')}; jnp.take, wherever XLA puts it: "
            f"{times('jnp.take')}.",
            *([f"On the SparseCores, modelled: {times('gather')}."] if able else []),
            *([f"Rows by their numbers on SparseCores over copies by hand: {faster}."] if faster else []),
        ),
        rows=all_results.rows,
        ok=results.ok and all(subcore.ok for subcore in on_subcores),
    )
