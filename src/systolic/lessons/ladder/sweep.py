"""The sweep of v4 and v5: candidate tiles, compiled and simulated, and which won and why."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from systolic.bench.comparison import abstract_operands
from systolic.chips import Chip
from systolic.compiler import CompilerRefusal, WorkerEnded, WorkerPool
from systolic.lessons.ladder.row import Trial
from systolic.lessons.ladder.rungs import Rung, clipped
from systolic.schedule import LANES, MIB, Tiles, Violation, candidates, hbm_bytes, modelled_s
from systolic.simulator import SimulationError
from systolic.spec import MatmulSpec
from systolic.timing import Measurement, submit_simulation

_FAILURES = (CompilerRefusal, WorkerEnded, SimulationError)


@dataclass(slots=True)
class Sweep:
    """The candidates for one product, best modelled time first, and what became of them."""

    rung: Rung
    spec: MatmulSpec
    chip: Chip
    tiles: tuple[Tiles, ...]
    futures: dict[Tiles, Future[Measurement]] = field(default_factory=dict)
    asked: bool = False  # whether there was a compiler to ask

    @classmethod
    def plan(cls, rung: Rung, spec: MatmulSpec, chip: Chip, trials: int) -> Sweep:
        """The `trials` candidates with the best modelled times, and the rung's usual tiles where they are legal."""
        ranked = [
            tiles
            for tiles in candidates(spec, chip, accumulator=rung.accumulator)
            if not rung.violations(spec, tiles, chip)
        ]
        usual = clipped(rung.default_tiles(spec, 1), spec)
        chosen = ranked[:trials]
        if usual in ranked and usual not in chosen:
            chosen[-1:] = [usual]
        return cls(rung, spec, chip, tuple(chosen))

    def submit(self, pool: WorkerPool, label: str, done: Callable[[str], None]) -> None:
        """Sends every candidate to be compiled and simulated."""
        self.asked = True
        for tiles in self.tiles:
            name = f"{label} {tiles}"
            multiply = functools.partial(self.rung.multiply, tiles=tiles, dtype_out=self.spec.dtype_out)
            future = submit_simulation(pool, multiply, abstract_operands(self.spec), self.chip, label=name)
            future.add_done_callback(lambda _, name=name: done(name))
            self.futures[tiles] = future

    def results(self) -> Mapping[Tiles, Measurement | Exception]:
        """What became of each candidate; waits for all."""
        found: dict[Tiles, Measurement | Exception] = {}
        for tiles, future in self.futures.items():
            try:
                found[tiles] = future.result()
            except _FAILURES as failure:
                found[tiles] = failure
        return found

    def ranking(self) -> list[tuple[Tiles, Measurement]]:
        """The candidates that compiled, fastest first."""
        timed = [(tiles, result) for tiles, result in self.results().items() if isinstance(result, Measurement)]
        return sorted(timed, key=lambda pair: (pair[1].time_us, pair[0]))

    def winner(self) -> Tiles | None:
        """The fastest tiles; None if none compiled, or there was no compiler."""
        ranking = self.ranking()
        return ranking[0][0] if ranking else None

    def best(self) -> Future[Measurement] | None:
        """The winner's job."""
        winner = self.winner()
        return None if winner is None else self.futures[winner]

    def trials(self) -> tuple[Trial, ...]:
        """Every candidate with its times, in the order of the model."""
        results = self.results()
        return tuple(
            Trial(
                tile_m=tiles.tile_m,
                tile_k=tiles.tile_k,
                tile_n=tiles.tile_n,
                modelled_us=modelled_s(self.spec, tiles, self.chip) * 1e6,
                simulated_us=result.time_us if isinstance(result, Measurement) else None,
                reason="" if isinstance(result, Measurement) else str(getattr(result, "summary", result)),
            )
            for tiles, result in results.items()
        )

    def verdict(self) -> str:
        """Which tiles won, over what, and what made the difference."""
        ranking = self.ranking()
        if not ranking:
            return f"all {len(self.tiles)} candidates were refused, {self.tiles[0]}: {self.trials()[0].reason}"
        refused = len(self.tiles) - len(ranking)
        text = f"{ranking[0][0]} won of {len(self.tiles)} simulated"
        if refused:
            text += f" ({refused} refused)"
        if len(ranking) == 1:
            return text
        (tiles, best), (second_tiles, second) = ranking[:2]
        text += f", {100 * (second.time_us / best.time_us - 1):.1f} % before {second_tiles}: {self._why(tiles, best)}"
        return text + f" against {self._why(second_tiles, second)}"

    def _why(self, tiles: Tiles, measurement: Measurement) -> str:
        stalls = 100 * measurement.run.stall_share if measurement.run else 0.0
        megabytes = hbm_bytes(self.spec, tiles) / 1e6
        return f"{tiles.steps(self.spec)} steps, {megabytes:.0f} MB of HBM traffic, {stalls:.0f} % stalls"


def no_candidates(size: int, chip: Chip) -> Violation:
    """What is wrong where a sweep has nothing to try."""
    return Violation(
        rule="sweep",
        value=f"no tiles cut {size} evenly, are aligned and fit",
        limit=f"a side is a multiple of 128 that divides {size}, and there are {chip.scoped_vmem_bytes / MIB:.0f} MiB",
        fix=f"pad to {-(-size // LANES) * LANES}",
    )
