"""Runs the kernels of `kernels/sparse_core.py`, and says what came of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from systolic.checking import RunOutcome, run_in_worker, traced_as_on
from systolic.chips import Chip
from systolic.compiler import (
    CompiledProgram,
    CompilerError,
    ProgramCache,
    WorkerPool,
    abstract_arguments,
    argument_values,
    check_available,
    submit_compilation,
    tracing_settings,
)
from systolic.experiments import Outcome
from systolic.lessons.kernels.sparse_core import BLOCK, copy_rows, gather, take
from systolic.lessons.lesson import Lesson, Part, PartResult, Results
from systolic.lessons.runner import run_parts
from systolic.timing import target_of


def _numbers(rows: int, m: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, m, rows).astype(np.int32)


TABLE = jax.ShapeDtypeStruct((1_048_576, 128), jnp.float32)
ARGS = (TABLE, _numbers(32_768, TABLE.shape[0]))
RUN_ARGS = (jax.ShapeDtypeStruct((512, 128), jnp.float32), _numbers(512, 512))
MOVED_BYTES = 2 * ARGS[1].size * TABLE.shape[1] * 4 + ARGS[1].nbytes  # read and written, and the numbers


def subcores(chip: Chip) -> int:
    """Counts the subcores of all SparseCores of a device, as JAX knows it; 0 where it has none."""
    with traced_as_on(chip):
        cores = pltpu.get_tpu_info().sparse_core
    return cores.num_cores * cores.num_subcores if cores is not None else 0


def uses_sparse_core(program: CompiledProgram) -> bool:
    """Whether some of a program runs on SparseCores."""
    return 'execution_thread="sparsecore"' in program.top_level_hlo


def _run_on_subcores(pool: WorkerPool, chip: Chip) -> RunOutcome:
    """The SparseCore's gather in interpret mode, as far as that goes."""
    args = (RUN_ARGS[0], _numbers(BLOCK * subcores(chip), 512))
    job = functools.partial(run_in_worker, reference=take, seeds=(0,), settings=tracing_settings())
    return pool.submit(job, gather, abstract_arguments(args), argument_values(args), chip).result()


def _on_subcores(pool: WorkerPool, chip: Chip) -> PartResult:
    """What is known of the SparseCore's gather on a chip."""
    if not subcores(chip):
        return PartResult(part="gather", chip=chip.name, status="unsupported", reason="JAX knows no SparseCores on it")
    try:
        program = submit_compilation(pool, gather, ARGS, target_of(chip), cache=ProgramCache()).result()
    except CompilerError as error:
        ended = Outcome.failed("gather", error)
        return PartResult(part="gather", chip=chip.name, status=ended.status, reason=ended.located_reason)
    run = _run_on_subcores(pool, chip)
    wrong = run.summary.ran and any(each.grade == "error" for each in run.findings)
    checked = "values checked in interpret mode" if run.summary.ran else "interpret mode cannot run it"
    return PartResult(
        part="gather",
        chip=chip.name,
        status="wrong" if wrong else "not simulated",
        reason=f"compiled, {program.generated_code_bytes / 2**10:.0f} KiB; the simulator models TensorCores; {checked}",
        error=run.summary.error,
        tolerance=run.summary.tolerance,
    )


def lesson(chips: Sequence[Chip]) -> Lesson:
    """The same rows by XLA, by copies of the TensorCore, and by the SparseCores."""
    check_available()
    with WorkerPool(max_workers=1) as pool:
        cache = ProgramCache()
        taken = {chip.name: submit_compilation(pool, take, ARGS, target_of(chip), cache=cache) for chip in chips}
        given_away = {name for name, program in taken.items() if uses_sparse_core(program.result())}
        on_subcores = [_on_subcores(pool, chip) for chip in chips]

    def elsewhere(chip: Chip) -> str:
        return "XLA gives it to the SparseCores, which are not simulated" if chip.name in given_away else ""

    by_xla = Part(name="jnp.take", fn=take, args=ARGS, run_args=RUN_ARGS, reference=take, lacks=elsewhere)
    by_hand = Part(name="copy_rows", fn=copy_rows, args=ARGS, run_args=RUN_ARGS, reference=take)
    found = run_parts((by_xla, by_hand), chips)
    every = Results((*found.parts, *on_subcores))

    def times(part: str) -> str:
        shown = [(chip, found[part, chip.name].time_us) for chip in chips]
        return ", ".join(f"{chip.name} {time_us:,.0f} µs" for chip, time_us in shown if time_us) or "nowhere"

    hbm = ", ".join(f"{chip.name} {MOVED_BYTES / chip.hbm_bytes_per_s * 1e6:.0f} µs" for chip in chips)
    rows = ARGS[1].size
    best = {
        chip.name: min(filter(None, (found[part.name, chip.name].time_us for part in (by_xla, by_hand))), default=0)
        for chip in chips
        if subcores(chip)
    }
    even = ", ".join(
        f"{chip.name} {best[chip.name] * subcores(chip) / rows:.2f} µs (of {subcores(chip)})"
        for chip in chips
        if best.get(chip.name)
    )
    return Lesson(
        lines=(
            f"The bytes over HBM's published bandwidth, modelled: {hbm}.",
            f"On the TensorCore, simulated: jnp.take {times('jnp.take')}; a copy a row by hand {times('copy_rows')}.",
            *([f"The SparseCores are faster where a row takes a subcore less than: {even}."] if even else []),
        ),
        rows=every.rows,
        ok=found.ok and all(each.status in ("not simulated", "unsupported") for each in on_subcores),
    )
