"""Compile and simulate JAX's own kernels, unchanged, and others that do not know this library, compared with XLA.

    python benchmarks/foreign_kernels.py --chip v5e,v6e,v7x --json build/foreign.json

Imported from the installed JAX: its Pallas matmul, megablox' grouped product with even, skewed and partly empty groups,
flash attention, splash attention and paged attention. Rewritten in small, after the Pallas TPU documentation: a
pipelined addition, a product with an accumulator in scratch, a block-sparse product with scalar prefetch. And plain
JAX: a product, a two-layer perceptron, softmax attention. Operands are shapes; group sizes, page tables and block lists
are values, which the kernels branch on. `× XLA` is XLA's time for the same result, compiled and simulated in the same
run, over the kernel's: above one the kernel is faster. Every time is simulated.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import matmul as pallas_matmul
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

from systolic.chips import Chip
from systolic.cli.options import chip_option, output_options
from systolic.cli.output import check_target, versions, write_json
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.compiler import CompilerError, WorkerPool
from systolic.report.columns import Column, numeric, textual
from systolic.simulator import SimulationError
from systolic.timing import Measurement, submit_simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function and its arguments; `flops` if they are known; `xla` is the program that XLA would run instead."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    flops: float | None = None
    xla: str | None = None


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    """Return a shape of bfloat16."""
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """Return a shape of float32."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


# ---- after the Pallas TPU documentation ----


def pipelined_add(x, y):
    """x + y in blocks of 512 rows."""

    def kernel(x_vmem, y_vmem, out_vmem):
        out_vmem[...] = x_vmem[...] + y_vmem[...]

    block = pl.BlockSpec((512, 1024), lambda i: (i, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(x.shape[0] // 512,), in_specs=[block] * 2, out_specs=block)(x, y)


def scratch_matmul(lhs, rhs):
    """lhs @ rhs with a float32 sum in scratch memory."""

    def kernel(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    (m, k), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(m // 512, n // 1024, k // 1024),
        in_specs=[
            pl.BlockSpec((512, 1024), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((1024, 1024), lambda i, j, kk: (kk, j)),
        ],
        out_specs=pl.BlockSpec((512, 1024), lambda i, j, kk: (i, j)),
        scratch_shapes=[pltpu.VMEM((512, 1024), jnp.float32)],
    )(lhs, rhs)


def block_sparse_matmul(rows, columns, blocks, rhs):
    """A matrix of 512² blocks at (rows, columns), sorted by row with every row present, times rhs."""

    def kernel(rows_smem, columns_smem, block_vmem, rhs_vmem, out_vmem, acc_vmem):
        del columns_smem
        b, last = pl.program_id(1), pl.num_programs(1) - 1

        @pl.when((b == 0) | (rows_smem[b] != rows_smem[jnp.maximum(b - 1, 0)]))
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += jnp.dot(block_vmem[0], rhs_vmem[...], preferred_element_type=jnp.float32)

        @pl.when((b == last) | (rows_smem[b] != rows_smem[jnp.minimum(b + 1, last)]))
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    n = rhs.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((4096, n), blocks.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(n // 512, blocks.shape[0]),
            in_specs=[
                pl.BlockSpec((1, 512, 512), lambda j, b, rows, columns: (b, 0, 0)),
                pl.BlockSpec((512, 512), lambda j, b, rows, columns: (columns[b], j)),
            ],
            out_specs=pl.BlockSpec((512, 512), lambda j, b, rows, columns: (rows[b], j)),
            scratch_shapes=[pltpu.VMEM((512, 512), jnp.float32)],
        ),
    )(rows, columns, blocks, rhs)


# ---- plain JAX ----


def perceptron(x, first, second):
    """Two layers with gelu between."""
    return jax.nn.gelu(x @ first) @ second


def attention(q, k, v):
    """Softmax attention over heads."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) / np.sqrt(q.shape[-1])
    return (jax.nn.softmax(scores).astype(v.dtype) @ v).astype(q.dtype)


def batched_matmul(lhs, rhs):
    """A batched product: a grouped product with even groups."""
    groups = rhs.shape[0]
    return lhs.reshape(groups, -1, lhs.shape[1]) @ rhs


def splash(q, k, v):
    """Splash attention, causal, heads first."""
    mask = splash_attention_mask.MultiHeadMask(
        [splash_attention_mask.CausalMask((q.shape[1], k.shape[1]))] * q.shape[0]
    )
    return splash_attention_kernel.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1)(q, k, v)


def _grouped(sizes: list[int]) -> Program:
    tiled = functools.partial(gmm, tiling=(512, 1024, 1024))
    return Program(
        fn=tiled,
        args=(bf16(4096, 2048), bf16(8, 2048, 2048), np.array(sizes, np.int32)),
        flops=2.0 * 4096 * 2048 * 2048,
        xla="batched matmul",
    )


def programs() -> dict[str, Program]:
    """Return every program by name."""
    square, cube = bf16(4096, 4096), 2.0 * 4096**3
    heads = bf16(1, 8, 2048, 128)
    random = np.random.default_rng(0)
    sparse = np.argwhere(random.random((8, 8)) < 0.3)
    sparse = np.unique(np.concatenate([sparse, np.stack([np.arange(8), np.arange(8)], 1)]), axis=0).astype(np.int32)
    flops = {"attention": 4.0 * 8 * 2048 * 2048 * 128}
    return {
        "matmul": Program(fn=jnp.matmul, args=(square, square), flops=cube),
        "pallas matmul": Program(
            fn=functools.partial(pallas_matmul.matmul, block_shape=(512, 1024), block_k=1024),
            args=(square, square),
            flops=cube,
            xla="matmul",
        ),
        "scratch matmul": Program(fn=scratch_matmul, args=(square, square), flops=cube, xla="matmul"),
        "batched matmul": Program(
            fn=batched_matmul, args=(bf16(4096, 2048), bf16(8, 2048, 2048)), flops=2.0 * 4096 * 2048 * 2048
        ),
        "gmm, even groups": _grouped([512] * 8),
        "gmm, skewed groups": _grouped([3000, 1, 95, 300, 100, 500, 60, 40]),
        "gmm, empty groups": _grouped([0, 2048, 0, 0, 1048, 0, 1000, 0]),
        "block-sparse matmul": Program(
            fn=block_sparse_matmul,
            args=(sparse[:, 0].copy(), sparse[:, 1].copy(), bf16(len(sparse), 512, 512), square),
            flops=2.0 * len(sparse) * 512 * 512 * 4096,
        ),
        "attention": Program(fn=attention, args=(heads,) * 3, flops=flops["attention"]),
        "flash attention": Program(
            fn=functools.partial(flash.flash_attention, causal=False),
            args=(heads,) * 3,
            flops=flops["attention"],
            xla="attention",
        ),
        "flash attention, causal": Program(
            fn=functools.partial(flash.flash_attention, causal=True), args=(heads,) * 3, flops=flops["attention"] / 2
        ),
        "splash attention, causal": Program(fn=splash, args=(bf16(8, 2048, 128),) * 3, flops=flops["attention"] / 2),
        "paged attention": Program(
            fn=functools.partial(paged_attention, pages_per_compute_block=4),
            args=(
                bf16(8, 16, 128),
                *(bf16(16, 256, 16, 128),) * 2,
                np.array([100, 200, 300, 400, 7, 50, 512, 256], np.int32),
                np.arange(256, dtype=np.int32).reshape(8, 32),
            ),
        ),
        "perceptron": Program(
            fn=perceptron, args=(bf16(2048, 2048), bf16(2048, 8192), bf16(8192, 2048)), flops=4.0 * 2048 * 2048 * 8192
        ),
        "pipelined add": Program(fn=pipelined_add, args=(f32(8192, 1024),) * 2, xla="add"),
        "add": Program(fn=jnp.add, args=(f32(8192, 1024),) * 2),
    }


def record(name: str, chip: Chip, program: Program, found: Measurement | str) -> dict[str, Any]:
    row: dict[str, Any] = {"chip": chip.name, "program": name, "provenance": "simulated", "xla_program": program.xla}
    if isinstance(found, str) or found.run is None:
        return {**row, "time_us": None, "reason": found}
    run = found.run
    return {
        **row,
        "time_us": run.time_us,
        "reason": "",
        "tflops": program.flops / run.time_us / 1e6 if program.flops else None,
        "matrix_busy_share": run.matrix_busy_share,
        "stall_share": run.stall_share,
        "hbm_bytes": run.hbm_read_bytes + run.hbm_written_bytes,
        "assumptions": run.assumptions,
    }


@click.command()
@chip_option("v5e,v6e,v7x")
@click.option("--only", help="Programs whose name contains this.")
@output_options
def main(chips: tuple[Chip, ...], only: str | None, json_file: str | None, quiet: bool) -> None:
    """Compile and simulate every program for every chip."""
    check_target(json_file)
    all_programs = programs()
    chosen = {name: program for name, program in all_programs.items() if only is None or only in name}
    if not chosen:
        raise click.UsageError(f"no program's name contains {only!r}; there are {', '.join(all_programs)}")
    needed = {**chosen, **{program.xla: all_programs[program.xla] for program in chosen.values() if program.xla}}
    with WorkerPool() as pool, progress_bar(quiet=quiet) as bar:
        bar.planned(len(chips) * len(needed))
        jobs: dict[tuple[str, str], Future[Measurement]] = {}
        for chip in chips:
            for name, program in needed.items():
                label = f"{chip.name} {name}"
                jobs[chip.name, name] = submit_simulation(pool, program.fn, program.args, chip, label=label)
                jobs[chip.name, name].add_done_callback(lambda _, label=label: bar.done(label))
        rows = [
            record(name, chip, program, outcome(jobs[chip.name, name]))
            for chip in chips
            for name, program in needed.items()
        ]
    times = {(row["chip"], row["program"]): row["time_us"] for row in rows}
    for row in rows:
        other = times.get((row["chip"], row["xla_program"]))
        row["ratio_to_xla"] = other / row["time_us"] if other and row["time_us"] else None
    failed = [row for row in rows if row["time_us"] is None]
    if json_file is not None:
        write_json(json_file, "foreign_kernels", rows, {"programs": len(rows), "without_a_time": len(failed)})
    if json_file != "-":
        show(rows)
    sys.exit(1 if failed else 0)


def outcome(job: Future[Measurement]) -> Measurement | str:
    """Return the result of a job: a measurement, or the reason why it has none."""
    try:
        return job.result()
    except (CompilerError, SimulationError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _number(title: str, key: str, form: str, scale: float = 1.0) -> Column[dict[str, Any]]:
    return numeric(title, lambda row: row[key] / scale if row.get(key) is not None else None, form)


_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    textual("chip", lambda row: row["chip"]),
    textual("program", lambda row: row["program"]),
    _number("simulated µs", "time_us", ",.1f"),
    _number("Tflop/s", "tflops", ".0f"),
    _number("MXU busy", "matrix_busy_share", ".0%"),
    _number("stalls", "stall_share", ".0%"),
    _number("HBM MB", "hbm_bytes", ",.1f", 1e6),
    _number("× XLA", "ratio_to_xla", ".2f"),
)


def show(rows: list[dict[str, Any]]) -> None:
    out = console()
    packages = ", ".join(f"{name} {text}" for name, text in versions().items() if text)
    out.print(f"{Path(sys.argv[0]).name} · {packages} · every time is simulated")
    show_table(out, _COLUMNS, rows)
    for row in rows:
        if row["time_us"] is None:
            out.print(f"{row['chip']} {row['program']}: {row['reason']}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
