"""`systolic check`: is this kernel legal, right, free of races, and accepted by the compiler?"""

from __future__ import annotations

import os

import cattrs
import click

from systolic.checking import submit_check
from systolic.chips import Chip
from systolic.cli.check_tables import show_check
from systolic.cli.function import AskedFunction, function_options
from systolic.cli.options import Workers, chip_option, count_option, flag_option, output_options, worker_options
from systolic.cli.output import check_target, give
from systolic.cli.progress import progress_bar
from systolic.cli.slice_options import mesh_option
from systolic.cli.tables import console
from systolic.compiler import named_argument
from systolic.compiler.named_shardings import mesh_axes


@click.command()
@function_options
@chip_option()
@flag_option
@click.option(
    "--reference",
    metavar="FILE.py:REF",
    help="A function of the same arguments that computes the right results; it is run in float64.",
)
@mesh_option("Check on several virtual devices: a mesh such as x=2,y=4, in which the function is traced.")
@click.option(
    "--run/--no-run", default=True, show_default=True, help="Run the function in TPU interpret mode on the CPU."
)
@click.option(
    "--compile/--no-compile",
    "compiles",
    default=True,
    show_default=True,
    help="Compile for each chip, if the TPU compiler is installed.",
)
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings as well.")
@count_option("--seeds", 3, "Number of runs, each with different inputs and orders.", largest=1000)
@worker_options("one job")
@output_options
def check(
    requested: AskedFunction,
    chips: tuple[Chip, ...],
    reference: str | None,
    mesh: str,
    run: bool,
    compiles: bool,
    strict: bool,
    seeds: int,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Say what is wrong with a function's Pallas kernels: rules, the compiler's verdict, and a run on the CPU.

    FUNCTION is anything that jax.jit takes, from a file or as package.module:FUNCTION. It is run in TPU
    interpret mode with race detection, with NaN in all memory that was never written, and with several orders of
    copies; large arguments are made smaller. Without the TPU compiler only the rules and the run are used. Exit code 1:
    there is an error among the findings.

    \b
    Examples:
      systolic check kernel.py:mine --arg "bf16[4096,4096]" --arg "bf16[4096,4096]" --chip v5e,v6e,v7x
      systolic check kernel.py:mine --reference kernel.py:plain --arg "f32[1000,512]" --param tile_m=256
      systolic check kernel.py:gathered --arg "f32[1024,512]" --mesh x=8 --chip v6e
      systolic check examples/planted_faults.py:dropped_tail --arg "bf16[1024,1000]" --arg "bf16[1000,1024]" --json -
    """
    check_target(json_file)
    fn, other = requested.named(), requested.other(reference)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the parent only describes arguments
    args = [named_argument(text) for text in requested.arguments]
    axes = mesh_axes(mesh) if mesh else None
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        pending = submit_check(
            pool,
            fn,
            args,
            chips,
            reference=other,
            run=run,
            compiles=compiles,
            seeds=range(seeds),
            mesh=axes,
        )
        bar.planned(len(pending.jobs))
        for job in pending.jobs:
            job.add_done_callback(lambda _: bar.done(requested.text))
        report = pending.result()
    summary = {
        "ok": report.ok,
        "compared": report.compared,
        **{grade: report.count(grade) for grade in ("error", "warning", "note")},
    }
    give(json_file, "check", [cattrs.unstructure(report)], summary, lambda: show_check(console(), report))
    return 0 if report.ok and not (strict and report.count("warning")) else 1
