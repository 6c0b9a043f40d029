"""Compare predicted with published times of whole training steps, row by row of `data/published_steps.csv`.

    python benchmarks/training_steps.py --only "32b" --json build/training_steps.json

Each row is either predicted, by the model of `examples/transformer` with the row's sizes, mesh and flags, or there is a
reason why not. Nothing here, and no constant of any chip, was fitted to a step. Where a row publishes a rate only, its
time is the model's operations, as MaxText counted them at that commit, over that rate.

A row takes the compiler minutes, with the flags of some recipes half an hour; programs are kept, so a run that was
stopped resumes there.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
from step_recipes import Recipe, recipe_of

from systolic.chips import chip as chip_named
from systolic.chips import with_flags
from systolic.cli.options import Workers, output_options, worker_options
from systolic.cli.output import check_target, versions, write_json
from systolic.cli.progress import progress_bar, result_of
from systolic.cli.tables import console, show_table
from systolic.compiler import NamedFunction
from systolic.report.columns import Column, numeric, textual
from systolic.steps import TIME_LIMIT_S, StepMaker, StepRun, submit_step
from systolic.timing.outcome import Outcome

PUBLISHED = Path(__file__).parent / "data" / "published_steps.csv"
MODEL = Path(__file__).parents[1] / "examples" / "transformer"


def rows_of(file: Path, only: str | None) -> list[dict[str, str]]:
    """Return rows of the published file whose chip, topology or name contains a text."""
    with file.open(newline="") as lines:
        published = list(csv.DictReader(lines))
    return [row for row in published if not only or only in f"{row['chip']} {row['topology']} {row['op']}"]


def published_us(row: dict[str, str], recipe: Recipe, run: StepRun) -> float | None:
    """Return the published time; for a row with a rate only, the model's operations over the rate."""
    if row["time_us"] or recipe.rate_tflops is None:
        return float(row["time_us"]) if row["time_us"] else None
    chips = run.devices / chip_named(run.chip).devices_per_chip
    attention = 2 * (run.flops - run.flops_causal)  # the causal count has half of it
    counted = run.flops - (1 - recipe.attention_counted) * attention
    return counted / (recipe.rate_tflops * 1e12 * chips) * 1e6


def record(row: dict[str, str], recipe: Recipe | None, run: StepRun | None, reason: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "chip": row["chip"],
        "topology": row["topology"],
        "step": row["op"],
        "provenance": "simulated",
        "published_s": float(row["time_us"]) / 1e6 if row["time_us"] else None,
        "predicted_s": None,
        "error_percent": None,
        "differs": recipe.differs if recipe is not None else "",
        "reason": reason,
    }
    if run is None or recipe is None:
        return values
    published = published_us(row, recipe, run)
    values |= {
        "published_s": None if published is None else published / 1e6,
        "predicted_s": run.time_us / 1e6,
        "error_percent": None if published is None else 100 * (run.time_us / published - 1),
        "mfu": run.mfu,
        "hbm_needed_bytes": run.memory.needed_bytes,
        "compile_s": run.compile_s,
        "simulate_s": run.simulate_s,
        "parts": [
            {
                "part": part.part,
                "pass": part.in_pass,
                "s": run.us(part.cycles) / 1e6,
                "exposed_s": run.us(part.exposed_cycles) / 1e6,
                "limit": part.limit,
                "limit_share": part.limit_share,
            }
            for part in run.parts
        ],
    }
    return values


def summary_of(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return errors over all predicted rows."""
    errors = [abs(row["error_percent"]) for row in rows if row["error_percent"] is not None]
    return {
        "predicted": len(errors),
        "median_error_percent": statistics.median(errors) if errors else None,
        "worst_error_percent": max(errors, default=None),
    }


_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    textual("chip", lambda row: f"{row['chip']} {row['topology']}"),
    textual("step", lambda row: row["step"]),
    numeric("published s", lambda row: row["published_s"], ",.3f"),
    numeric("predicted s", lambda row: row["predicted_s"], ",.3f"),
    numeric("error %", lambda row: row["error_percent"], "+.1f"),
    numeric("MFU", lambda row: row.get("mfu"), ".1%"),
    textual("why not, or what differs", lambda row: row["reason"] or row["differs"]),
)


@click.command()
@click.option("--only", help='Rows whose chip, topology or name contains this, such as --only "v5p" or --only "32b".')
@worker_options("one step", time_limit_s=TIME_LIMIT_S)
@output_options
def main(only: str | None, workers: Workers, json_file: str | None, quiet: bool) -> None:
    """Predict every published step that the example can express. Exit code 1: no row has that name.

    Example: python benchmarks/training_steps.py --only 32b --workers 1 --json build/training_steps.json
    """
    check_target(json_file)
    published = rows_of(PUBLISHED, only)
    rows: list[dict[str, Any]] = []
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        bar.planned(len(published))
        jobs = []
        for row in published:
            recipe = recipe_of(row)
            if recipe is None or recipe.unsupported:
                jobs.append(None)
                bar.done(row["op"])
                continue
            function = NamedFunction(f"{MODEL}:train", dict(recipe.parameters))
            source = StepMaker(function=function, topology=recipe.topology, axes=dict(recipe.mesh))
            chip = with_flags(chip_named(recipe.chip), recipe.flags)
            job = submit_step(pool, source, chip, name=f"{row['op']} on {row['chip']}", topology=recipe.topology)
            job.add_done_callback(lambda _, name=row["op"]: bar.done(name))
            jobs.append(job)
        for row, job in zip(published, jobs, strict=True):
            recipe = recipe_of(row)
            if job is None:
                reason = recipe.unsupported if recipe is not None else "not listed in step_recipes.py"
                rows.append(record(row, recipe, None, reason))
                continue
            try:
                rows.append(record(row, recipe, result_of(job, pool, bar), ""))
            except Exception as error:  # noqa: BLE001 -- why it is not predicted
                outcome = Outcome.failed(row["op"], error)
                rows.append(record(row, recipe, None, f"{outcome.status}: {outcome.located_reason}"))
    if json_file is not None:
        write_json(json_file, "training_steps", rows, summary_of(rows))
    if json_file != "-":
        out = console()
        out.print(", ".join(f"{name} {version}" for name, version in versions().items() if version), markup=False)
        show_table(out, _COLUMNS, rows)
        out.print(", ".join(f"{name} {value}" for name, value in summary_of(rows).items()), markup=False)
    sys.exit(0 if rows else 1)


if __name__ == "__main__":
    main()
