"""Compile and simulate the operations that XLA makes of ordinary functions, and compare times with lower bounds.

    python benchmarks/any_function.py --chip v5e,v6e --only softmax --json build/any_function.json

Each function of `xla_functions.py` and `xla_products.py` gives a time or a refusal with its reason. A time is compared
with bounds that do not depend on the simulator:
  × bytes: over the time that its bytes (arguments and results, once each) take at the published bandwidth;
  × flops: over the time that its products take at the published peak;
  × libtpu: over libtpu's own static estimate of its operations, each as often as it was called.
The first two have to be at least 1 (what lies in VMEM when the program starts counts as read: its prefetch is added).
The last is imprecise: the estimate knows no overlap and no stalls. Outside of 0.4 to 2 it is worth a look.

Functions whose time depends on computed values have to be refused. A compiler that needs more than 12 GiB or 600 s of
CPU time is a `limit`, of this benchmark. A row that is none of these is `wrong`, and the exit code is 1. Compiled
programs are kept in the program cache, so a stopped run resumes there; the estimates are kept next to it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
import jax
import jax.numpy as jnp
from xla_functions import Function, deep, moving, sorting, transformers
from xla_products import loops, products, transforms

from systolic.chips import Chip
from systolic.cli.options import chip_option, output_options
from systolic.cli.output import check_target, versions, write_json
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.compiler import WorkerPool, cache_folder
from systolic.report.columns import Column, numeric, textual
from systolic.simulator import SimulatedRun
from systolic.timing import Measurement
from systolic.timing.call import Call
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Progress, Runner
from systolic.timing.simulated import simulate_in_worker

# libtpu 0.0.42.1 dies of a failed check whenever it estimates a reduction for these.
WITHOUT_ESTIMATES = ("v7x",)


def functions() -> dict[str, Function]:
    """Every function by name."""
    return {**transformers(), **sorting(), **moving(), **products(), **transforms(), **loops(), **deep()}


# ---- libtpu's own estimates: it writes a file per compilation to a folder named by an environment variable ----


def estimates_folder() -> Path:
    """Return the folder that libtpu writes its estimates to and that keeps them."""
    return cache_folder() / "static_estimates"


def estimates_file(chip: Chip, name: str) -> Path:
    """Return the file that keeps the estimates of one function."""
    return estimates_folder() / f"{chip.name} {re.sub(r'[^A-Za-z0-9]+', '_', name)}.json"


def outcomes(chip: Chip, chosen: Mapping[str, Function], bar: Progress) -> Iterator[tuple[str, Outcome]]:
    """Run functions on one chip, and compile again without estimates if the compiler fails because of them."""
    files = {name: estimates_file(chip, name) for name in chosen}
    estimated = [name for name in chosen if chip.name not in WITHOUT_ESTIMATES and not is_empty(files[name])]
    with estimating():
        for name, outcome in run_all(chip, {name: chosen[name] for name in estimated}, bar):
            if outcome.status in ("crashed", "out of memory", "timed out"):
                files[name].write_text("{}")
                bar.planned(1)
            else:
                yield name, outcome
    rest = {name: function for name, function in chosen.items() if name not in estimated or is_empty(files[name])}
    yield from run_all(chip, rest, bar)


def is_empty(file: Path) -> bool:
    """True if the compiler died while it estimated."""
    return file.exists() and file.read_text() == "{}"


def run_all(chip: Chip, chosen: Mapping[str, Function], bar: Progress) -> Iterator[tuple[str, Outcome]]:
    """Run functions in a worker."""
    with WorkerPool(max_workers=1, time_limit_s=600, memory_limit_bytes=12 * 2**30) as pool:
        runner = Runner(functools.partial(submit, pool), bar)
        running = {name: runner.start(experiment(name, chip, function)) for name, function in chosen.items()}
        for name, job in running.items():
            yield name, job.outcome()


@contextmanager
def estimating() -> Iterator[None]:
    """Let workers that start in this context write estimates."""
    before = os.environ.get("LIBTPU_INIT_ARGS", "")
    os.environ["LIBTPU_INIT_ARGS"] = f"{before} --xla_jf_dump_static_llo_profile_to={estimates_folder()}".strip()
    try:
        yield
    finally:
        os.environ["LIBTPU_INIT_ARGS"] = before


def experiment(name: str, chip: Chip, function: Function) -> Experiment:
    """Return the experiment of one function."""
    return Experiment(fn=function.fn, args=function.args, chip=chip, label=f"{chip.name} {name}")


def submit(pool: WorkerPool, its: Experiment) -> Future[Measurement]:
    """Compile and simulate an experiment in a worker."""
    file = estimates_file(its.chip, its.label.removeprefix(f"{its.chip.name} "))
    call = Call.of(its.fn, its.args, its.chip, its.topology)
    return pool.submit(timed, call, file, its.cached, its.spans, label=its.label)


def timed(call: Call, file: Path, cached: bool, spans: int) -> Measurement:
    """Compile and simulate, in a worker, and keep the estimates if it was compiled now."""
    try:
        return simulate_in_worker(call, cached, spans)
    finally:
        estimates: dict[str, int] = {}
        for path in file.parent.glob("*_static_llo_profile.textproto"):
            pairs = re.findall(r'hlo_op_name: "([^"]+)"\s+estimated_cycles: (\d+)', path.read_text())
            estimates.update({name: int(cycles) for name, cycles in pairs})
            path.unlink()
        if estimates:
            file.write_text(json.dumps(estimates))


def static_ratio(run: SimulatedRun, chip: Chip, name: str) -> tuple[float | None, str]:
    """Return time over estimate: of all operations that have an estimate, and of the one that is furthest off."""
    file = estimates_file(chip, name)
    estimates = json.loads(file.read_text()) if file.exists() else {}
    clocks = chip.machine.clock_hz / chip.peak_clock_hz  # the estimate counts cycles of the peak's clock
    pairs = [
        (op.name, op.cycles, estimates[op.name] * op.calls * clocks)
        for op in run.later_core.ops
        if estimates.get(op.name)
    ]
    if not pairs:
        return None, ""
    worst, cycles, estimated_cycles = max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
    return sum(pair[1] for pair in pairs) / sum(pair[2] for pair in pairs), f"{worst} × {cycles / estimated_cycles:.2f}"


# ---- rows ----

_VERDICTS = {
    **dict.fromkeys(("unsupported", "refused", "not simulated", "unknown"), "refusal"),
    **dict.fromkeys(("timed out", "out of memory"), "limit"),
}


def record(name: str, chip: Chip, function: Function, outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {"chip": chip.name, "function": name, "provenance": "simulated", "status": outcome.status}
    run = outcome.run
    if run is None:
        verdict = _VERDICTS.get(outcome.status, "wrong")
        return {**row, "verdict": verdict, "reason": outcome.located_reason, "time_us": None}
    seconds = run.time_us * 1e-6
    touched = function.touched_bytes or touched_bytes(function)
    bytes_s = touched / chip.hbm_bytes_per_s
    flops_s = function.flops / chip.peak_ops_per_s(function.dtype)
    to_static, worst = static_ratio(run, chip, name)
    row |= {
        "time_us": run.time_us,
        "prefetch_us": run.prefetch_us,
        "times_bytes": (seconds + run.prefetch_us * 1e-6) / bytes_s,
        "times_flops": seconds / flops_s if flops_s else None,
        "times_static": to_static,
        "worst_operation": worst,
        "assumptions": run.assumptions,
        "compile_s": outcome.compile_s,
    }
    doubts = [
        *(["less than its bytes take"] if row["times_bytes"] < 1 else []),
        *(["less than its products take"] if flops_s and seconds < flops_s else []),
        *(["its time depends on what it computes"] if function.unknown and chip.name not in function.known_on else []),
    ]
    return {**row, "verdict": "wrong" if doubts else "time", "reason": "; ".join(doubts)}


def touched_bytes(function: Function) -> int:
    """Return the bytes of the arguments and results."""
    leaves = jax.tree.leaves([function.args, jax.eval_shape(function.fn, *function.args)])
    return sum(math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for leaf in leaves)


def _number(title: str, key: str, form: str) -> Column[dict[str, Any]]:
    return numeric(title, lambda row: row.get(key), form)


_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    textual("chip", lambda row: row["chip"]),
    textual("function", lambda row: row["function"]),
    textual("verdict", lambda row: row["verdict"]),
    _number("simulated µs", "time_us", ",.1f"),
    _number("× bytes", "times_bytes", ".2f"),
    _number("× flops", "times_flops", ".2f"),
    _number("× libtpu", "times_static", ".2f"),
    textual("furthest from libtpu", lambda row: row.get("worst_operation", "")),
    _number("compile s", "compile_s", ".1f"),
)


@click.command()
@chip_option("v5e,v5p,v6e,v7x")
@click.option("--only", help="Functions whose name contains this, such as --only softmax.")
@output_options
def main(chips: tuple[Chip, ...], only: str | None, json_file: str | None, quiet: bool) -> None:
    """Compile and simulate every function for every chip.

    Example: python benchmarks/any_function.py --chip v6e --only product --json build/any_function.json
    """
    check_target(json_file)
    chosen = {name: function for name, function in functions().items() if only is None or only in name}
    if not chosen:
        raise click.UsageError(f"no function's name contains {only!r}; there are {', '.join(functions())}")
    estimates_folder().mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with progress_bar(quiet=quiet) as bar:
        bar.planned(len(chips) * len(chosen))
        for chip in chips:
            for name, outcome in outcomes(chip, chosen, bar):
                rows.append(record(name, chip, chosen[name], outcome))
                if json_file not in (None, "-"):  # a stopped run leaves its rows so far
                    write_json(str(json_file), "any_function", rows, summary(rows))
    if json_file == "-":
        write_json("-", "any_function", rows, summary(rows))
    else:
        show(rows)
    sys.exit(1 if summary(rows)["wrong"] else 0)


def summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of rows of each verdict."""
    return {
        verdict: sum(row["verdict"] == verdict for row in rows) for verdict in ("time", "refusal", "limit", "wrong")
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the rows, and the reasons of rows without a time."""
    out = console()
    packages = ", ".join(f"{name} {text}" for name, text in versions().items() if text)
    out.print(f"{Path(sys.argv[0]).name} · {packages} · every time is simulated")
    out.print(", ".join(f"{count} {verdict}" for verdict, count in summary(rows).items()))
    show_table(out, _COLUMNS, rows)
    for row in rows:
        if row["reason"]:
            out.print(f"{row['chip']} {row['function']}: {row['reason']}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
