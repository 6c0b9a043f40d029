"""Run the ladder: for every rung and size, check rules and results, compile and simulate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from systolic.bench.accuracy import Accuracy, ResultError, check
from systolic.compiler import WorkerPool
from systolic.cost import machine_roofline
from systolic.lessons.ladder.cell import Cell, Request
from systolic.lessons.ladder.results import NOT_RUN, fastest, row_of
from systolic.lessons.ladder.row import LadderRow
from systolic.schedule import Tiles
from systolic.spec import MatmulSpec
from systolic.timing.opponent import faster_xla
from systolic.timing.outcome import Outcome
from systolic.timing.runner import QUIET, Progress, Runner, Running

__all__ = ["Request", "run_ladder"]


def run_ladder(request: Request, pool: WorkerPool | None, progress: Progress = QUIET) -> list[LadderRow]:
    """Return one row for every rung and size, in that order; without a pool, and so a compiler, rows have no time."""
    cells = [Cell.of(request, rung, size) for rung in request.rungs for size in request.sizes]
    checks = sum(cell.is_checked for cell in cells)
    # XLA's time is the baseline, even of a refusal; with nothing but broken rules it is useless.
    opponents = {cell.size: cell.xla() for cell in cells if not cell.violations}
    if pool is None:
        progress.planned(checks)
        xla: dict[int, list[Running]] = {}
        jobs: list[dict[Tiles, Running]] = [{} for _ in cells]
    else:
        progress.planned(checks + sum(map(len, opponents.values())) + sum(len(cell.tried) for cell in cells))
        runner = Runner(pool, progress)
        xla = {size: [runner.start(experiment) for experiment in forms] for size, forms in opponents.items()}
        jobs = [{tiles: runner.start(cell.experiment(tiles)) for tiles in cell.tried} for cell in cells]
    checked = [_checked(*pair, progress) for pair in zip(cells, jobs, strict=True)]  # while the workers compile
    baselines = {size: _opponent(request, size, running) for size, running in xla.items()}
    return [
        row_of(cell, _outcomes(cell_jobs), baselines.get(cell.size, NOT_RUN), accuracy)
        for cell, cell_jobs, accuracy in zip(cells, jobs, checked, strict=True)
    ]


def _opponent(request: Request, size: int, running: Sequence[Running]) -> Outcome:
    spec = MatmulSpec.of(size, size, size, request.dtype)
    return faster_xla([form.outcome() for form in running], machine_roofline(spec, request.chip).hbm_us)


def _outcomes(jobs: Mapping[Tiles, Running]) -> dict[Tiles, Outcome]:
    return {tiles: running.outcome() for tiles, running in jobs.items()}


def _checked(cell: Cell, jobs: Mapping[Tiles, Running], progress: Progress) -> Accuracy | ResultError | None:
    """Run the kernel in TPU interpret mode and compare with float64; None if that is not requested."""
    if not cell.is_checked:
        return None
    from jax.experimental.pallas import tpu as pltpu

    tiles = fastest(cell, _outcomes(jobs))[0] if cell.swept else cell.tiles  # a sweep has to be waited for
    interpret = pltpu.InterpretParams(uninitialized_memory="nan")
    roundings = cell.rung.output_roundings(cell.spec, tiles)
    try:
        check_result = check(cell.multiply(tiles, interpret=interpret), cell.spec, roundings)
    except ResultError as error:
        check_result = error
    progress.done(f"{cell.rung.name} {cell.size} checked")
    return check_result
