"""`systolic tune`: the best tiles of a product, found without a TPU and kept."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from systolic.bench.cases import Case
from systolic.chips import Chip
from systolic.cli.function import StaticChoices, argument_options, each_once
from systolic.cli.function import named as named_by
from systolic.cli.opponent import xla_default_flags_option
from systolic.cli.options import (
    WRITTEN_FILE,
    FiniteFloat,
    Workers,
    chip_option,
    count_option,
    output_options,
    store_option,
    worker_options,
)
from systolic.cli.output import check_drawing_target, check_target, give, note, writing
from systolic.cli.product import (
    ProductOrFunction,
    SuiteNames,
    cases_of,
    described,
    dtype_options,
    spec_of,
    spec_option,
    stack_options,
)
from systolic.cli.progress import progress_bar
from systolic.cli.stopping import STOPPED, until_stopped
from systolic.cli.tls_options import certificates_of, tls_options
from systolic.cli.tune_function import function_record, show_function, volume
from systolic.cli.tune_record import product_record, products_summary
from systolic.cli.tune_table import named, provenance, show_product, show_searches
from systolic.compiler import check_available, named_argument
from systolic.spec import MatmulSpec, PrecisionName, Spec
from systolic.store import Trial, TrialStore
from systolic.tuning import COMPILE_LIMIT_S, FunctionTuning, TuningResult, Watcher, cluster
from systolic.tuning import tune as searched


@click.command()
@click.argument("product", metavar="[M,K,N|FILE.py:FUNCTION]", type=ProductOrFunction(), required=False)
@argument_options
@click.option(
    "--over",
    type=StaticChoices(),
    multiple=True,
    callback=each_once,
    help="For a function: a static keyword argument and the values to choose from: block_q=128,256,512; or a field of "
    "a record: block_sizes.block_q=128,256.",
)
@spec_option
@click.option("--suite", "suites", type=SuiteNames(), help="All products of a suite in place of M,K,N.")
@click.option(
    "--only",
    metavar="TEXT",
    default="",
    help="With --suite: only cases whose name or group contains this text; separate several by commas.",
)
@chip_option()
@dtype_options
@stack_options
@click.option(
    "--time-budget",
    type=FiniteFloat(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for one product, after which no further trial starts.",
)
@count_option("--trials", 12, "Configurations to compile for one product at most; stored trials count.")
@click.option("--exhaustive", is_flag=True, help="Try every legal configuration; takes hours.")
@worker_options("one trial", time_limit_s=COMPILE_LIMIT_S)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Address of a Dask cluster that compiles and simulates, such as tls://host:8786; --workers is ignored then. "
    "Whoever reaches that address can run code on its machines and on this one: see docs/tuning.md.",
)
@tls_options
@store_option
@count_option(
    "--measure",
    0,
    "Number of best configurations to run on the attached TPU, timed by its clock.",
    parameter="measured",
    smallest=0,
)
@xla_default_flags_option
@click.option("--plot", "plot_file", type=WRITTEN_FILE, help="Draw all trials of the last product as a PNG.")
@output_options
def tune(
    product: tuple[int, int, int] | str | None,
    arguments: tuple[str, ...],
    parameters: tuple[tuple[str, object], ...],
    over: tuple[tuple[str, tuple[Any, ...]], ...],
    spec: Spec | None,
    suites: tuple[str, ...] | None,
    only: str,
    chips: tuple[Chip, ...],
    dtype: str,
    precision: PrecisionName,
    stack: functools.partial[MatmulSpec],
    batch: int,
    time_budget: float,
    trials: int,
    exhaustive: bool,
    workers: Workers,
    scheduler: str | None,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    store_file: Path | None,
    measured: int,
    xla_default_flags: bool,
    plot_file: Path | None,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Find the fastest tiles for lhs[M,K] @ rhs[K,N], or for any function, without the chip.

    A model ranks every legal configuration; the best are compiled by the TPU compiler and executed on the chip's model:
    times are `simulated`. For a function, --over names the static arguments to choose; values that a rule of systolic
    check forbids are not compiled. Every trial is stored: the same command continues where it stopped. Exit code 1:
    a product or function has no trial with a time.

    \b
    Examples:
      systolic tune 8192,4096,14336 --chip v6e --time-budget 120
      systolic tune 16,4096,14336 --chip v5e,v7x --bias --activation silu --json tuned.json
      systolic tune --suite llm --only prefill --chip v6e --store trials.sqlite
      systolic tune kernel.py:attention --arg "bf16[8,4096,128]" --over block_q=128,256,512 --over block_kv=512,1024
      systolic tune --suite square --scheduler tls://host:8786 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key
    """
    check_target(json_file)
    check_drawing_target(plot_file)
    certificates = certificates_of(scheduler, tls_ca, tls_cert, tls_key)
    if [product, spec, suites].count(None) != 2:
        raise click.UsageError("give one of M,K,N, such as 8192,4096,14336, FILE.py:FUNCTION, --suite, and --spec")
    if isinstance(product, str) != bool(over) or (arguments and not over):
        raise click.UsageError("a function is tuned over static arguments: kernel.py:f --arg … --over block_q=128,256")
    if isinstance(product, str) and (measured or any(stack.keywords.values()) or batch > 1):
        raise click.UsageError("--measure, --batch and what is fused are of products, not of a function")
    keywords = [name.partition(".")[0] for name, _ in over]
    fn = named_by(product, parameters, len(arguments), keywords) if isinstance(product, str) else None
    cases = _cases(product, suites, only, dtype, precision, stack, batch) if spec is None and fn is None else []
    store = TrialStore.at(store_file)
    store.check_writable()  # before an hour of compiling, not after its first trial
    specs: list[tuple[str, Any]] = [("", spec)] if spec is not None else []
    specs += [(case.name, spec_of(case)) for case in cases]
    if not measured:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # this process only describes arguments
    values = [named_argument(text) for text in arguments]
    check_available()
    limits = {"time_limit_s": workers.time_limit_s, "memory_limit_bytes": workers.memory_limit_bytes}
    dask = cluster(scheduler, certificates, **limits) if scheduler is not None else None
    somewhere = dask if dask is not None else nullcontext((None, workers.count))
    with progress_bar(quiet=quiet) as bar, somewhere as (submit, at_once):

        def options(chip: Chip, name: str) -> dict[str, Any]:
            def tried(trial: Trial, best: Trial | None) -> None:
                label = f"{chip.name} {name}"
                bar.done(f"{label} {best.time_us:,.1f} µs" if best is not None and best.time_us else label)

            effort = {"trials": trials, "time_budget_s": time_budget, "exhaustive": exhaustive, "submit": submit}
            watcher = Watcher(planned=bar.planned, tried=tried)
            return {"chip": chip, **effort, "workers": at_once, **limits, "store": store, "watcher": watcher}

        if fn is not None:
            searches = [
                functools.partial(searched, fn, *values, over=dict(over), **options(chip, fn.text)) for chip in chips
            ]
        else:
            searches = [
                functools.partial(
                    searched,
                    product_spec,
                    measured=measured,
                    xla_default_flags=xla_default_flags,
                    **options(chip, name),
                )
                for name, product_spec in specs
                for chip in chips
            ]
        results, stopped = until_stopped(searches)
    give_results = _give_products if fn is None else _give_functions
    give_results(results, store.file, json_file, plot_file, quiet=quiet)
    if stopped:
        note(f"stopped: {len(results)} of {len(searches)} are above; the same command goes on", quiet=False)
    return STOPPED if stopped else int(any(result.winner is None for result in results))


def _give_products(
    results: list[TuningResult], store: Path, json_file: str | None, plot_file: Path | None, *, quiet: bool
) -> None:
    show = functools.partial(show_searches, results, show_product, store)
    give(json_file, "tune", map(product_record, results), products_summary(results, store), show)
    if plot_file is not None:
        _plot(results[-1].trials, named(results[-1]), plot_file, xla_us=results[-1].xla_us, quiet=quiet)


def _give_functions(
    results: list[FunctionTuning], store: Path, json_file: str | None, plot_file: Path | None, *, quiet: bool
) -> None:
    winners = {result.chip: result.winner.function for result in results if result.winner is not None}
    keywords = {chip: config.arguments for chip, config in winners.items() if config is not None}
    summary = {"store": str(store), "keywords": keywords, "compiled": sum(result.compiled for result in results)}
    show = functools.partial(show_searches, results, show_function, store)
    give(json_file, "tune", map(function_record, results), summary, show)
    if plot_file is not None:
        title = f"{results[-1].spec.name} on {results[-1].chip}"
        _plot(results[-1].trials, title, plot_file, axis="product of all sizes", quiet=quiet)


def _cases(
    product: tuple[int, int, int] | str | None,
    suites: tuple[str, ...] | None,
    only: str,
    dtype: str,
    precision: PrecisionName,
    stack: functools.partial[MatmulSpec],
    batch: int,
) -> list[Case]:
    if isinstance(product, tuple):
        return [described(product, dtype, precision, stack, batch)]
    if any(stack.keywords.values()) or batch > 1:
        raise click.UsageError("a suite says itself what is fused: leave --bias, --activation, … and --batch out")
    assert suites is not None
    return cases_of(suites, dtype, precision, only)


def _plot(
    trials: Sequence[Trial],
    what: str,
    path: Path,
    *,
    axis: str = "volume of a tile, m · k · n",
    xla_us: float | None = None,
    quiet: bool,
) -> None:
    from systolic.report import save_png
    from systolic.report.trials_plot import TrialPoint, trials_plot

    points = [
        TrialPoint(
            volume=math.prod(dataclasses.astuple(trial.config.tiles)) if trial.config is not None else volume(trial),
            time_us=trial.time_us,
            limit=trial.limit,
        )
        for trial in trials
        if trial.time_us is not None
    ]
    if not points:
        note(f"nothing to draw into {path}: no trial has a time", quiet=quiet)
        return
    title, source = f"{what}: {len(points)} trials", provenance(trials[0])
    with writing(path):
        save_png(trials_plot(points, title=title, axis=axis, provenance=source, xla_us=xla_us), path)
    note(f"wrote {path}", quiet=quiet)
