"""The time of a blocked matmul whose steps' costs are known: its pipeline, walked through step by step.

The kernels of `systolic.kernels` start copies, wait for them and compute in an order that the grid decides; here only
the cost of a step is a number, and copies go through one pipe, in the order in which they were started. Runs over k
that repeat the one before, and rows of blocks that repeat, are not walked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from systolic.chips import Chip
from systolic.cost.model import ModelledTime, bundles
from systolic.cost.profile import StepCost
from systolic.schedule.blocks import SIDES, block_shape, dimensions
from systolic.schedule.config import KernelConfig
from systolic.schedule.copies import strided_runs
from systolic.spec import MatmulSpec, dtype_bytes

_LONG_RUN = 8  # steps over k from which on it is asked in each step whether it repeats the one before
_SAME_CYCLES = 0.01  # by which the state of a pipeline may differ and still repeat itself


def walked_time(spec: MatmulSpec, config: KernelConfig, chip: Chip, cost: StepCost) -> ModelledTime:
    """The time on one device of a product without extras or a batch, whose sizes the tiles divide.

    On two cores, which share HBM and do alike, that of the one with more blocks.
    """
    pipeline = _Pipeline.of(spec, config, chip, cost)
    pipeline.walk()
    clock_hz = chip.machine.clock_hz
    return ModelledTime(
        time_us=(pipeline.now + cost.call) / clock_hz * 1e6,
        compute_us=pipeline.busy / clock_hz * 1e6,
        copy_us=pipeline.copied / clock_hz * 1e6,
        ramp_us=(pipeline.begun + pipeline.now - pipeline.ended) / clock_hz * 1e6,
        bundles=bundles(spec, config, chip),
    )


class _Mark(NamedTuple):
    """Where a period of the pipeline began."""

    step: int
    state: list[float]
    time: float
    copied: float


@dataclass(slots=True, kw_only=True)
class _Stream:
    """An operand. `landed` is when the block of a step is there."""

    period: int  # steps for which a block stays
    ahead: int  # steps by which its copies are started early
    cycles: float  # of a block's copy
    chunk_cycles: float
    landed: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Pipeline:
    config: KernelConfig
    cost: StepCost
    steps_k: int
    inner: int
    outer: int
    streams: list[_Stream]
    store_cycles: float
    slice_cycles: float
    issue: float
    wait_cycles: float
    latency: float
    cores: int
    now: float = 0.0
    pipe: float = 0.0  # free from then on
    busy: float = 0.0  # cycles of steps
    copied: float = 0.0  # and of the pipe
    begun: float = 0.0  # when the first product began
    ended: float = 0.0  # and the last ended
    stored: dict[int, float] = field(default_factory=dict)  # by run over k

    @classmethod
    def of(cls, spec: MatmulSpec, config: KernelConfig, chip: Chip, cost: StepCost) -> _Pipeline:
        machine, tiles = chip.machine, config.tiles
        grid_m, grid_n, grid_k = tiles.grid(spec)
        counts = {"m": grid_m, "n": grid_n, "k": grid_k}
        outer, inner = ("m", "n") if config.grid_order == "m" else ("n", "m")
        # The compiler has cores share the first dimension that they can share evenly, or else the first.
        among = [one for one in (outer, inner) if counts[one] > 1] or [outer]
        shared = next((one for one in among if counts[one] % chip.cores_per_device == 0), among[0])
        cores = min(chip.cores_per_device, counts[shared])
        counts[shared] = -(-counts[shared] // cores)
        total = counts["m"] * counts["n"] * counts["k"]
        bytes_per_cycle = machine.hbm_bytes_per_s / machine.clock_hz

        def cycles(rows: int, columns: int, width: int, dtype: str) -> float:
            runs = 0 if columns >= width else strided_runs(rows, columns, width, dtype)
            return rows * columns * dtype_bytes(dtype) / bytes_per_cycle + runs * machine.hbm_run_cycles

        streams = []
        for side, dtype in zip(SIDES, (spec.dtype_lhs, spec.dtype_rhs), strict=True):
            rows, columns = block_shape(spec, tiles, side)
            along = dimensions(spec, side)
            width = getattr(spec, along[1])
            changing = {one for one in along if counts[one] > 1}
            period = total
            if "k" in changing:
                period = 1
            elif inner in changing:
                period = grid_k
            elif outer in changing:
                period = grid_k * counts[inner]
            chunks = config.fill_chunks
            part = (rows // chunks, columns) if along[0] == "k" else (rows, columns // chunks)
            streams.append(
                _Stream(
                    period=period,
                    # Pallas' own pipeline starts a copy in the step before; this project's as soon as there is room.
                    ahead=1 if config.pipeline != "manual" else config.num_stages - 1 if period == 1 else period,
                    cycles=cycles(rows, columns, width, dtype),
                    chunk_cycles=cycles(*part, width, dtype),
                )
            )
        return cls(
            config=config,
            cost=cost,
            steps_k=grid_k,
            inner=counts[inner],
            outer=counts[outer],
            streams=streams,
            store_cycles=cycles(tiles.tile_m, tiles.tile_n, spec.n, spec.dtype_out),
            slice_cycles=cycles(config.subtile_m, config.subtile_n, spec.n, spec.dtype_out),
            issue=machine.dma_issue_cycles,
            wait_cycles=machine.dma_wait_cycles,
            latency=machine.dma_latency_cycles,
            cores=cores,
        )

    def walk(self) -> None:
        """Goes through all steps."""
        row = self.inner * self.steps_k
        total = self.outer * row
        # In the last rows nothing is fetched for later ones.
        last_rows = row * -(-max((one.ahead for one in self.streams if one.period < total), default=1) // row)
        self._begin(total)
        step = 0
        rows: _Mark | None = None
        runs: _Mark | None = None
        steps: _Mark | None = None
        while step < total:
            if step % row == 0:
                step = self._ahead(step, rows, row, total - last_rows)
                rows, runs = self._mark(step), None
            if step % self.steps_k == 0:
                # The last run of a row has other blocks ahead of it than those before.
                step = self._ahead(step, runs, self.steps_k, step - step % row + row - 2 * self.steps_k)
                # The first run of a row starts copies for the next row: it is like no other.
                runs, steps = self._mark(step) if step % row else None, None
            elif self.steps_k > _LONG_RUN:
                # And so have the last steps of a run.
                step = self._ahead(step, steps, 1, step - step % self.steps_k + self.steps_k - 3)
                steps = self._mark(step)
            self._step(step, total)
            step += 1
        self._end(total)

    def _begin(self, total: int) -> None:
        if self.config.pipeline != "manual":
            for stream in self.streams:
                stream.landed[0] = self._start(stream.cycles)
            return
        for number in range(self.config.fill_chunks):
            for stream in self.streams:
                stream.landed[-1 - number] = self._start(stream.chunk_cycles)
        for stream in self.streams:
            if stream.period == 1:
                for early in range(1, min(stream.ahead, total)):
                    stream.landed[early] = self._start(stream.cycles)

    def _step(self, step: int, total: int) -> None:
        run, at_k = divmod(step, self.steps_k)
        manual, chunks = self.config.pipeline == "manual", self.config.fill_chunks
        streams = sorted(self.streams, key=lambda one: one.period) if manual else self.streams
        for stream in streams:
            later = step + stream.ahead
            if later % stream.period == 0 and later < total:
                stream.landed[later] = self._start(stream.cycles)
        is_end, is_last = at_k == self.steps_k - 1, step == total - 1
        cycles = self.cost.first if step == 0 else self.cost.end if is_end else self.cost.step
        if step == 0 and manual:
            for number in range(chunks):
                for stream in self.streams:
                    self._wait(stream.landed.pop(-1 - number))
                self.begun = self.begun or self.now
                self._work(cycles / chunks)
            cycles = 0.0
        else:
            for stream in self.streams:
                if step % stream.period == 0:
                    self._wait(stream.landed.pop(step))
            self.begun = self.begun or self.now
        if manual and at_k == 0 and run >= 2:
            self._wait(self.stored.pop(run - 2))
        if is_last and manual:
            for _ in range(self.config.subtiles):
                self._work(cycles / self.config.subtiles)
                self.stored[run] = self._start(self.slice_cycles)
            self.ended = self.now
            return
        self._work(cycles)
        self.ended = self.now
        if is_end:
            self.stored[run] = self._start(self.store_cycles)
        if not manual and run >= 1 and at_k == 0:
            self._wait(self.stored.pop(run - 1))

    def _end(self, total: int) -> None:
        for run in sorted(self.stored):
            last = run == total // self.steps_k - 1
            for _ in range(self.config.subtiles if last and self.config.pipeline == "manual" else 1):
                self._wait(self.stored[run])

    def _work(self, cycles: float) -> None:
        self.now += cycles
        self.busy += cycles

    def _start(self, cycles: float) -> float:
        """Starts a copy; returns when it has landed."""
        self.now += self.issue
        if self.cores > 1:
            # The other core does the same. Both begin at once, with its copies first: so it is ahead by the last of
            # the first blocks.
            ahead = self.streams[-1].cycles if self.begun else 0.0
            self.pipe = max(self.pipe, self.now - ahead) + cycles * (self.cores - 1)
        self.pipe = max(self.pipe, self.now) + cycles
        self.copied += cycles * self.cores
        return self.pipe + self.latency

    def _wait(self, landed: float) -> None:
        self.now = max(self.now, landed) + self.wait_cycles

    def _mark(self, step: int) -> _Mark:
        return _Mark(step, self._state(), self.now, self.copied)

    def _state(self) -> list[float]:
        """What decides how it goes on: how long the pipe and every copy under way still take."""
        times = [self.stored[run] for run in sorted(self.stored)]
        for stream in self.streams:
            times += [stream.landed[at] for at in sorted(stream.landed)]
        # The copies of another core may have begun before now, in a pipe that has been free for so long.
        free_for = self.streams[-1].cycles if self.cores > 1 else 0.0
        return [max(-free_for, self.pipe - self.now), *(max(0.0, time - self.now) for time in times)]

    def _ahead(self, step: int, before: _Mark | None, period: int, until: int) -> int:
        """Leaves out periods that are like the one before, of all that begin before `until`; returns the next step."""
        if before is None or step >= until or step - before.step != period:
            return step
        state = self._state()
        if len(state) != len(before.state):
            return step
        if any(abs(one - other) > _SAME_CYCLES for one, other in zip(state, before.state, strict=True)):
            return step
        left_out = (until - step) // period
        steps, cycles = left_out * period, left_out * (self.now - before.time)
        runs = steps // self.steps_k
        self.now += cycles
        self.pipe += cycles
        self.copied += left_out * (self.copied - before.copied)
        self.busy += runs * self.cost.end + (steps - runs) * self.cost.step
        for stream in self.streams:
            if stream.period <= period:  # else its next block is that of a step which is not left out
                stream.landed = {at + steps: time + cycles for at, time in stream.landed.items()}
        self.stored = {run + runs: time + cycles for run, time in self.stored.items()}
        return step + steps
