"""Compile and simulate functions that are sharded over eight devices, on slices of v5e, v6e, v5p and v7x.

    python benchmarks/sharded_functions.py --chip v6e,v7x --only MLP --json build/sharded_functions.json

Each function gives a time, or a refusal with its reason: the time of the device that ends last, the part of it that is
exposed communication, and the carrier of that: XLA's collectives by kind, its collective matmul (a loop that multiplies
one part while the next part travels), or Pallas kernels.

    x @ w …           `jit` of a product of 1024×2048 and 2048×4096, with one of four shardings each of x, w and the
                      result over a mesh data=2, model=4: -,- whole; data,-; -,model; data,model. XLA does the rest
    tensor-parallel   a perceptron of 1024×2048×8192 whose hidden axis is cut over all devices, forward and backward
    FSDP              the same with its rows cut, and every weight gathered where it is used
    ppermute          a loop that passes 1 MiB to the next device, each time the block that it received
    ring lessons      the kernels of `systolic lessons between_chips`: a block of 1 MiB per device
    right neighbour   one remote copy of 1 MiB, as in the first kernel of Pallas' pages on distributed kernels
    pallas.ops.tpu    JAX's own all-gather, which keeps everything in VMEM
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
from sharded_programs import functions, topology_of_eight

from systolic.chips import Chip
from systolic.cli.options import Workers, chip_option, flag_option, output_options, worker_options
from systolic.cli.output import check_target, versions, write_json
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.report.columns import Column, numeric, textual
from systolic.simulator import SliceRun
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner

MATMUL_LOOP = "collective matmul"


# ---- rows ----


def record(name: str, chip: Chip, outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {
        "chip": chip.name,
        "topology": topology_of_eight(chip),
        "function": name,
        "provenance": "simulated",
        "status": outcome.status,
        "reason": outcome.located_reason,
        "time_us": None,
    }
    run = outcome.slice_run
    if run is None:
        return row
    return {
        **row,
        "time_us": run.time_us,
        "skew_us": run.skew_us,
        "exposed_us": run.exposed_us,
        "exposed_share": run.exposed_us / run.time_us,
        "sent_bytes": run.sent_bytes,
        "used": used(run, permutes="ppermute" in name),
        "way": run.way,
        "flags": run.flags,
        "assumptions": run.assumptions,
        "compile_s": outcome.compile_s,
    }


def used(run: SliceRun, *, permutes: bool) -> dict[str, int]:
    """Return the carriers of the communication, and the number of operations of each kind.

    Args:
      permutes: True if the function permutes; else XLA does, in a loop if that is its collective matmul.
    """
    counts: dict[str, int] = {}
    for collective in run.collectives:
        looped = collective.kind == "collective-permute" and collective.calls > 1
        kind = MATMUL_LOOP if looped and not permutes else collective.kind
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def used_text(row: Mapping[str, Any]) -> str:
    """Return the carriers of the communication, in words."""
    return ", ".join(f"{kind} × {count}" if count > 1 else kind for kind, count in row.get("used", {}).items())


_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    textual("chip", lambda row: f"{row['chip']} {row['topology']}"),
    textual("function", lambda row: row["function"]),
    textual("status", lambda row: row["status"]),
    numeric("simulated µs", lambda row: row["time_us"], ",.1f"),
    numeric("exposed", lambda row: row.get("exposed_share"), ".0%"),
    numeric("MB sent", lambda row: row["sent_bytes"] / 1e6 if "sent_bytes" in row else None, ",.1f"),
    textual("XLA used", used_text),
    textual("simulated", lambda row: row.get("way", "")),
    numeric("compile s", lambda row: row.get("compile_s"), ".1f"),
)


@click.command()
@chip_option("v5e,v6e,v5p,v7x")
@flag_option
@click.option("--only", help="Functions whose name contains this, such as --only MLP.")
@worker_options()
@output_options
def main(chips: tuple[Chip, ...], only: str | None, workers: Workers, json_file: str | None, quiet: bool) -> None:
    """Compile and simulate every function for a slice of every chip. Exit code 1: one of them has no time.

    Example: python benchmarks/sharded_functions.py --chip v6e --only MLP --json build/sharded_functions.json
    """
    check_target(json_file)
    rows: list[dict[str, Any]] = []
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        for chip in chips:
            chosen = {name: function for name, function in functions(chip).items() if only is None or only in name}
            if not chosen:
                raise click.UsageError(f"no function's name contains {only!r}")
            bar.planned(len(chosen))
            topology, runner = topology_of_eight(chip), Runner(pool, bar)
            running = {
                name: runner.start(
                    Experiment(
                        fn=function.fn, args=function.args, chip=chip, topology=topology, label=f"{name} {chip.name}"
                    )
                )
                for name, function in chosen.items()
            }
            for name, job in running.items():
                rows.append(record(name, chip, job.outcome()))
                if json_file not in (None, "-"):  # a stopped run leaves its rows so far
                    write_json(str(json_file), "sharded_functions", rows, summary(rows))
    if json_file == "-":
        write_json("-", "sharded_functions", rows, summary(rows))
    else:
        show(rows)
    sys.exit(1 if summary(rows)["times"] < len(rows) else 0)


def summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of rows, and the number of rows with a time."""
    return {"rows": len(rows), "times": sum(row["time_us"] is not None for row in rows)}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the rows, and the reasons of rows without a time."""
    out = console()
    packages = ", ".join(f"{name} {text}" for name, text in versions().items() if text)
    out.print(f"{Path(sys.argv[0]).name} · {packages} · every time is simulated")
    out.print("{times} of {rows} functions have a time".format_map(summary(rows)))
    show_table(out, _COLUMNS, rows)
    for row in rows:
        if row["reason"]:
            out.print(f"{row['chip']} {row['function']}: {row['reason']}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
