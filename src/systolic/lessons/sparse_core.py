"""SparseCore · Rows of a table by their numbers: what a TensorCore is bad at.

    out[r] = table[index[r]]                                  32,768 rows of 128 float32 out of 1,048,576

No arithmetic, 512 bytes here and 512 there. A TensorCore copies blocks well and rows badly: its one scalar unit reads
an index, works out an address and starts a copy, row after row, and to start one of a row costs as much as one of a
thousand rows. `jnp.take` does that, and so does `copy_rows` below, by hand: all copies of a block are started, then one
wait counts their bytes.

v5p, v6e and v7x have SparseCores beside their TensorCores: two to four on a device, each of 16 subcores with a memory
and copies of their own. `pl.kernel` runs a body on every subcore of a `VectorSubcoreMesh`, and `emit_pipeline` shares
its grid among them, by the names of both axes of the mesh. Within it a single copy takes its rows from a list of
numbers, `table_hbm.at[index_vmem]`: the hardware goes through the list. XLA does the same unasked where it finds it
worth while, on v7x with `jnp.take`.

The simulator models a TensorCore: it has no time for what runs on SparseCores, and what it says of the TensorCore's own
gather rests on the cost of starting a copy, fitted on other kernels and largest by far on v6e. What can be said of the
SparseCores is how slow a subcore may be: with all of them at work, so long as a row takes a subcore less than the time
in the last line, they are faster. Neither kind of core can be faster than HBM.

Grid: (i,) over blocks of 128 rows. In VMEM: a block of the result, twice; on the SparseCore a block of numbers also.

The notes that this follows: "Pallas Tutorial Notes", SparseCore.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jaxtyping import Array, Float32, Int32

from systolic.checking.interpreting import traced_as_on
from systolic.checking.running import RunOutcome, run_in_worker
from systolic.chips import Chip
from systolic.compiler import (
    CompiledProgram,
    CompilerRefusal,
    ProgramCache,
    WorkerPool,
    abstract_arguments,
    argument_values,
    check_available,
    submit_compilation,
    tracing_settings,
)
from systolic.lessons.lesson import Lesson, Part, Results, Shown
from systolic.lessons.showing import show
from systolic.measure import target_of

BLOCK = 128  # rows of a step; also the longest list of numbers that one copy takes


def take(table: Float32[Array, "m n"], index: Int32[Array, " rows"]) -> Float32[Array, "rows n"]:
    """The rows, by XLA."""
    return jnp.take(table, index, axis=0, mode="clip")


def copy_rows_kernel(
    index_smem,  # [rows] int32, prefetched
    table_hbm,  # [m, n] float32
    out_vmem,  # [BLOCK, n] float32
    sem,  # of all copies of a step
):
    """Starts a copy for each row of the block, then waits for as many bytes as the block has."""
    first = pl.program_id(0) * BLOCK

    @pl.loop(0, BLOCK)
    def _start(row):
        source = table_hbm.at[pl.ds(index_smem[first + row], 1)]
        pltpu.make_async_copy(source, out_vmem.at[pl.ds(row, 1)], sem).start()

    pltpu.make_async_copy(table_hbm.at[pl.ds(0, BLOCK)], out_vmem, sem).wait()


def copy_rows(table: Float32[Array, "m n"], index: Int32[Array, " rows"]) -> Float32[Array, "rows n"]:
    """The rows on the TensorCore, a copy each. `rows` is a multiple of BLOCK, and m not below it."""
    return pl.pallas_call(
        copy_rows_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(index.shape[0] // BLOCK,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec((BLOCK, table.shape[1]), lambda i, _: (i, 0)),
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct((index.shape[0], table.shape[1]), table.dtype),
        name="copy_rows",
    )(index, table)


def gather_kernel(
    table_hbm,  # [m, n] float32
    index_hbm,  # [1, rows] int32
    out_hbm,  # [rows, n] float32
):
    """On each subcore: a pipeline over its share of the blocks. A list of numbers comes, a copy takes the rows."""

    def copy_listed(
        index_vmem,  # [1, BLOCK] int32
        out_vmem,  # [BLOCK, n] float32
    ):
        pltpu.sync_copy(table_hbm.at[index_vmem.at[0]], out_vmem)

    pltpu.emit_pipeline(
        copy_listed,
        grid=(index_hbm.shape[1] // BLOCK,),
        in_specs=[pl.BlockSpec((1, BLOCK), lambda i: (0, i))],
        out_specs=[pl.BlockSpec((BLOCK, table_hbm.shape[1]), lambda i: (i, 0))],
        core_axis_name=("core", "subcore"),
        dimension_semantics=(pltpu.PARALLEL,),
    )(index_hbm, out_hbm)


def gather(table: Float32[Array, "m n"], index: Int32[Array, " rows"]) -> Float32[Array, "rows n"]:
    """The rows on all SparseCores of the device. `rows` is a multiple of BLOCK times their subcores.

    Raises:
      RuntimeError: the device has no SparseCores.
    """
    gathered: Callable[..., Any] = pl.kernel(
        gather_kernel,
        out_type=jax.ShapeDtypeStruct((index.shape[0], table.shape[1]), table.dtype),
        mesh=plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="subcore"),
        name="gather",
    )
    return gathered(table, index.reshape(1, -1))


def _numbers(rows: int, m: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, m, rows).astype(np.int32)


TABLE = jax.ShapeDtypeStruct((1_048_576, 128), jnp.float32)
ARGS = (TABLE, _numbers(32_768, TABLE.shape[0]))
RUN_ARGS = (jax.ShapeDtypeStruct((512, 128), jnp.float32), _numbers(512, 512))
MOVED_BYTES = 2 * ARGS[1].size * TABLE.shape[1] * 4 + ARGS[1].nbytes  # read and written, and the numbers


def subcores(chip: Chip) -> int:
    """Of all SparseCores of a device, as JAX knows it; 0 where it has none."""
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


def _on_subcores(pool: WorkerPool, chip: Chip) -> Shown:
    """What is known of the SparseCore's gather on a chip."""
    if not subcores(chip):
        return Shown(part="gather", chip=chip.name, status="not on this chip", reason="JAX knows no SparseCores on it")
    try:
        program = submit_compilation(pool, gather, ARGS, target_of(chip), cache=ProgramCache()).result()
    except CompilerRefusal as refusal:
        return Shown(part="gather", chip=chip.name, status="refused", reason=str(refusal))
    run = _run_on_subcores(pool, chip)
    wrong = run.summary.ran and any(each.grade == "error" for each in run.findings)
    checked = "values checked in interpret mode" if run.summary.ran else "interpret mode cannot run it"
    return Shown(
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
    found = show((by_xla, by_hand), chips)
    every = Results((*found.shown, *on_subcores))

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
        name="sparse_core",
        title="SparseCore: 32,768 rows of 512 bytes by their numbers",
        lines=(
            f"The bytes over HBM's published bandwidth, modelled: {hbm}.",
            f"On the TensorCore, simulated: jnp.take {times('jnp.take')}; a copy a row by hand {times('copy_rows')}.",
            *([f"The SparseCores are faster where a row takes a subcore less than: {even}."] if even else []),
        ),
        rows=every.rows,
        ok=found.ok and all(each.status in ("not simulated", "not on this chip") for each in on_subcores),
    )


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "sparse_core", *sys.argv[1:]]))
