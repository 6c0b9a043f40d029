"""Runs the ladder: for every rung and size, is it legal, is it right, does it compile, how long does it take."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from systolic.bench.accuracy import Accuracy, ResultError, check
from systolic.bench.comparison import abstract_operands, speed, xla_matmul
from systolic.chips import Chip
from systolic.compiler import CompilerRefusal, WorkerEnded, WorkerPool
from systolic.lessons.ladder.row import Baseline, LadderRow
from systolic.lessons.ladder.rungs import Rung
from systolic.lessons.ladder.sweep import Sweep, no_candidates
from systolic.schedule import MIB, Tiles, total_bytes
from systolic.simulator import SimulationError
from systolic.spec import MatmulSpec
from systolic.timing import Measurement, submit_simulation

# Above this size interpreting a product on a CPU takes longer than anyone waits.
LARGEST_CHECKED = 1024

# A step of more elements than this takes the compiler minutes, because the whole of it is unrolled. Where its buffers
# alone are over the limit the answer is known: the compiler has never been seen to need less than the buffers.
_LONG_STEP = 2048 * 2048 * 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run: rungs × square sizes on one chip.

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


def run_ladder(
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
    cells = [_RungAtSize(request, rung, size) for rung in request.rungs for size in request.sizes]
    multiplies = request.dtype in request.chip.dtypes
    checks = sum(cell.to_check for cell in cells)
    baselines: dict[int, Future[Measurement]] = {}
    if pool is None or not multiplies:
        planned(checks)
    else:
        # XLA's time says what there is to beat, also beside a refusal; beside nothing but broken rules it says nothing.
        sizes = [size for size in request.sizes if any(c.size == size and not c.violations for c in cells)]
        planned(checks + len(sizes) + sum(cell.jobs for cell in cells))
        for size in sizes:
            spec = MatmulSpec.of(size, size, size, request.dtype)
            label = f"xla {size}"
            baselines[size] = submit_simulation(
                pool, xla_matmul(spec), abstract_operands(spec), request.chip, label=label
            )
            baselines[size].add_done_callback(lambda _, label=label: done(label))
        for cell in cells:
            cell.submit(pool, done)
    for cell in cells:  # while the workers compile
        cell.check(done)
    known = {size: _baseline(future) for size, future in baselines.items()}
    return [cell.row(known.get(cell.size, Baseline(measurement=None))) for cell in cells]


def _baseline(future: Future[Measurement]) -> Baseline:
    try:
        return Baseline(measurement=future.result())
    except (CompilerRefusal, WorkerEnded, SimulationError) as error:
        return Baseline(measurement=None, reason=str(error))


class _RungAtSize:
    """One row in the making."""

    def __init__(self, request: Request, rung: Rung, size: int) -> None:
        self.request = request
        self.rung = rung
        self.size = size
        self.spec = MatmulSpec.of(size, size, size, request.dtype)
        self.tiles = rung.default_tiles(self.spec, request.splits)
        if request.tiles is not None and rung.takes_tiles:
            self.tiles = request.tiles
        self.violations = rung.violations(self.spec, self.tiles, request.chip)
        self.sweep: Sweep | None = None
        multiplied = request.dtype in request.chip.dtypes
        if request.sweep_trials and rung.sweeps and request.tiles is None and multiplied:
            sweep = Sweep.plan(rung, self.spec, request.chip, request.sweep_trials)
            self.sweep = sweep if sweep.tiles else None
            self.violations = [] if sweep.tiles else [no_candidates(size, request.chip)]
        self.foregone = "" if self.violations or self.sweep else self._foregone()
        self.future: Future[Measurement] | None = None
        self.accuracy: Accuracy | None = None
        self.error = ""

    @property
    def jobs(self) -> int:
        """How many programs the compiler is asked for."""
        if self.violations or self.foregone:
            return 0
        return len(self.sweep.tiles) if self.sweep is not None else 1

    @property
    def to_check(self) -> bool:
        """Whether the result is compared with float64."""
        return self.request.checked and not self.violations and not self.foregone and self.size <= LARGEST_CHECKED

    def _foregone(self) -> str:
        """The refusal of a step that is too long to ask about."""
        needed = total_bytes(self.rung.buffers(self.spec, self.tiles))
        limit = self.rung.vmem_limit_bytes or self.request.chip.scoped_vmem_bytes
        step = self.tiles.tile_m * self.tiles.tile_k * self.tiles.tile_n
        if step <= _LONG_STEP or needed <= limit:
            return ""
        return (
            f"VMEM: the buffers alone need {needed / MIB:.2f} MiB of {limit / MIB:.2f} MiB; "
            "not sent to the compiler, which takes minutes to say so of a step this long"
        )

    def submit(self, pool: WorkerPool, done: Callable[[str], None]) -> None:
        """Sends what has to be compiled."""
        if not self.jobs:
            return
        label = f"{self.rung.name} {self.size}"
        if self.sweep is not None:
            self.sweep.submit(pool, label, done)
            return
        self.future = submit_simulation(
            pool, self.multiply(self.tiles), abstract_operands(self.spec), self.request.chip, label=label
        )
        self.future.add_done_callback(lambda _: done(label))

    def multiply(self, tiles: Tiles, **options: object) -> Callable[..., object]:
        """The rung as a function of its operands alone."""
        return functools.partial(self.rung.multiply, tiles=tiles, dtype_out=self.spec.dtype_out, **options)

    def check(self, done: Callable[[str], None]) -> None:
        """Runs the kernel in TPU interpret mode and compares with float64."""
        if not self.to_check:
            return
        from jax.experimental.pallas import tpu as pltpu

        if self.sweep is not None:
            self.tiles = self.sweep.winner() or self.tiles
        interpret = pltpu.InterpretParams(uninitialized_memory="nan")
        roundings = self.rung.output_roundings(self.spec, self.tiles)
        try:
            self.accuracy = check(self.multiply(self.tiles, interpret=interpret), self.spec, roundings)
        except ResultError as error:
            self.error = str(error)
        done(f"{self.rung.name} {self.size} checked")

    def row(self, baseline: Baseline) -> LadderRow:
        """The finished row; waits for the compiler."""
        row = self._beside(baseline)
        if self.violations:
            return dataclasses.replace(row, status="illegal", reason="; ".join(map(str, self.violations)))
        if self.foregone:
            needed = total_bytes(self.rung.buffers(self.spec, self.tiles))
            return dataclasses.replace(
                row,
                status="refused",
                reason=self.foregone,
                vmem_requested_bytes=needed,
                vmem_available_bytes=self.rung.vmem_limit_bytes or self.request.chip.scoped_vmem_bytes,
            )
        if self.error:
            return self._timed(dataclasses.replace(row, check="wrong", status="wrong", reason=self.error))
        if self.accuracy is not None:
            error, tolerance = self.accuracy.max_abs_error, self.accuracy.tolerance
            row = dataclasses.replace(
                row,
                check="right" if self.accuracy.ok else "wrong",
                max_abs_error=error,
                tolerance=tolerance,
                status="ok" if self.accuracy.ok else "wrong",
                reason="" if self.accuracy.ok else f"largest error {error:.3g}, rounding explains {tolerance:.3g}",
            )
        return self._timed(row)

    def _beside(self, baseline: Baseline) -> LadderRow:
        """The row as far as it is known without this rung: what there is to beat."""
        row = self._blank()
        xla, chip = baseline.measurement, self.request.chip
        if row.dtype in chip.dtypes:
            row = dataclasses.replace(row, peak_tflops=chip.peak_ops_per_s(row.dtype) / 1e12)
        if xla is None or xla.run is None:
            return row if not baseline.reason else dataclasses.replace(row, reason=f"no XLA time: {baseline.reason}")
        return dataclasses.replace(
            row,
            xla_time_us=xla.time_us,
            xla_prefetch_us=xla.run.prefetch_us,
            xla_tflops=speed(self.spec, chip, xla.time_us).tflops,
        )

    def _blank(self) -> LadderRow:
        spec, tiles = self.spec, self.tiles
        if self.sweep is not None:
            tiles = self.sweep.winner() or tiles
        return LadderRow(
            rung=self.rung.name,
            chip=self.request.chip.name,
            m=spec.m,
            k=spec.k,
            n=spec.n,
            dtype=spec.dtype_lhs,
            dtype_out=spec.dtype_out,
            tile_m=tiles.tile_m,
            tile_k=tiles.tile_k,
            tile_n=tiles.tile_n,
            status="ok",
            least_hbm_bytes=spec.least_hbm_bytes,
            jax=_version("jax"),
            libtpu=_version("libtpu"),
            trials=self.sweep.trials() if self.sweep is not None else (),
        )

    def _timed(self, row: LadderRow) -> LadderRow:
        future = self.sweep.best() if self.sweep is not None else self.future
        if future is None:
            if self.sweep is None or not self.sweep.asked:
                return row  # there is no compiler here
            return _refused(row, self.sweep.verdict())
        try:
            measurement = future.result()
        except CompilerRefusal as refusal:
            return dataclasses.replace(
                _refused(row, refusal.summary),
                vmem_requested_bytes=refusal.requested_bytes,
                vmem_available_bytes=refusal.available_bytes,
            )
        except WorkerEnded as failure:
            return _refused(row, str(failure))
        except SimulationError as error:
            reason = f"compiled, but not simulated: {error}"
            return dataclasses.replace(row, reason=f"{row.reason}; {reason}" if row.status == "wrong" else reason)
        run = measurement.run
        assert run is not None
        rate = speed(self.spec, self.request.chip, measurement.time_us)
        verdict = self.sweep.verdict() if self.sweep is not None and row.status == "ok" else ""
        return dataclasses.replace(
            row,
            reason=verdict or row.reason,
            time_us=measurement.time_us,
            provenance=measurement.provenance,
            tflops=rate.tflops,
            percent_of_peak=rate.percent_of_peak,
            ratio_to_xla=row.xla_time_us / measurement.time_us if row.xla_time_us is not None else None,
            stall_share=run.stall_share,
            hbm_bytes=run.hbm_read_bytes + run.hbm_written_bytes,
            bundles=run.bundles,
            compile_s=measurement.compile_s,
            libtpu=measurement.libtpu_version,
        )


def _refused(row: LadderRow, reason: str) -> LadderRow:
    """The row refused; a wrong result stays wrong, which is worse, and says both."""
    if row.status == "wrong":
        return dataclasses.replace(row, reason=f"{row.reason}; refused as well: {reason}")
    return dataclasses.replace(row, status="refused", reason=reason)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
