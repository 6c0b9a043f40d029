"""Compare the search of `systolic tune` in twelve compiles with the best of sixty tiles.

    python benchmarks/exhaustive_sweep.py sweep     # sixty tiles for each of sixteen products; an hour on two cores
    python benchmarks/exhaustive_sweep.py search    # the search against the committed sweep; ten minutes
    python benchmarks/exhaustive_sweep.py model     # rank correlation and error of the model over all its rows

`sweep` writes `benchmarks/data/exhaustive_sweep.csv`, and resumes where it was stopped. For each product and each tile
that the planner knows, the configuration with the best modeled time is a candidate; the forty best of these and twenty
more, drawn with a fixed seed from the others, are compiled and simulated. `search` begins with neither trials nor
compiled programs. All times are simulated or modeled, none is measured.
"""

from __future__ import annotations

import csv
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.stats import rankdata

from systolic.chips import Chip, chip
from systolic.cost import TimedConfig, estimated_config, ranked_configs
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import MatmulSpec

DATA = Path(__file__).parent / "data" / "exhaustive_sweep.csv"
CHIPS = ("v5e", "v5p", "v6e", "v7x")
PROBLEMS = {
    "square": (4096, 4096, 4096),
    "prefill": (8192, 4096, 14336),
    "decode": (32, 8192, 28672),
    "edge": (3000, 5000, 7000),
}
_BEST, _DRAWN = 40, 20
_FIELDS = (
    *("tile_m", "tile_k", "tile_n", "subtile_m", "subtile_n"),
    *("pipeline", "num_stages", "grid_order", "fill_chunks"),
)
_COLUMNS: tuple[str, ...] = (
    "chip",
    "spec",
    "m",
    "k",
    "n",
    *_FIELDS,
    "modelled_us",
    "simulated_us",
    "bundles",
    "reason",
)


def of_each_tile(spec: MatmulSpec, its: Chip) -> list[TimedConfig]:
    """Return the configuration with the best modeled time of every tile, best first."""
    configs: dict[Tiles, TimedConfig] = {}
    for choice in ranked_configs(spec, its)[0]:
        configs.setdefault(choice.config.tiles, choice)
    return list(configs.values())


def candidates(spec: MatmulSpec, its: Chip) -> list[TimedConfig]:
    """Return the forty best by the model, and twenty drawn at random."""
    configs = of_each_tile(spec, its)
    rest = configs[_BEST:]
    return configs[:_BEST] + random.Random(f"{spec}{its.name}").sample(rest, min(_DRAWN, len(rest)))


def _products() -> Iterator[tuple[Chip, str, MatmulSpec]]:
    for name in CHIPS:
        for kind, sizes in PROBLEMS.items():
            yield chip(name), kind, MatmulSpec.of(*sizes, "bfloat16")


def _rows() -> list[dict[str, Any]]:
    if not DATA.exists():
        return []
    with DATA.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def _write(rows: list[dict[str, Any]]) -> None:
    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["chip"], list(PROBLEMS).index(row["spec"]), *(str(row[name]).zfill(6) for name in _FIELDS))

    DATA.parent.mkdir(exist_ok=True)
    partial = DATA.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=order))
    partial.replace(DATA)


def _fields(config: KernelConfig) -> dict[str, Any]:
    tiles = {name: getattr(config.tiles, name) for name in _FIELDS[:3]}
    return {**tiles, **{name: getattr(config, name) for name in _FIELDS[3:]}}


def _config(row: dict[str, Any]) -> KernelConfig:
    numbers = {field: int(row[field]) for field in _FIELDS if field not in ("pipeline", "grid_order")}
    tiles = Tiles(**{field: numbers.pop(field) for field in _FIELDS[:3]})
    return KernelConfig(tiles=tiles, pipeline=row["pipeline"], grid_order=row["grid_order"], **numbers)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("chip", "spec", *_FIELDS))


@click.group()
def main() -> None:
    """Run an exhaustive sweep, and compare the search and the model with it."""


@main.command()
def sweep() -> None:
    """Compile and simulate sixty tiles for each product."""
    from systolic.compiler import CompilerError, WorkerPool
    from systolic.ops.matmul.programs import programs_of
    from systolic.simulator import SimulationError
    from systolic.timing import submit_simulation

    rows = _rows()
    existing_keys = {_key(row) for row in rows}
    with WorkerPool(max_workers=2, time_limit_s=300) as pool:
        for target, kind, spec in _products():
            programs = programs_of(spec, target)
            jobs = []
            for choice in candidates(programs.computed, target):
                row = {"chip": target.name, "spec": kind, "m": spec.m, "k": spec.k, "n": spec.n}
                row |= _fields(choice.config) | {"modelled_us": f"{choice.modelled.time_us:.2f}"}
                if _key(row) not in existing_keys:
                    fn = programs.kernel(choice.config)
                    jobs.append(
                        (row, submit_simulation(pool, fn, programs.arguments, target, label=str(choice.config)))
                    )
            for row, job in jobs:
                try:
                    measurement = job.result()
                    assert measurement.run is not None
                    row |= {
                        "simulated_us": f"{measurement.time_us:.2f}",
                        "bundles": measurement.run.bundles,
                        "reason": "",
                    }
                except (CompilerError, SimulationError) as error:
                    row |= {"simulated_us": "", "bundles": "", "reason": str(error).splitlines()[0][:100]}
                rows.append(row)
                _write(rows)
            click.echo(f"{target.name} {kind}: {len(jobs)} tried now")


@main.command()
@click.option("--time-budget", default=120.0, show_default=True)
def search(time_budget: float) -> None:
    """Search every product in an empty cache, and compare with the sweep's best."""
    from systolic.store import TrialStore
    from systolic.tuning import tune

    regrets = []
    for target, kind, spec in _products():
        best = min(float(row["simulated_us"]) for row in _of(target.name, kind) if row["simulated_us"])
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            start_s = time.monotonic()
            tuned = tune(
                spec, target, time_budget_s=time_budget, against_xla=False, store=TrialStore(Path(folder) / "t.sqlite")
            )
        assert tuned.winner is not None
        assert tuned.winner.time_us is not None
        regrets.append(tuned.winner.time_us / best - 1)
        click.echo(
            f"{target.name} {kind:8} sweep {best:9.1f} µs  search {tuned.winner.time_us:9.1f} µs  {regrets[-1]:+6.1%}  "
            f"{tuned.compiled:2} compiles, {time.monotonic() - start_s:4.0f} s, {tuned.end}"
        )
    near_count = sum(regret <= 0.02 for regret in regrets)
    click.echo(f"within 2 % of the sweep's best: {near_count} of {len(regrets)}; at worst {max(regrets):+.1%}")


@main.command()
def model() -> None:
    """Compare the planner's model with the sweep's rows."""
    for name in CHIPS:
        measured = [row for row in _of(name) if row["simulated_us"]]
        for row in measured:
            spec = MatmulSpec.of(int(row["m"]), int(row["k"]), int(row["n"]), "bfloat16")
            row["modelled_us"] = estimated_config(spec, _config(row), chip(name)).modelled.time_us
        error = [row["modelled_us"] / float(row["simulated_us"]) - 1 for row in measured]
        click.echo(
            f"{name}: {len(measured)} kernels, median error {statistics.median(map(abs, error)):.1%}, "
            f"Spearman {_spearman(measured):.3f} over all, of each product "
            + ", ".join(f"{_spearman([row for row in measured if row['spec'] == kind]):.3f}" for kind in PROBLEMS)
        )


def _of(chip_name: str, kind: str | None = None) -> list[dict[str, Any]]:
    return [row for row in _rows() if row["chip"] == chip_name and kind in (None, row["spec"])]


def _spearman(rows: list[dict[str, Any]]) -> float:
    ranks = [rankdata([float(row[key]) for row in rows]) for key in ("modelled_us", "simulated_us")]
    return float(np.corrcoef(ranks)[0, 1])


if __name__ == "__main__":
    main()
