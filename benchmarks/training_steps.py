"""Compare predicted with published times of whole training steps, row by row of `data/published_steps.csv`.

    python benchmarks/training_steps.py
    python benchmarks/training_steps.py --predict "32b" --workers 1
    python benchmarks/training_steps.py --maxtext

The first command prints the thirteen rows from kept results and compiles nothing. The second compiles and executes the
steps whose chip, topology or name contains the text, and keeps their results. The third prints the rows for
which MaxText's own step is listed (`examples/maxtext_step.py`); to predict them, MaxText has to be installed.

Each row is predicted by the model of `examples/transformer` with the row's sizes, mesh and flags. Nothing here, and no
constant of any chip, was fitted to a step. Where a row publishes a rate only, its time is the model's operations, as
MaxText counted them at that commit, over that rate.

A row takes the compiler minutes, with the flags of some recipes half an hour; programs are kept, so a run that was
stopped resumes there.
"""

from __future__ import annotations

import csv
import datetime
import json
import os
import statistics
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
from maxtext_recipes import MAXTEXT_RECIPES
from step_recipe import Recipe, recipe_of
from step_recipes import RECIPES

from systolic.chips import chip as chip_named
from systolic.chips import with_flags
from systolic.cli.options import Workers, output_options, worker_options
from systolic.cli.output import check_target, versions, write_json, write_text
from systolic.cli.progress import progress_bar, result_of
from systolic.cli.tables import console, show_table
from systolic.compiler import NamedFunction, WorkerPool
from systolic.report.columns import Column, numeric, textual
from systolic.steps import TIME_LIMIT_S, StepMaker, StepRun, submit_step
from systolic.timing.outcome import Outcome

PUBLISHED = Path(__file__).parent / "data" / "published_steps.csv"
# What docs/results/steps.md quotes.
KEPT = Path(__file__).parents[1] / "docs" / "numbers" / "steps.json"
KEPT_MAXTEXT = KEPT.with_name("steps_maxtext.json")
EXAMPLES = Path(__file__).parents[1] / "examples"


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the rows of the published file."""
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def kept_results(file: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the results that earlier runs have kept, by chip, topology and step."""
    rows = json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []
    return {_key(row): row for row in rows if row["recipe"] is not None}


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["chip"], row["topology"], row["step"] if "step" in row else row["op"]


def compiled_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the part of a recipe that changes the program, as JSON has it."""
    program = {name: asdict(recipe)[name] for name in ("chip", "topology", "mesh", "parameters", "flags")}
    return json.loads(json.dumps(program))


def kept_or_reason(
    row: dict[str, str], recipe: Recipe | None, kept: Mapping[tuple[str, ...], dict[str, Any]]
) -> dict[str, Any]:
    """Return the kept result of a row, or the reason why there is none."""
    if recipe is None:
        return record(row, None, None, "not listed in step_recipes.py")
    result = kept.get(_key(row))
    if result is not None and result["recipe"] == compiled_recipe(recipe):
        return result | {"source": recipe.source, "differs": recipe.differs}
    stale = f"not predicted since its recipe changed: --predict {row['op']!r}" if result is not None else ""
    return record(row, recipe, None, stale or "not predicted yet")


def lasting_result(result: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """Return what is kept of a row: its result, or an earlier one of the same recipe if only that has a time."""
    if earlier is None or result["predicted_s"] is not None or earlier["recipe"] != result["recipe"]:
        return result
    return earlier


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
        "source": recipe.source if recipe is not None else "",
        "differs": recipe.differs if recipe is not None else "",
        "reason": reason,
        "recipe": None,
    }
    if run is None or recipe is None:
        return values
    published = published_us(row, recipe, run)
    values |= {
        "published_s": None if published is None else published / 1e6,
        "predicted_s": run.time_us / 1e6,
        "error_percent": None if published is None else 100 * (run.time_us / published - 1),
        "recipe": compiled_recipe(recipe),
        "predicted_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "made_with": versions(),
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
    numeric("minutes", lambda row: (row["compile_s"] + row["simulate_s"]) / 60 if "compile_s" in row else None, ".0f"),
    textual("recipe", lambda row: row["source"]),
    textual("why not, or what differs", lambda row: row["reason"] or row["differs"]),
)


def _job(pool: WorkerPool, row: dict[str, str], recipe: Recipe) -> Future[StepRun]:
    place = EXAMPLES / ("maxtext_step.py" if recipe.is_maxtext else "transformer")
    loss = {} if recipe.is_maxtext else {"loss": "plain"}  # MaxText's
    function = NamedFunction(f"{place}:train", {**loss, **recipe.parameters})
    source = StepMaker(function=function, topology=recipe.topology, axes=dict(recipe.mesh))
    chip = with_flags(chip_named(recipe.chip), recipe.flags)
    return submit_step(pool, source, chip, name=f"{row['op']} on {row['chip']}", topology=recipe.topology)


@click.command()
@click.option(
    "--predict", help='Predict rows whose chip, topology or name contains this: "v5p", "32b". Keeps the results.'
)
@click.option("--maxtext", is_flag=True, help="Use MaxText's own step, for rows that list it; keep its results apart.")
@worker_options("one step", time_limit_s=TIME_LIMIT_S)
@output_options
def main(predict: str | None, maxtext: bool, workers: Workers, json_file: str | None, quiet: bool) -> None:
    """Compare predicted with published steps. Exit code 1: no step that --predict names can be predicted.

    Example: python benchmarks/training_steps.py --predict 32b --workers 1 --json build/training_steps.json
    """
    check_target(json_file)
    kept_file = KEPT_MAXTEXT if maxtext else KEPT
    kept = kept_results(kept_file)
    jobs: dict[tuple[str, ...], Future[StepRun]] = {}
    rows: list[dict[str, Any]] = []
    with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
        published = [(row, recipe_of(row, MAXTEXT_RECIPES if maxtext else RECIPES)) for row in rows_of(PUBLISHED)]
        if maxtext:
            published = [(row, recipe) for row, recipe in published if recipe is not None]
        for row, recipe in published:
            is_asked = predict is not None and predict in " ".join(_key(row))
            if is_asked and recipe is not None:
                jobs[_key(row)] = _job(pool, row, recipe)
        bar.planned(len(jobs))
        for row, recipe in published:
            job = jobs.get(_key(row))
            if job is None:
                rows.append(kept_or_reason(row, recipe, kept))
                continue
            try:
                rows.append(record(row, recipe, result_of(job, pool, bar), ""))
            except Exception as error:  # noqa: BLE001 -- why it is not predicted
                outcome = Outcome.failed(row["op"], error)
                failed = record(row, recipe, None, f"{outcome.status}: {outcome.located_reason}")
                rows.append(failed | {"recipe": recipe and compiled_recipe(recipe)})
            bar.done(row["op"])
    if jobs:
        lasting = [lasting_result(row, kept.get(_key(row))) for row in rows]
        write_text(kept_file, json.dumps({"rows": lasting}, indent=1) + "\n")
    if json_file is not None:
        write_json(json_file, "training_steps", rows, summary_of(rows))
    if json_file != "-":
        out = console()
        out.print(", ".join(f"{name} {version}" for name, version in versions().items() if version), markup=False)
        show_table(out, _COLUMNS, rows)
        out.print(", ".join(f"{name} {value}" for name, value in summary_of(rows).items()), markup=False)
    sys.exit(1 if predict and not jobs else 0)


if __name__ == "__main__":
    main()
