"""The pipeline model: compute the time of a kernel step by step, from the costs of its steps.

The kernels of `systolic.kernels` start copies, wait for them and compute in an order that the grid decides
(`schedule.GridSchedule`). Here the cost of a step is a number, and copies go through one pipe, in the order in which
they are started. Output tiles and rows of tiles that repeat the one before are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from systolic.chips import Chip, MachineModel
from systolic.cost.copies import CopyCycles, output_cycles, store_cycles
from systolic.cost.profile import StepCost
from systolic.cost.repetition import Mark, RepeatedLoop
from systolic.schedule.blocks import operand_blocks
from systolic.schedule.config import KernelConfig
from systolic.schedule.grid import GridSchedule
from systolic.spec import MatmulSpec

_MANY_STEPS = 8  # with this many steps over k, each step is compared with the previous one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledTime:
    """A time by arithmetic and its parts, in microseconds."""

    time_us: float
    compute_us: float  # steps alone
    copy_us: float  # copies alone
    ramp_us: float  # until the first blocks have arrived, and from the last product to the end of its store
    sent_us: float = 0.0  # what a link carries to other devices of a slice, alone

    @property
    def limit(self) -> str:
        """The name of the largest part."""
        parts = {"the matrix units": self.compute_us, "HBM": self.copy_us, "the links": self.sent_us}
        return max(parts, key=parts.__getitem__)


def pipeline_time(spec: MatmulSpec, config: KernelConfig, chip: Chip, cost: StepCost) -> ModelledTime:
    """Return the time on one device. Two cores share HBM and do the same work; the one with more steps counts."""
    pipeline = _Pipeline.of(spec, config, chip, cost)
    pipeline.go()
    us = 1e6 / chip.machine.clock_hz
    return ModelledTime(
        time_us=(pipeline.now + cost.call) * us,
        compute_us=pipeline.busy * us,
        copy_us=pipeline.copied * us,
        ramp_us=(pipeline.begun + pipeline.now - pipeline.ended) * us,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Stream:
    """An input that arrives in blocks. `landed` is the time at which the block of a step has arrived."""

    reuse: int  # steps for which a block stays
    ahead: int  # steps by which its copies are started early
    cycles: float
    chunk_cycles: float
    in_chunks: bool  # the first one
    late: bool  # it is first needed after all chunks have been multiplied
    landed: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Pipeline:
    cost: StepCost
    config: KernelConfig
    machine: MachineModel
    manual: bool
    steps: int
    steps_k: int
    row: int  # steps until the outer dimension of the output goes on
    product: int  # steps of one product of the batch
    streams: list[_Stream]  # in the order in which they are waited for
    fetched: list[_Stream]  # in the order in which copies are started
    outputs: int
    store_cycles: float  # of a tile of every output
    subtile_cycles: float  # of a subtile
    cores: int
    now: float = 0.0
    pipe: float = 0.0  # free from then on
    busy: float = 0.0  # cycles of steps
    copied: float = 0.0  # and of the pipe
    begun: float = 0.0  # when the first product began
    ended: float = 0.0  # and the last ended
    followed: int = 0  # steps
    stored: dict[int, float] = field(default_factory=dict)  # when the tile of that number is stored

    @classmethod
    def of(cls, spec: MatmulSpec, config: KernelConfig, chip: Chip, cost: StepCost) -> _Pipeline:
        tiles, manual = config.tiles, config.pipeline == "manual"
        schedule, cores = GridSchedule.of(spec, config).shared_by(chip.cores_per_device)
        streams = []
        blocks = operand_blocks(spec, tiles)
        for number, block in enumerate(blocks.present()):
            cycles, reuse = CopyCycles.of(block, config, chip), schedule.reuse_steps(block.loops)
            streams.append(
                _Stream(
                    reuse=reuse,
                    # Pallas' pipelines start a copy this many steps before; this project's as soon as there is room.
                    ahead=reuse if manual and reuse > 1 else config.num_stages - 1,
                    cycles=cycles.block,
                    chunk_cycles=cycles.chunk,
                    in_chunks=config.fill_chunks > 1 and number < len(blocks.factors),
                    late=manual and block.applies_to == "out",
                )
            )
        return cls(
            cost=cost,
            config=config,
            machine=chip.machine,
            manual=manual,
            steps=schedule.steps,
            steps_k=schedule.steps_k,
            row=schedule.steps_inner,
            product=schedule.steps // schedule.count("batch"),
            streams=streams,
            fetched=sorted(streams, key=lambda stream: stream.reuse) if manual else streams,
            outputs=len(spec.dtypes_out),
            store_cycles=store_cycles(spec, config, chip),
            subtile_cycles=output_cycles(spec, config.subtile_m, config.subtile_n, chip),
            cores=cores,
        )

    def go(self) -> None:
        row, total, steps_k = self.row, self.steps, self.steps_k
        ahead = max((stream.ahead for stream in self.streams if stream.reuse < total), default=1)
        self._begin()
        step = 0
        products = RepeatedLoop(length=self.product, compares=False)
        rows, tiles, steps = (RepeatedLoop(length=length) for length in (row, steps_k, 1))
        while step < total:
            if row < self.product < total and step % self.product == 0:
                begin, step = step, self._leave_out(step, products, total - self.product * -(-ahead // self.product))
                if step > begin:
                    rows.marks.clear()
            if step % row == 0:
                # In the last rows nothing is fetched for later ones.
                step = self._leave_out(step, rows, min(total - row * -(-ahead // row), self._next_exchange(step)))
                tiles.marks.clear()
            if step % steps_k == 0:
                # The first tile of a row starts copies for the next row, unlike any other. The last two fetch other
                # blocks than the earlier tiles.
                if step % row:
                    step = self._leave_out(step, tiles, step - step % row + row - 2 * steps_k)
                steps.marks.clear()
            elif steps_k > _MANY_STEPS:
                # So do the last steps of a tile.
                step = self._leave_out(step, steps, step - step % steps_k + steps_k - 3)
            self._step(step)
            self.followed += 1
            step += 1
        self._end()

    def _next_exchange(self, step: int) -> int:
        """Return the beginning of a row up to which no block is fetched that stays for several rows."""
        long = [stream for stream in self.streams if self.row < stream.reuse < self.steps]
        return min(
            ((step // stream.reuse + 1) * stream.reuse - self.row * -(-stream.ahead // self.row) for stream in long),
            default=self.steps,
        )

    def _begin(self) -> None:
        for stream in self.streams:
            if not stream.in_chunks and not stream.late:
                stream.landed[0] = self._start(stream.cycles)
        for number in range(self.config.fill_chunks):
            for stream in self.streams:
                if stream.in_chunks:
                    stream.landed[-1 - number] = self._start(stream.chunk_cycles)
        for stream in self.streams:
            if stream.late:
                stream.landed[0] = self._start(stream.cycles)
        for stream in self.streams:
            for early in range(stream.reuse, min(stream.ahead, self.steps), stream.reuse):
                stream.landed[early] = self._start(stream.cycles)

    def _step(self, step: int) -> None:
        tile, at_k = divmod(step, self.steps_k)
        for stream in self.fetched:
            later = step + stream.ahead
            if later % stream.reuse == 0 and later < self.steps:
                stream.landed[later] = self._start(stream.cycles)
        is_end, is_last = at_k == self.steps_k - 1, step == self.steps - 1
        cycles = self.cost.first if step == 0 else self.cost.end if is_end else self.cost.step
        if step == 0 and self.config.fill_chunks > 1:
            self._first_step(cycles)
            cycles = 0.0
        else:
            for stream in self.streams:
                if step % stream.reuse == 0:
                    self._wait(stream.landed.pop(step))
            self.begun = self.begun or self.now
        if self.manual and at_k == 0 and tile >= 2:
            self._wait(self.stored.pop(tile - 2), self.outputs)
        if is_last and self.manual:
            for _ in range(self.config.subtiles):
                self._work(cycles / self.config.subtiles)
                self.stored[tile] = self._start(self.subtile_cycles, self.outputs)
            self.ended = self.now
            return
        self._work(cycles)
        self.ended = self.now
        if is_end:
            self.stored[tile] = self._start(self.store_cycles, self.outputs)
        if not self.manual and tile >= 1 and at_k == 0:
            self._wait(self.stored.pop(tile - 1), self.outputs)

    def _first_step(self, cycles: float) -> None:
        for stream in self.streams:
            if not stream.in_chunks and not stream.late:
                self._wait(stream.landed.pop(0))
        for number in range(self.config.fill_chunks):
            for stream in self.streams:
                if stream.in_chunks:
                    self._wait(stream.landed.pop(-1 - number))
            self.begun = self.begun or self.now
            self._work(cycles / self.config.fill_chunks)
        for stream in self.streams:
            if stream.late:
                self._wait(stream.landed.pop(0))

    def _end(self) -> None:
        for tile, landed in sorted(self.stored.items()):
            in_parts = self.manual and tile == self.steps // self.steps_k - 1
            self._wait(landed, self.outputs * (self.config.subtiles if in_parts else 1))

    def _work(self, cycles: float) -> None:
        self.now += cycles
        self.busy += cycles

    def _start(self, cycles: float, copies: int = 1) -> float:
        """Start copies of this total duration, and return the time at which they have landed."""
        self.now += copies * self.machine.dma_issue_cycles
        if self.cores > 1:
            # The other core does the same. Both begin at once, with its copies first: so it is ahead by the last of
            # the first blocks.
            ahead = self.streams[-1].cycles if self.begun else 0.0
            self.pipe = max(self.pipe, self.now - ahead) + cycles * (self.cores - 1)
        self.pipe = max(self.pipe, self.now) + cycles
        self.copied += cycles * self.cores
        return self.pipe + self.machine.dma_latency_cycles

    def _wait(self, landed: float, copies: int = 1) -> None:
        self.now = max(self.now, landed) + copies * self.machine.dma_wait_cycles

    def _leave_out(self, step: int, loop: RepeatedLoop, until: int) -> int:
        """Skip rounds of a loop that repeat earlier ones, among all that begin before `until`; return the next step."""
        if until - step < loop.length:
            loop.marks.clear()
            return step
        repetition = loop.repeated(Mark(step, self._state(), self.now, self.copied, self.followed))
        if repetition is None:
            return step
        times, rest = divmod(until - step, step - repetition.step)
        steps, cycles = until - step - rest, times * (self.now - repetition.time)
        tiles = steps // self.steps_k
        self.now += cycles
        self.pipe += cycles
        self.copied += times * (self.copied - repetition.copied)
        self.busy += tiles * self.cost.end + (steps - tiles) * self.cost.step
        for stream in self.streams:
            if stream.reuse <= loop.length:  # else its next block belongs to a step that is not skipped
                stream.landed = {at + steps: time + cycles for at, time in stream.landed.items()}
        self.stored = {tile + tiles: time + cycles for tile, time in self.stored.items()}
        loop.marks.clear()
        return step + steps

    def _state(self) -> list[float]:
        """Return the state that decides what follows: how long the pipe and every copy under way still take."""
        now = self.now
        # The other core's copies may have begun earlier, in a pipe that was free until now.
        free_for = self.streams[-1].cycles if self.cores > 1 else 0.0
        times = [max(-free_for, self.pipe - now)]
        for landed in (self.stored, *(stream.landed for stream in self.streams)):
            times += [time - now if time > now else 0.0 for time in landed.values()]
        return times
