"""Compare the model that chooses tiles with simulated times.

    python benchmarks/step_estimate.py [--chip v5e,v6e,v7x] [--problem 4096,4096,4096 …] [--samples 12] [--json FILE]

For each product, configurations are drawn among the planner's best two hundred (seeded), compiled by the TPU compiler,
simulated, and compared with the pipeline model over estimated steps. It prints the error of the model, the rank
correlation, and the regret: how much slower the planner's choice is than the fastest that was simulated. Operands have
no contents: only shapes matter. All times are simulated or modeled, none is measured.
"""

from __future__ import annotations

import functools
import json
import random
import statistics
from pathlib import Path
from typing import Any

import click

from systolic.chips import Chip
from systolic.cli.options import chip_option
from systolic.cost import code_bundles, estimated_config, ranked_configs
from systolic.schedule import KernelConfig, vmem_limit
from systolic.spec import MatmulSpec, Operands

# The model's constants are fitted to the first; the second were not used.
_FITTED = (
    "512,512,512",
    "2048,2048,2048",
    "4096,4096,4096",
    "2048,7168,1536",
    "2048,512,32768",
    "16,4096,14336",
    "1000,3000,2000",
)
_CHECKED = (
    "1024,1024,1024",
    "2048,4096,4096",
    "4096,3584,14336",
    "2048,14336,4096",
    "64,7168,1536",
    "256,4096,14336",
    "3000,1000,5000",
)
_AMONG = 200


def product(lhs: Any, rhs: Any, *, spec: MatmulSpec, config: KernelConfig, chip: Chip) -> Any:
    """Return the kernel alone with this configuration."""
    from systolic.kernels.epilogue import Functions
    from systolic.ops.matmul.kernel.auto_pipeline import auto_pipeline_matmul
    from systolic.ops.matmul.kernel.launch import MatmulKernel
    from systolic.ops.matmul.kernel.manual_dma import manual_dma_matmul

    manual = config.pipeline == "manual"
    kernel = manual_dma_matmul if manual else auto_pipeline_matmul
    limit_bytes = vmem_limit(spec, config, chip)
    static = MatmulKernel(spec=spec, functions=Functions(), config=config, chip=chip, vmem_limit_bytes=limit_bytes)
    return kernel(Operands(lhs, rhs), static)[0]


def sample(spec: MatmulSpec, chip: Chip, count: int) -> list[KernelConfig]:
    """Return the planner's choice, and configurations drawn among its best."""
    configs = [choice.config for choice in ranked_configs(spec, chip, count=_AMONG)[0]]
    drawn = random.Random(f"{spec}{chip.name}").sample(configs[1:], min(count - 1, len(configs) - 1))
    return [configs[0], *drawn]


@click.command()
@chip_option("v5e,v6e,v7x")
@click.option("--problem", "specs", multiple=True, default=_FITTED + _CHECKED, metavar="M,K,N", show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--samples", default=12, show_default=True, help="Configurations of each product.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Keep all rows.")
def main(chips: tuple[Chip, ...], specs: tuple[str, ...], dtype: str, samples: int, json_file: Path | None) -> None:
    """Compare modeled with simulated times of many configurations."""
    import jax

    from systolic.bench import abstract_operands
    from systolic.compiler import CompilerError, WorkerPool
    from systolic.simulator import SimulationError
    from systolic.timing import submit_simulation

    jax.config.update("jax_platforms", "cpu")
    rows = []
    with WorkerPool(max_workers=2, time_limit_s=120) as pool:
        jobs = []
        for chip in chips:
            for sizes in specs:
                m, k, n = map(int, sizes.split(","))
                spec = MatmulSpec.of(m, k, n, dtype)
                for config in sample(spec, chip, samples):
                    fn = functools.partial(product, spec=spec, config=config, chip=chip)
                    job = submit_simulation(pool, fn, abstract_operands(spec), chip, label=str(config))
                    jobs.append((chip, spec, config, job))
        for chip, spec, config, job in jobs:
            modeled = estimated_config(spec, config, chip).modelled
            try:
                measurement = job.result()
            except (CompilerError, SimulationError) as error:
                click.echo(f"{chip.name} {spec.m},{spec.k},{spec.n} {config}: {error}"[:200], err=True)
                continue
            assert measurement.run is not None
            rows.append(
                {
                    "chip": chip.name,
                    "spec": f"{spec.m},{spec.k},{spec.n}",
                    "config": str(config),
                    "tiles": [config.tiles.tile_m, config.tiles.tile_k, config.tiles.tile_n],
                    "subtiles": [config.subtile_m, config.subtile_n],
                    "pipeline": config.pipeline,
                    "num_stages": config.num_stages,
                    "grid_order": config.grid_order,
                    "fill_chunks": config.fill_chunks,
                    "simulated_us": measurement.time_us,
                    "modelled_us": modeled.time_us,
                    "bundles": measurement.run.bundles,
                    "modelled_bundles": code_bundles(spec, config, chip),
                }
            )
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for chip in chips:
        _report(chip.name, [row for row in rows if row["chip"] == chip.name])


def _report(chip: str, rows: list[dict[str, Any]]) -> None:
    click.echo(f"\n{chip}: modelled against simulated, {len(rows)} kernels")
    for name in dict.fromkeys(row["spec"] for row in rows):
        matching_rows = [row for row in rows if row["spec"] == name]
        error = _errors(matching_rows)
        ranks = [_ranks([row[key] for row in matching_rows]) for key in ("modelled_us", "simulated_us")]
        click.echo(
            f"  {name:15} median error {statistics.median(map(abs, error)):6.1%} bias {statistics.median(error):+6.1%} "
            f"Spearman {statistics.correlation(*ranks) if len(matching_rows) > 2 else float('nan'):5.2f}  "
            f"chosen {matching_rows[0]['simulated_us']:9.1f} µs  regret {_regret(matching_rows):5.1%}"
        )
    for group, names in (("fitted", _FITTED), ("checked", _CHECKED)):
        matching_rows = [row for row in rows if row["spec"] in names]
        if matching_rows:
            error = [abs(error) for error in _errors(matching_rows)]
            specs = dict.fromkeys(row["spec"] for row in matching_rows)
            regrets = [_regret([row for row in matching_rows if row["spec"] == name]) for name in specs]
            click.echo(
                f"  {group}: median error {statistics.median(error):.1%}, "
                f"regret {statistics.fmean(regrets):.1%} on average, {max(regrets):.1%} at worst"
            )
    code = [row["modelled_bundles"] / row["bundles"] - 1 for row in rows]
    click.echo(f"  code: median error {statistics.median(map(abs, code)):.0%}, bias {statistics.median(code):+.0%}")


def _errors(rows: list[dict[str, Any]]) -> list[float]:
    return [row["modelled_us"] / row["simulated_us"] - 1 for row in rows]


def _regret(rows: list[dict[str, Any]]) -> float:
    """Return how much slower the planner's choice, the first row, is than the fastest."""
    return rows[0]["simulated_us"] / min(row["simulated_us"] for row in rows) - 1


def _ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    for rank, place in enumerate(order):
        ranks[place] = float(rank)
    return ranks


if __name__ == "__main__":
    main()
