"""Profile tiles: compile each once, and simulate it as if copies took no time, to get the cost of its steps.

It chooses tiles that the model ranks high for common sizes, and prefers sizes that have few good tiles so far.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from systolic.chips import Chip
from systolic.compiler import WorkerPool
from systolic.cost import SKINNY_ROWS, Kind, Profile, ProfiledTile, Profiles, StepCost, ranked_configs, shipped_profiles
from systolic.schedule import IllegalTilesError, KernelConfig, Pipeline, require_legal
from systolic.simulator import SimulatedRun
from systolic.spec import MatmulSpec
from systolic.store import Subject
from systolic.timing.experiment import Experiment
from systolic.timing.runner import QUIET, Progress, Runner

# Steps of the grid that is profiled: two runs of blocks each way on each core, of three steps over k.
_BLOCKS, _STEPS_K = 2, 3
_FILL_CHUNKS = 4
_SPANS = 64
# Relative difference of modelled times: a tile that is slower by this much is worth e⁻¹ of the faster one.
_NEAR = 0.01

# Hidden and intermediate sizes of common models, [k, n], and squares.
_WEIGHTS = (
    *((size, size) for size in (512, 1024, 2048, 3072, 4096, 8192, 16384)),
    (4096, 6144),
    (4096, 14336),
    (14336, 4096),
    (8192, 28672),
    (28672, 8192),
    (7168, 1536),
    (1536, 24576),
    (512, 32768),
    (7168, 18432),
    (18432, 7168),
    (7168, 2048),
    (2048, 7168),
    (3584, 14336),
    (14336, 3584),
    (5120, 25600),
    (2560, 9728),
    (12288, 49152),
)
_ROWS = (8, 16, 32, 64, 128, 256, 512, 2048, 8192)


def profile_tiles(
    pool: WorkerPool, dtype: str, chip: Chip, *, count: int | None, progress: Progress = QUIET
) -> tuple[Profiles, dict[ProfiledTile, str]]:
    """Return profiles of the `count` most valuable tiles, and the reasons why tiles have none.

    Without a count, these are the tiles that have a profile in the package. `progress` counts sizes while tiles are
    ranked, then compiled tiles.
    """
    result: list[Profile] = []
    failed: dict[ProfiledTile, str] = {}
    kind = Kind.of(MatmulSpec.of(1, 1, 1, dtype), chip)
    assert kind is not None
    experiments: dict[ProfiledTile, Experiment] = {}
    shipped = shipped_profiles(kind)
    shipped_tiles = [profile.tile for profile in shipped.profiles] if shipped is not None else []
    for tile in shipped_tiles if count is None else worth_profiling(dtype, chip, count, progress):
        try:
            experiments[tile] = profile_experiment(dtype, chip, tile)
        except IllegalTilesError as error:
            failed[tile] = str(error)
    for tile, outcome in zip(experiments, Runner(pool, progress).run(experiments.values()), strict=True):
        if outcome.run is None:
            failed[tile] = outcome.reason
            continue
        try:
            result.append(Profile(tile=tile, cost=step_cost(outcome.run, tile), bundles=outcome.run.bundles))
        except ValueError as error:
            failed[tile] = str(error)
    made_with = Subject.here(MatmulSpec.of(1, 1, 1, dtype), chip.name)
    made = Profiles(
        kind=kind,
        kernel_version=made_with.kernel_version,
        jax=made_with.jax,
        libtpu=made_with.libtpu,
        command=f"systolic table profile --chip {chip.name} --dtype {dtype} "
        + ("--again" if count is None else f"--count {count}"),
        profiles=tuple(sorted(result, key=lambda entry: entry.tile)),
    )
    return made, failed


def worth_profiling(dtype: str, chip: Chip, count: int, progress: Progress = QUIET) -> list[ProfiledTile]:
    """Return tiles that the model ranks near the best for many of the common sizes."""
    times: list[dict[ProfiledTile, float]] = []
    common = list(_common(dtype))
    pipeline: Pipeline = "manual" if chip.cores_per_device == 1 else "auto"
    progress.planned(len(common))
    for spec in common:
        best: dict[ProfiledTile, float] = {}
        for choice in ranked_configs(spec, chip)[0]:
            even = all(size % tile == 0 for size, tile in _cuts(spec, choice.config))
            if even and choice.config.pipeline == pipeline:
                best.setdefault(_profiled(spec, choice.config), choice.modelled.time_us)
        if best:
            times.append(best)
        progress.done(f"model of {spec.m} × {spec.k} × {spec.n}")
    tiles = sorted({tile for best in times for tile in best})
    number = {tile: at for at, tile in enumerate(tiles)}
    worth = np.zeros((len(times), len(tiles)))
    for row, best in enumerate(times):
        least = min(best.values())
        for tile, time_us in best.items():
            worth[row, number[tile]] = np.exp(-(time_us / least - 1) / _NEAR)
    covered = np.full((len(times), 1), 1e-3)
    picked: list[int] = []
    for _ in range(min(count, len(tiles))):
        gain = np.log1p(worth / covered).sum(axis=0)
        gain[picked] = -1
        picked.append(int(np.argmax(gain)))
        covered += worth[:, picked[-1:]]
    return [tiles[at] for at in picked]


def step_cost(run: SimulatedRun, tile: ProfiledTile) -> StepCost:
    """Return a kernel's step costs in `profile_experiment`; raise ValueError if they are not rounds of one loop."""
    steps_k = 1 if tile.whole_k else _STEPS_K
    steps = 2 * _BLOCKS * _BLOCKS * _STEPS_K // 2
    core = run.later_core
    rounds = [span.end_cycles - span.begin_cycles for span in core.spans if span.kind == "round"]
    if tile.pipeline == "auto":
        rounds = rounds[1:]  # the first one only starts copies
    # The last step may come after the loop.
    if len(rounds) < steps - 1:
        raise ValueError(f"{len(rounds)} rounds in place of {steps} steps")
    ends = [cycles for at, cycles in enumerate(rounds[: steps - 1]) if at and at % steps_k == steps_k - 1]
    inner = [cycles for at, cycles in enumerate(rounds[: steps - 1]) if at and at % steps_k != steps_k - 1] or ends
    first, step, end = rounds[0], statistics.median(inner), statistics.median(ends)
    n_ends = steps // steps_k
    n_inner = steps - n_ends - (0 if tile.whole_k else 1)
    n_ends -= 1 if tile.whole_k else 0  # the first step is counted separately
    return StepCost(call=core.cycles - first - n_inner * step - n_ends * end, first=first, step=step, end=end)


def without_copies(chip: Chip) -> Chip:
    machine = dataclasses.replace(
        chip.machine,
        hbm_bytes_per_s=1e18,
        hbm_run_cycles=0.0,
        dma_latency_cycles=0,
        dma_issue_cycles=0,
        dma_wait_cycles=0,
    )
    return dataclasses.replace(chip, machine=machine)


def profile_experiment(dtype: str, chip: Chip, tile: ProfiledTile) -> Experiment:
    """Return a tile's kernel with 12 steps per core, without copies; raise IllegalTilesError if it is illegal."""
    from systolic.ops.matmul.programs import programs_of  # needs JAX, which `import systolic` does not import

    tiles, cores = tile.tiles, chip.cores_per_device
    # Each core has 2 × 2 blocks of three steps (four in a row if there is one row of blocks), or 12 of one step.
    steps_k = 1 if tile.whole_k else _STEPS_K
    blocks = _BLOCKS * _BLOCKS * (_STEPS_K if tile.whole_k else 1)
    rows = 1 if tiles.tile_m <= SKINNY_ROWS else _BLOCKS * cores
    columns = blocks * cores // rows
    spec = MatmulSpec.of(tiles.tile_m * rows, tiles.tile_k * steps_k, tiles.tile_n * columns, dtype)
    programs = programs_of(spec, chip)
    config = tile.config
    require_legal(programs.computed, config, chip)
    return Experiment(
        fn=programs.kernel(config),
        args=programs.arguments,
        chip=without_copies(chip),
        label=f"{config} for {chip.name}",
        spans=_SPANS,
    )


def _common(dtype: str) -> Iterator[MatmulSpec]:
    for rows, (k, n) in itertools.product(_ROWS, _WEIGHTS):
        yield MatmulSpec.of(rows if k != n else min(rows, k), k, n, dtype)


def _cuts(spec: MatmulSpec, config: KernelConfig) -> Sequence[tuple[int, int]]:
    tiles = config.tiles
    return (spec.m, tiles.tile_m), (spec.k, tiles.tile_k), (spec.n, tiles.tile_n)


def _profiled(spec: MatmulSpec, config: KernelConfig) -> ProfiledTile:
    """Return the tile with the fill chunks that it is profiled with."""
    fill_chunks = 1
    if config.pipeline == "manual":
        fill_chunks = next(
            chunks for chunks in (_FILL_CHUNKS, 2, 1) if chunks == 1 or config.tiles.tile_k % (chunks * 256) == 0
        )
    return dataclasses.replace(ProfiledTile.of(spec, config), fill_chunks=fill_chunks)
