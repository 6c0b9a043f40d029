"""`systolic bench`: race suites of products by `systolic.matmul` against XLA and against the limits of the chip."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from systolic.bench.cases import EXPERT, Case
from systolic.bench.moe_layers import SUITE as MOE_LAYER
from systolic.bench.moe_layers import layers_on_slice
from systolic.bench.sharded import SUITE as SHARDED
from systolic.bench.sharded import on_slice
from systolic.bench.suites import SUITES
from systolic.chips import Chip
from systolic.cli.bench_table import show
from systolic.cli.opponent import xla_default_flags_option
from systolic.cli.options import (
    READ_FILE,
    WRITTEN_FILE,
    Workers,
    chip_option,
    flag_option,
    output_options,
    worker_options,
)
from systolic.cli.output import check_drawing_target, check_target, give, note, versions, writing
from systolic.cli.product import Rows, SuiteNames, cases_of, dtype_options, spec_option
from systolic.cli.progress import progress_bar
from systolic.cli.results import WrongFileError, read_document, wrong_kind
from systolic.cli.slice_options import AskedSlice, check_mesh, mesh_option, topology_option
from systolic.cli.stopping import STOPPED, until_stopped
from systolic.compiler import check_available
from systolic.compiler.named_shardings import mesh_axes
from systolic.ops.op import op_of
from systolic.spec import PrecisionName, Spec
from systolic.support.untrusted import UntrustedError, structured
from systolic.timing.runner import Runner

if TYPE_CHECKING:
    from systolic.bench.race import Against
    from systolic.bench.rows import BenchRow


@click.command()
@click.option(
    "--suite",
    "suites",
    type=SuiteNames(),
    help=f"Suites, separated by commas: {', '.join(SUITES)}.  [default: square]",
)
@spec_option
@chip_option()
@flag_option
@topology_option(f"For suites {SHARDED} and {MOE_LAYER}: the slice that products are cut over")
@mesh_option(
    f"For suite {SHARDED}: `data` cuts tokens and `model` weights, such as data=2,model=4. For suite {MOE_LAYER}: "
    f"`{EXPERT}` cuts tokens and experts."
)
@dtype_options
@click.option(
    "--against",
    type=click.Choice(["all", "xla", "nothing"]),
    default="all",
    show_default=True,
    help="What to compare with: xla; all: public kernels, too; nothing: takes half as long.",
)
@xla_default_flags_option
@click.option(
    "--only",
    metavar="TEXT",
    default="",
    help="Cases whose name or group contains this text; separate several by commas.",
)
@click.option("--rows", type=Rows(), help="Cases with this number of rows (m); separate several by commas.")
@click.option(
    "--plot",
    "plot_file",
    type=WRITTEN_FILE,
    metavar="FILE.png",
    help="Suites moe, moe-layer, loss, quantized, sparse: draw times over rows or density, of what has most rows.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="For developers of systolic: show the bars that it has to clear; a missed bar is exit code 1.",
)
@click.option(
    "--from", "saved_file", metavar="FILE", type=READ_FILE, help="Show a run that --json saved, instead of a new run."
)
@worker_options()
@output_options
def bench(
    suites: tuple[str, ...] | None,
    spec: Spec | None,
    chips: tuple[Chip, ...],
    topology: str | None,
    mesh: str,
    dtype: str,
    precision: PrecisionName,
    against: Against,
    xla_default_flags: bool,
    only: str,
    rows: tuple[int, ...] | None,
    plot_file: Path | None,
    strict: bool,
    saved_file: Path | None,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Race systolic.matmul, with the planner's tiles, against XLA on suites of products, or any op on one spec.

    Every time is `simulated`: both programs compiled by the same compiler in the same run and executed on the chip's
    model. square: 512³ to 16384³. llm: weights of Llama 3, DeepSeek-V3 and Gemma 2, prefill and decode. fused: what
    happens around a product. edges: sizes that no tile divides, and the next that tiles do. layers: two MLPs of
    Llama 3 in a row, two blocks of Qwen3's experts, and a gated product, with and without gradients. moe: layers of
    experts of six models, forward, both gradients and gated, with even and uneven sizes of groups, also against public
    kernels. quantized: weights of eight and four bits, with rows of bfloat16 and rows quantized in the call. sparse:
    blocks at random, in a band or by a power law, masks, gradients, also against the kernel of JAX's documentation.
    sharded: MLPs of Llama 3 and products alone over a slice, ours on a mesh with explicit axes, and how much
    communication is exposed. Operands are given as shapes; only sizes of groups and places of blocks have
    values, which are fixed. Exit code 1: a product has no time; with --strict also a missed bar.

    \b
    Examples:
      systolic bench --suite square --chip v5e,v6e,v7x
      systolic bench --suite llm --chip v6e --only decode --json decode.json
      systolic bench --suite square --dtype float32 --precision highest --chip v5e
      systolic bench --suite moe --only "mixtral-8x7b forward" --rows 4096 --chip v6e
      systolic bench --suite sharded --chip v6e --topology 2x4 --mesh data=2,model=4
      systolic bench --suite moe-layer --only qwen3-235b --chip v6e --topology 2x4 --mesh expert=8
      systolic bench --from decode.json
    """
    from systolic.bench.bars import summary

    check_target(json_file)
    check_drawing_target(plot_file)
    packages, stopped, race_count = versions(), False, 0
    if saved_file is not None:
        found_rows, packages = _saved(saved_file)
    else:
        if suites is not None and spec is not None:
            raise click.UsageError("give either --suite or --spec")
        cases = cases_of(suites or ("square",), dtype, precision, only, rows) if spec is None else [_case(spec)]
        cases = _sliced(cases, chips, topology, mesh)
        found_rows, stopped = _raced(cases, chips, workers, quiet, against=against, xla_default_flags=xla_default_flags)
        race_count = len(cases) * len(chips)
    result = summary(found_rows)
    records = (row.record() for row in found_rows)
    give(
        json_file,
        "bench",
        records,
        dataclasses.asdict(result),
        lambda: show(found_rows, result, packages, bars=strict),
    )
    if plot_file is not None:
        note(_plot(found_rows, plot_file), quiet=quiet)
    if stopped:
        note(
            f"stopped: {len(found_rows)} of {race_count} rows are finished; the same command compiles only the others",
            quiet=False,
        )
        return STOPPED
    return 1 if result.timed < result.rows or (strict and result.missed) else 0


def _plot(rows: Sequence[BenchRow], target: Path) -> str:
    """Draw the picture of the rows; return its title, or say that there is none."""
    from systolic.report import save_png, times_plot
    from systolic.report.race_pictures import PICTURES, picture

    chart = picture(rows)
    if chart is None:
        return f"no plot: no row of suite {', '.join(PICTURES)} has a time"
    with writing(target):
        drawn = times_plot(chart.points, title=chart.title, x_title=chart.x_title, provenance="simulated")
        save_png(drawn, target)
    return f"wrote {target}: {chart.title}"


def _case(spec: Spec) -> Case:
    op = op_of(spec)
    return Case(suite=op.name, group=op.name, name=op.words(spec)[0], spec=spec)


def _sliced(cases: list[Case], chips: Sequence[Chip], topology: str | None, mesh: str) -> list[Case]:
    """Return the cases on the requested slice.

    Raises:
      click.UsageError: the suite needs one, or the mesh has none.
      SliceError: a chip has no such slice, the mesh does not fit it, or it does not suit the cases.
    """
    check_mesh(topology, mesh)
    if topology is not None and mesh:
        AskedSlice(topology=topology, mesh=mesh).check(chips)
        cut = layers_on_slice if all(case.suite == MOE_LAYER for case in cases) else on_slice
        return cut(cases, topology, mesh_axes(mesh))
    if topology is not None or any(case.suite == SHARDED for case in cases):
        raise click.UsageError(f"suite {SHARDED} is cut over a slice: give --topology 2x4 --mesh data=2,model=4")
    return cases


def _raced(
    cases: Sequence[Case], chips: Sequence[Chip], workers: Workers, quiet: bool, **options: Any
) -> tuple[list[BenchRow], bool]:
    """Return the rows, and whether Ctrl-C came before the last; raise KeyboardInterrupt if it came before the first."""
    check_available()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # this process only describes arguments
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        from systolic.bench.race import race  # takes a second, for JAX: the bar is up already

        (rows,), stopped = until_stopped([lambda: race(cases, chips, Runner(pool, bar), **options)])
        return rows, stopped


def _saved(path: Path) -> tuple[list[BenchRow], dict[str, str | None]]:
    """Read the rows of a saved run, and its versions."""
    from systolic.bench.rows import read_rows

    expected_file = "the result of `systolic bench --json FILE`"
    document = read_document(path, expected_file)
    if document.get("command") != "bench":
        raise wrong_kind(path, document, expected_file)
    try:
        rows = read_rows(document.get("rows"))
        return list(rows), structured(document.get("versions"), dict[str, str | None])
    except UntrustedError as error:
        raise WrongFileError(
            f"{path} is damaged, or of another version: {error}; this takes {expected_file}"
        ) from error
