"""Compare times from profiles of tiles, and tiles chosen by them without a compile, with full simulations.

    python benchmarks/tile_profiles.py accuracy [--chip v5e,v5p,v6e,v7x] [--dtype bfloat16]   # 60 shapes each
    python benchmarks/tile_profiles.py regret [--chip …]    # 40 shapes each: the plan against ten that are simulated
    python benchmarks/tile_profiles.py others               # tiles that others have published, from a CSV file

`tuning/profiling.py` picks tiles for other shapes, and no profile is made at these. Compiled programs are kept, so a
second run takes a minute. All times are simulated, profiled or modeled, none is measured.
"""

from __future__ import annotations

import csv
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from systolic import plan
from systolic.chips import Chip, chip
from systolic.cli.options import chip_option
from systolic.cost import TimedConfig, profiled_configs, ranked_configs
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import MatmulSpec
from systolic.timing import Measurement

OTHERS = Path(__file__).parent / "data" / "published_tiles.csv"

# Weights, [k, n], of published models: Qwen2.5 7B and 32B, Llama 2 7B and 13B, Phi-3 mini and medium, Gemma 2 27B,
# Gemma 3 12B, Llama 3.2 1B, Llama 3.1 405B, Command R, DBRX, Grok-1, Mistral Large; and squares.
WEIGHTS = (
    (3584, 18944),
    (18944, 3584),
    (3584, 4608),
    (5120, 27648),
    (27648, 5120),
    (4096, 11008),
    (11008, 4096),
    (5120, 13824),
    (13824, 5120),
    (3072, 8192),
    (8192, 3072),
    (3072, 9216),
    (5120, 17920),
    (17920, 5120),
    (4608, 36864),
    (36864, 4608),
    (3840, 15360),
    (15360, 3840),
    (2048, 8192),
    (8192, 2048),
    (16384, 53248),
    (53248, 16384),
    (8192, 22528),
    (22528, 8192),
    (6144, 10752),
    (10752, 6144),
    (6144, 32768),
    (12288, 28672),
    (28672, 12288),
    (1536, 1536),
    (2560, 2560),
    (5120, 5120),
    (6144, 6144),
    (7168, 7168),
    (10240, 10240),
    (12288, 12288),
)
ROWS = (16, 128, 1024, 4096, 16384)
_BEST = 10


def shapes(count: int) -> list[tuple[int, int, int]]:
    """Return `count` shapes, weights times numbers of rows, always the same ones."""
    all_shapes = [(rows, k, n) for k, n in WEIGHTS for rows in ROWS]
    return random.Random("shapes").sample(all_shapes, count)


@contextmanager
def _simulator() -> Iterator[Any]:
    """Yield a function that compiles and simulates a configuration of a product."""
    from systolic.compiler import WorkerPool
    from systolic.ops.matmul.programs import programs_of
    from systolic.timing import submit_simulation

    with WorkerPool(max_workers=2, time_limit_s=300) as pool:

        def submit(spec: MatmulSpec, its: Chip, config: KernelConfig) -> Future[Measurement]:
            programs = programs_of(spec, its)
            fn = programs.kernel(config)
            return submit_simulation(pool, fn, programs.arguments, its, label=f"{config} for {its.name}")

        yield submit


def _time_us(job: Future[Measurement]) -> float | None:
    from systolic.compiler import CompilerError
    from systolic.simulator import SimulationError

    try:
        return job.result().time_us
    except (CompilerError, SimulationError) as error:
        click.echo(str(error).splitlines()[0][:150], err=True)
        return None


@click.group()
def main() -> None:
    """Compare profiles of tiles with full simulations."""


@main.command()
@chip_option("v5e,v5p,v6e,v7x")
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--count", default=60, show_default=True, help="Shapes of each chip.")
def accuracy(chips: tuple[Chip, ...], dtype: str, count: int) -> None:
    """Compare profiled with simulated time of one tile per shape, drawn from the ten best profiled."""
    with _simulator() as submit:
        for target in chips:
            jobs = []
            seconds = []
            for m, k, n in shapes(count):
                spec = MatmulSpec.of(m, k, n, dtype)
                start_s = time.thread_time()
                profiled_configs(spec, target)
                seconds.append(time.thread_time() - start_s)
                choices = profiled_configs(spec, target, _BEST).configs
                if choices:
                    drawn = random.Random(f"{spec}{target.name}").choice(choices)
                    jobs.append((spec, drawn, submit(spec, target, drawn.config)))
            errors = []
            for spec, choice, job in jobs:
                time_us = _time_us(job)
                if time_us is not None:
                    error = choice.modelled.time_us / time_us - 1
                    errors.append(error)
                    if abs(error) > 0.02:
                        click.echo(f"  {spec.m},{spec.k},{spec.n} {choice.config}: {error:+.1%}")
            size = [abs(error) for error in errors]
            took_ms = [second * 1e3 for second in seconds[1:]]  # the first one reads the profiles
            click.echo(
                f"{target.name} {dtype}: {len(size)} of {count} shapes have profiled tiles; error median "
                f"{statistics.median(size):.2%}, worst {max(size):.1%}, "
                f"within 2 % {sum(error <= 0.02 for error in size)}; "
                f"ranking takes a core {statistics.median(took_ms):.1f} ms (median), {max(took_ms):.1f} at the longest"
            )


@main.command()
@chip_option("v5e,v5p,v6e,v7x")
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--count", default=40, show_default=True, help="Shapes of each chip.")
def regret(chips: tuple[Chip, ...], dtype: str, count: int) -> None:
    """Compare the plan's simulated time with the fastest of ten: the best by profiles and by the model."""
    with _simulator() as submit:
        for target in chips:
            jobs = []
            for m, k, n in shapes(count):
                spec = MatmulSpec.of(m, k, n, dtype)
                chosen_plan = plan(spec, target)
                best = [chosen_plan.config, *_ten(chosen_plan.computed, target)]
                jobs.append((spec, chosen_plan, [submit(spec, target, config) for config in dict.fromkeys(best)]))
            regrets = []
            for spec, chosen_plan, plan_jobs in jobs:
                times = [_time_us(job) for job in plan_jobs]
                if times[0] is None:
                    click.echo(f"  {spec}: the plan has no time")
                    continue
                lost = times[0] / min(time_us for time_us in times if time_us is not None) - 1
                regrets.append(lost)
                if lost > 0.02:
                    sizes = f"{spec.m},{spec.k},{spec.n}"
                    click.echo(
                        f"  {sizes} {chosen_plan.provenance} {chosen_plan.time_us:,.1f}, "
                        f"simulated {times[0]:,.1f}: {lost:+.1%}"
                    )
            provenances = [chosen_plan.provenance for _, chosen_plan, _ in jobs]
            click.echo(
                f"{target.name} {dtype}: {len(regrets)} shapes ({provenances.count('profiled')} from profiles), "
                f"regret median {statistics.median(regrets):.2%}, worst {max(regrets):.1%}"
            )


def _ten(spec: MatmulSpec, its: Chip) -> Sequence[KernelConfig]:
    """Return up to five best by profiles, and up to five of other tiles that are best by the model."""
    profiled: list[TimedConfig] = profiled_configs(spec, its, _BEST // 2).configs
    profiled_tiles = {choice.config.tiles for choice in profiled}
    modeled: dict[Tiles, TimedConfig] = {}
    for choice in ranked_configs(spec, its)[0]:
        if choice.config.tiles not in profiled_tiles:
            modeled.setdefault(choice.config.tiles, choice)
    others = list(modeled.values())[: _BEST - len(profiled)]
    return [choice.config for choice in (*profiled, *others)]


@main.command()
def others() -> None:
    """Compare the plan with published tiles for the same product, in this project's kernel."""
    with OTHERS.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    with _simulator() as submit:
        jobs = []
        for row in rows:
            target = chip(row["chip"])
            m, k, n = (int(row[name]) for name in "mkn")
            spec = MatmulSpec.of(m, k, n, row["dtype"])
            published_tiles = Tiles(**{name: int(row[name]) for name in ("tile_m", "tile_k", "tile_n")})
            try:
                # With the best slices, buffers and order for their tiles.
                their_config = plan(spec, target, tiles=published_tiles).config
            except ValueError as error:
                click.echo(f"  {row['chip']} {m},{k},{n}: {str(error).splitlines()[0]}")
                continue
            own_config = plan(spec, target).config
            jobs.append((row, submit(spec, target, their_config), submit(spec, target, own_config)))
        ratios = []
        for row, their_job, our_job in jobs:
            times = _time_us(their_job), _time_us(our_job)
            if times[0] is None or times[1] is None:
                continue
            ratios.append(times[0] / times[1])
            sizes = ",".join(row[name] for name in "mkn")
            click.echo(
                f"{row['chip']} {row['dtype']:14} {sizes:18} theirs {row['tile_m']}/{row['tile_k']}/{row['tile_n']} "
                f"{times[0]:9.1f} µs  ours {times[1]:9.1f} µs  {ratios[-1]:.3f}  {row['source']}"
            )
    near_count = sum(ratio >= 0.995 for ratio in ratios)
    click.echo(
        f"{len(ratios)} tiles of others: ours as fast (to 0.5 %) or faster on {near_count}, "
        f"geometric mean {statistics.geometric_mean(ratios):.3f}, worst {min(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
