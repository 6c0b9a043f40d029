"""`systolic explain`: explain where a function's time goes, and what would save some of it."""

from __future__ import annotations

import os
from pathlib import Path

import cattrs
import click

from systolic.chips import Chip
from systolic.cli.explanation_tables import show_explanation
from systolic.cli.function import AskedFunction, function_options
from systolic.cli.opponent import xla_default_flags_option
from systolic.cli.options import (
    Workers,
    chip_option,
    count_option,
    flag_option,
    output_options,
    page_option,
    worker_options,
)
from systolic.cli.output import check_drawing_target, check_target, give, note, write_text
from systolic.cli.progress import progress_bar
from systolic.cli.slice_options import AskedSlice, slice_options
from systolic.cli.tables import console
from systolic.compiler import NamedFunctionError, check_available
from systolic.explaining import ExplainRequest, Explanation, explain_with_pool
from systolic.timing.outcome import Outcome


@click.command()
@function_options
@chip_option()
@slice_options
@flag_option
@click.option("--against", metavar="FILE.py:OTHER", help="Another function of the same arguments to compare with.")
@page_option
@count_option("--tries", 12, "Simulate at most this many changes.", smallest=0)
@click.option(
    "--try-mesh", is_flag=True, help="On a slice: simulate other meshes and shardings too, at most --tries of them."
)
@xla_default_flags_option
@click.option("--details", is_flag=True, help="Print the tables of the page, too.")
@worker_options()
@output_options
def explain(
    requested: AskedFunction,
    chips: tuple[Chip, ...],
    asked_slice: AskedSlice,
    against: str | None,
    page: Path | None,
    tries: int,
    try_mesh: bool,
    xla_default_flags: bool,
    details: bool,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Explain where a function's time on a TPU goes, and simulate the changes that may save time.

    FUNCTION is anything that jax.jit takes, from a file or as package.module:FUNCTION. It tries other values of
    keyword arguments that are sizes of blocks, other orders of the grid, VMEM limits, buffers and cores. Save the
    result with --json FILE to compare it later with systolic compare. Exit code 1: the function raised an error, the
    compiler refused it, or it cannot be simulated.

    \b
    Examples:
      systolic explain kernel.py:mine --arg "bf16[4096,4096]" --arg "bf16[4096,4096]" --chip v6e --out report.html
      systolic explain kernel.py:mine --param tile_m=256 --against kernel.py:other --arg "f32[2048,2048]" --json -
      systolic explain step.py:mlp --topology 2x4 --mesh data=2,model=4 --arg "bf16[8192,8192]@data,model" --try-mesh
    """
    check_target(json_file)
    check_drawing_target(page)
    if try_mesh and asked_slice.topology is None:
        raise click.UsageError("--try-mesh tries meshes over a slice: pass --topology, such as 2x4")
    fn, other = requested.named(), requested.other(against)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the parent only describes arguments
    asked_slice.check(chips)
    calls = [asked_slice.call(fn, requested.arguments, chip) for chip in chips]
    check_available()
    explanations: list[Explanation] = []
    failed: dict[str, str] = {}
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        for chip, (called, values) in zip(chips, calls, strict=True):
            request = ExplainRequest(
                fn=called,
                args=values,
                arguments=requested.arguments,
                chip=chip,
                topology=asked_slice.topology,
                against=other and asked_slice.call(other, (), chip)[0],
                tries=tries,
                try_mesh=try_mesh,
                xla_default_flags=xla_default_flags,
            )
            try:
                explanations.append(explain_with_pool(pool, request, progress=bar))
            except NamedFunctionError:  # the call was wrong
                raise
            except Exception as error:  # noqa: BLE001 -- whatever the user's function raises, perhaps on this chip only
                outcome = Outcome.failed(requested.text, error)
                failed[chip.name] = f"{outcome.status}: {outcome.details}"
    if page is not None:
        from systolic.report import explanation_page

        for explanation in explanations:
            target = page.with_stem(f"{page.stem}_{explanation.chip}") if len(chips) > 1 else page
            write_text(target, explanation_page(explanation))
            note(f"page {target}", quiet=quiet)

    def show() -> None:
        out = console()
        for explanation in explanations:
            show_explanation(out, explanation, details=details)
        for name, reason in failed.items():
            out.print(f"{name} {requested.text}: {reason}", markup=False)

    give(
        json_file, "explain", map(cattrs.unstructure, explanations), {"provenance": "simulated", "failed": failed}, show
    )
    return 1 if failed else 0
