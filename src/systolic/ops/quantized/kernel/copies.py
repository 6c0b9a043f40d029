"""Copies of a quantized product: rows and tiles of the weight to VMEM, tiles of the result to HBM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.registers import Parts, part, parts_of
from systolic.kernels.ring import Act, Ring
from systolic.ops.quantized.schedule import QuantizedSchedule


class QuantizedOperands(NamedTuple):
    lhs: Any  # [m, k]
    values: Any  # [k, n]
    scales: Any  # [grid_k, tile_blocks, n]; of one scale a column [1, 1, n]
    bias: Any = None  # [1, n]
    residual: Any = None  # [m, n]; in the kernel [tile_m, tile_n]
    lhs_scales: Any = None  # [m, lhs_blocks] float32, if lhs is quantized in HBM; in the kernel [tile_m, …]
    out_scale: Any = None  # [1, n] float32
    up_values: Any = None  # [k, n]; None if a gated product has its columns after those in `values`
    up_scales: Any = None  # as scales


class Buffers(NamedTuple):
    """The kernel's buffers; those that it does not need are None."""

    lhs: Any  # [row_slots, tile_m, k]
    values: Any  # [slots, weights, tile_k, tile_n]
    scales: Any  # [slots, weights, tile_blocks, tile_n]
    out: Any  # [out slots, tile_m, tile_n]
    rows: Any  # [tile_m, k] as they are multiplied, if lhs has another dtype
    row_scales: Any  # [lhs_blocks or 1, tile_m, 128] float32: each lane has the scale of a row, of a quantized lhs
    row_sums: Any  # [blocks, tile_m, 128] float32: each lane has the sum of a row's block, times unit and offset
    acc: Any  # [weights, tile_m, tile_n] float32, or int32: the sums over k so far
    weights: Any  # [weights, tile_k, subtile_n] as they are pushed
    lhs_sem: Any  # (row_slots, parts of a block of rows)
    values_sem: Any  # (slots, weights)
    scales_sem: Any
    out_sem: Any  # (out slots,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copies:
    """The copies of step `step` of the grid (i, j, kk)."""

    refs: QuantizedOperands
    out_hbm: Any
    buffers: Buffers
    schedule: QuantizedSchedule
    step: Any

    @classmethod
    def of_this_step(
        cls, refs: QuantizedOperands, out_hbm: Any, buffers: Buffers, schedule: QuantizedSchedule
    ) -> Copies:
        i, j, kk = (pl.program_id(axis) for axis in range(3))
        number = (i * schedule.grid_n + j) * schedule.grid_k + kk
        return cls(refs=refs, out_hbm=out_hbm, buffers=buffers, schedule=schedule, step=number)

    @property
    def _weights(self) -> Ring:
        """The ring of tiles of the weight, one for each step."""
        return Ring(slots=self.schedule.slots, copies=self._weight_copies)

    @property
    def _outs(self) -> Ring:
        return Ring(slots=self.schedule.out_slots, copies=lambda tile, act: act(self._out_copy(tile)))

    @property
    def _tile(self) -> Any:
        return lax.div(self.step, jnp.int32(self.schedule.grid_k))

    @property
    def slot(self) -> Any:
        return self._weights.slot(self.step)

    @property
    def out_slot(self) -> Any:
        return self._outs.slot(self._tile)

    @property
    def lhs_vmem(self) -> Any:
        """This step's block of rows, [tile_m, k], as stored in HBM."""
        return self.buffers.lhs.at[lax.rem(pl.program_id(0), jnp.int32(self.schedule.row_slots))]

    @property
    def row_parts(self) -> list[Parts]:
        """The parts in which a block of rows arrives, so that the first is prepared while the others are copied."""
        return parts_of(self.schedule.tile_m, self.schedule.rows_at_once)

    def fetch(self) -> None:
        """Start the copy of the tile that takes the slot of the step before; in the first step, of all before it."""

        @pl.when(self.step == 0)
        def _first() -> None:
            for number in range(self._row_copies):
                self._row_copy(jnp.int32(0), number).start()
            # Not in straight code: there the compiler may copy the tiles before the rows, which are needed first.
            self._weights.start_all(0, min(self.schedule.slots - 1, self.schedule.steps))

        self._weights.fetch_next(self.step, self.schedule.steps)

    def fetch_next_rows(self) -> None:
        """Start copies of the next block of rows, some in each step, so that no tile has to wait for all of them."""
        schedule, block = self.schedule, pl.program_id(0) + 1
        if schedule.grid_m == 1:
            return
        steps = schedule.grid_n * schedule.grid_k
        step_copies = -(-self._row_copies // steps)
        first = lax.rem(self.step, jnp.int32(steps)) * step_copies
        whole_copies = self._row_copies - (schedule.tile_m % schedule.rows_at_once > 0)
        for number in range(step_copies):
            at = first + number
            pl.when((block < schedule.grid_m) & (at < whole_copies))(lambda at=at: self._row_copy(block, at).start())
            if whole_copies < self._row_copies:
                last = (block < schedule.grid_m) & (at == whole_copies)
                pl.when(last)(lambda: self._row_copy(block, whole_copies).start())

    def wait_for_rows(self, number: Any) -> None:
        """Wait for one part of this step's block of rows; the number of a smaller last part is an int."""
        self._row_copy(pl.program_id(0), number).wait()

    def wait(self) -> None:
        self._weights.wait(self.step)

    def reserve_out(self) -> None:
        # Not `Ring.reserve`: comparing before subtracting takes another number of cycles.
        earlier = self._tile - self.schedule.out_slots
        self._outs.wait_if(earlier >= 0, earlier)

    def store(self) -> None:
        """Store this step's result; the last one waits for all."""
        tiles, tile = self.schedule.grid_m * self.schedule.grid_n, self._tile
        self._outs.start(tile)
        pl.when(tile == tiles - 1)(lambda: self._outs.drain(tiles))

    @property
    def _row_copies(self) -> int:
        return sum(parts.how_many for parts in self.row_parts)

    def _row_copy(self, block: Any, number: Any) -> Any:
        """Return the copy of a part of a block of rows; the number of a smaller last part is an int."""
        schedule, slot = self.schedule, lax.rem(block, jnp.int32(self.schedule.row_slots))
        size, whole_tiles = schedule.rows_at_once, schedule.tile_m // schedule.rows_at_once
        rows = schedule.tile_m % size if isinstance(number, int) and number == whole_tiles else size
        source, target = self.refs.lhs, self.buffers.lhs.at[slot]
        first: Any = number * size
        if rows < schedule.tile_m:
            target = target.at[pl.ds(pl.multiple_of(first, size), rows)]
        if rows < schedule.tile_m * schedule.grid_m:
            stride = math.gcd(schedule.tile_m, size)
            source = source.at[pl.ds(pl.multiple_of(block * schedule.tile_m + first, stride), rows)]
        return pltpu.make_async_copy(source, target, self.buffers.lhs_sem.at[slot, number])

    def _weight_copies(self, number: Any, act: Act) -> None:
        buffers, refs, schedule = self.buffers, self.refs, self.schedule
        kk = lax.rem(number, jnp.int32(schedule.grid_k))
        j = lax.rem(lax.div(number, jnp.int32(schedule.grid_k)), jnp.int32(schedule.grid_n))
        slot = lax.rem(number, jnp.int32(schedule.slots))
        is_separate = refs.up_values is not None
        weights = [(refs.values, refs.scales), (refs.up_values, refs.up_scales)]
        count = buffers.values.shape[1]
        copies = []
        for weight in range(count):
            values, scales = weights[weight if is_separate else 0]
            array_weights = 1 if is_separate else count  # weights whose columns are in one array
            columns = part(
                j + (0 if is_separate else weight * schedule.grid_n), schedule.tile_n, schedule.grid_n * array_weights
            )
            rows = part(kk, schedule.tile_k, schedule.grid_k)
            for tile, ring, sem in (
                (scales.at[kk if scales.shape[0] > 1 else 0, :, columns], buffers.scales, buffers.scales_sem),
                (values.at[rows, columns], buffers.values, buffers.values_sem),
            ):
                copies.append(pltpu.make_async_copy(tile, ring.at[slot, weight], sem.at[slot, weight]))
        for copy in copies:
            act(copy)

    def _out_copy(self, tile: Any) -> Any:
        schedule = self.schedule
        i, j = lax.div(tile, jnp.int32(schedule.grid_n)), lax.rem(tile, jnp.int32(schedule.grid_n))
        slot = lax.rem(tile, jnp.int32(schedule.out_slots))
        target = self.out_hbm.at[part(i, schedule.tile_m, schedule.grid_m), part(j, schedule.tile_n, schedule.grid_n)]
        return pltpu.make_async_copy(self.buffers.out.at[slot], target, self.buffers.out_sem.at[slot])
