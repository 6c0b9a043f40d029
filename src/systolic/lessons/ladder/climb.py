"""Climbs the ladder: for every rung and size, is it legal, is it right, does it compile, how long does it take."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from systolic.bench.accuracy import check
from systolic.bench.comparison import abstract_operands, speed, xla_matmul
from systolic.chips import Chip
from systolic.compiler import CompilerCrash, CompilerRefusal, CompilerTimeout, WorkerPool
from systolic.lessons.ladder.row import Baseline, LadderRow
from systolic.lessons.ladder.rung import Rung
from systolic.lessons.ladder.sweep import Sweep
from systolic.measure import Measurement, submit_simulation
from systolic.problem import MatmulProblem
from systolic.simulator import SimulationError
from systolic.tiling import MIB, Tiles, total_bytes

# Above this size interpreting a product on a CPU takes longer than anyone waits.
LARGEST_CHECKED = 1024

# A step of more elements than this takes the compiler minutes, because the whole of it is unrolled. Where its buffers
# alone are over the limit the answer is known: the compiler has never been seen to need less than the buffers.
_LONG_STEP = 2048 * 2048 * 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to climb: rungs × square sizes on one chip.

    `tiles` is for the rungs that take tiles, `splits` for v2; `sweep_trials` of zero means no sweep.
    """

    rungs: tuple[Rung, ...]
    chip: Chip
    dtype: str
    sizes: tuple[int, ...]
    tiles: Tiles | None = None
    splits: int = 4
    sweep_trials: int = 0
    checked: bool = True


def climb(
    request: Request,
    pool: WorkerPool | None,
    *,
    planned: Callable[[int], None] = lambda jobs: None,
    done: Callable[[str], None] = lambda label: None,
) -> list[LadderRow]:
    """One row for every rung and size, in that order.

    Args:
      pool: where to compile; None where there is no compiler, and then no row has a time.
      planned: told how many jobs there are.
      done: told of each job that ended.
    """
    climbs = [_RungAtSize(request, rung, size) for rung in request.rungs for size in request.sizes]
    baselines: dict[int, Future[Measurement]] = {}
    jobs = 0
    if pool is not None:
        for size in request.sizes:
            if any(climb.size == size and climb.compiles for climb in climbs):
                problem = MatmulProblem.of(size, size, size, request.dtype)
                label = f"xla {size}"
                baselines[size] = submit_simulation(
                    pool, xla_matmul(problem), abstract_operands(problem), request.chip, label=label
                )
                baselines[size].add_done_callback(lambda _, label=label: done(label))
        for climb in climbs:
            jobs += climb.submit(pool, done)
    planned(jobs + len(baselines) + sum(climb.to_check for climb in climbs))
    for climb in climbs:  # while the workers compile
        climb.check(done)
    known = {size: _baseline(future) for size, future in baselines.items()}
    return [climb.row(known.get(climb.size, Baseline(measurement=None, reason="no compiler"))) for climb in climbs]


def _baseline(future: Future[Measurement]) -> Baseline:
    try:
        return Baseline(measurement=future.result())
    except (CompilerRefusal, CompilerCrash, CompilerTimeout, SimulationError) as error:
        return Baseline(measurement=None, reason=str(error))


class _RungAtSize:
    """One row in the making."""

    def __init__(self, request: Request, rung: Rung, size: int) -> None:
        self.request = request
        self.rung = rung
        self.size = size
        self.problem = MatmulProblem.of(size, size, size, request.dtype)
        self.tiles = rung.default_tiles(self.problem, request.splits)
        if request.tiles is not None and rung.takes_tiles:
            self.tiles = request.tiles
        self.sweeping = bool(request.sweep_trials) and rung.sweeps and request.tiles is None
        self.violations = rung.violations(self.problem, self.tiles, request.chip)
        self.sweep: Sweep | None = None
        if self.sweeping and not any(violation.rule == "dtype" for violation in self.violations):
            self.sweep = Sweep.plan(rung, self.problem, request.chip, request.sweep_trials)
            if self.sweep.tiles:
                self.violations = []
        self.foregone = "" if self.violations or self.sweep else self._foregone()
        self.future: Future[Measurement] | None = None
        self.accuracy: tuple[float, float] | None = None
        self.error = ""

    @property
    def compiles(self) -> bool:
        """Whether there is something to ask the compiler."""
        return not self.violations and not self.foregone

    @property
    def to_check(self) -> bool:
        """Whether the result is compared with float64."""
        return self.request.checked and not self.violations and not self.foregone and self.size <= LARGEST_CHECKED

    def _foregone(self) -> str:
        """The refusal of a step that is too long to ask about."""
        needed = total_bytes(self.rung.buffers(self.problem, self.tiles))
        limit = self.request.chip.scoped_vmem_bytes
        step = self.tiles.tile_m * self.tiles.tile_k * self.tiles.tile_n
        if step <= _LONG_STEP or needed <= limit:
            return ""
        return (
            f"VMEM: the buffers alone need {needed / MIB:.2f} MiB of {limit / MIB:.2f} MiB; "
            "not sent to the compiler, which takes minutes to say so of a step this long"
        )

    def submit(self, pool: WorkerPool, done: Callable[[str], None]) -> int:
        """Sends what has to be compiled; returns how many jobs that is."""
        if not self.compiles:
            return 0
        label = f"{self.rung.name} {self.size}"
        if self.sweep is not None:
            return self.sweep.submit(pool, label, done)
        self.future = submit_simulation(
            pool, self.multiply(self.tiles), abstract_operands(self.problem), self.request.chip, label=label
        )
        self.future.add_done_callback(lambda _: done(label))
        return 1

    def multiply(self, tiles: Tiles, **options: object) -> Callable[..., object]:
        """The rung as a function of its operands alone."""
        return functools.partial(self.rung.multiply, tiles=tiles, dtype_out=self.problem.dtype_out, **options)

    def check(self, done: Callable[[str], None]) -> None:
        """Runs the kernel in TPU interpret mode and compares with float64."""
        if not self.to_check:
            return
        from jax.experimental.pallas import tpu as pltpu

        if self.sweep is not None:
            self.tiles = self.sweep.winner() or self.tiles
        interpret = pltpu.InterpretParams(uninitialized_memory="nan")
        roundings = self.rung.output_roundings(self.problem, self.tiles)
        result = check(self.multiply(self.tiles, interpret=interpret), self.problem, roundings)
        self.accuracy = (result.max_abs_error, result.tolerance)
        done(f"{self.rung.name} {self.size} checked")

    def row(self, baseline: Baseline) -> LadderRow:
        """The finished row; waits for the compiler."""
        row = self._blank()
        if self.violations:
            return dataclasses.replace(row, status="illegal", reason="; ".join(map(str, self.violations)))
        if self.foregone:
            limit = self.request.chip.scoped_vmem_bytes
            needed = total_bytes(self.rung.buffers(self.problem, self.tiles))
            return dataclasses.replace(
                row, status="refused", reason=self.foregone, vmem_requested_bytes=needed, vmem_available_bytes=limit
            )
        if self.accuracy is not None:
            error, tolerance = self.accuracy
            right = error <= tolerance
            row = dataclasses.replace(
                row,
                check="right" if right else "wrong",
                max_abs_error=error,
                tolerance=tolerance,
                status="ok" if right else "wrong",
                reason="" if right else f"largest error {error:.3g}, where rounding explains {tolerance:.3g}",
            )
        return self._timed(row, baseline)

    def _blank(self) -> LadderRow:
        problem, tiles = self.problem, self.tiles
        if self.sweep is not None:
            tiles = self.sweep.winner() or tiles
        return LadderRow(
            rung=self.rung.name,
            chip=self.request.chip.name,
            m=problem.m,
            k=problem.k,
            n=problem.n,
            dtype=problem.dtype_lhs,
            dtype_out=problem.dtype_out,
            tile_m=tiles.tile_m,
            tile_k=tiles.tile_k,
            tile_n=tiles.tile_n,
            status="ok",
            least_hbm_bytes=problem.least_hbm_bytes,
            jax=_version("jax"),
            libtpu=_version("libtpu"),
            trials=self.sweep.trials() if self.sweep is not None else (),
        )

    def _timed(self, row: LadderRow, baseline: Baseline) -> LadderRow:
        future = self.sweep.best() if self.sweep is not None else self.future
        if future is None:
            return (
                row if self.sweep is None else dataclasses.replace(row, status="refused", reason=self.sweep.verdict())
            )
        try:
            measurement = future.result()
        except CompilerRefusal as refusal:
            return dataclasses.replace(
                row,
                status="refused",
                reason=refusal.summary,
                vmem_requested_bytes=refusal.requested_bytes,
                vmem_available_bytes=refusal.available_bytes,
            )
        except (CompilerCrash, CompilerTimeout) as failure:
            return dataclasses.replace(row, status="refused", reason=str(failure))
        except SimulationError as error:
            return dataclasses.replace(row, reason=f"compiled, but not simulated: {error}")
        run = measurement.run
        assert run is not None
        rate = speed(self.problem, self.request.chip, measurement.time_us)
        row = dataclasses.replace(
            row,
            time_us=measurement.time_us,
            provenance=measurement.provenance,
            tflops=rate.tflops,
            percent_of_peak=rate.percent_of_peak,
            peak_tflops=self.request.chip.peak_ops_per_s(self.problem.dtype_lhs) / 1e12,
            stall_share=run.stall_share,
            hbm_bytes=run.hbm_read_bytes + run.hbm_written_bytes,
            bundles=run.bundles,
            compile_s=measurement.compile_s,
            libtpu=measurement.libtpu_version,
        )
        if self.sweep is not None and row.status == "ok":
            row = dataclasses.replace(row, reason=self.sweep.verdict())
        xla = baseline.measurement
        if xla is None or xla.run is None:
            return dataclasses.replace(row, reason=row.reason or f"no XLA time: {baseline.reason}")
        return dataclasses.replace(
            row,
            xla_time_us=xla.time_us,
            xla_prefetch_us=xla.run.prefetch_us,
            ratio_to_xla=xla.time_us / measurement.time_us,
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
