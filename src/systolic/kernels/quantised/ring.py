"""Copies of a quantised product: tiles of the weight on their way in, tiles of the result on their way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.grouped.registers import part
from systolic.schedule.quantised import QuantizedSchedule


class QuantizedOperands(NamedTuple):
    """Arrays of a product, or their refs."""

    lhs: Any  # [m, k]; in the kernel [tile_m, k]
    values: Any  # [k, n]
    scales: Any  # [grid_k, tile_blocks, n]; of one scale a column [1, 1, n]
    bias: Any = None  # [1, n]
    residual: Any = None  # [m, n]; in the kernel [tile_m, tile_n]
    lhs_scales: Any = None  # [m, lhs_blocks] float32, of a lhs that is quantised in HBM; in the kernel [tile_m, …]
    out_scale: Any = None  # [1, n] float32
    up_values: Any = None  # [k, n]; None of a gated product: its columns are behind those of `values`
    up_scales: Any = None  # as scales


class Buffers(NamedTuple):
    """Scratch of the kernel; what it does not need is None."""

    values: Any  # [slots, weights, tile_k, tile_n]
    scales: Any  # [slots, weights, tile_blocks, tile_n]
    out: Any  # [out slots, tile_m, tile_n]
    rows: Any  # [tile_m, k] as they are multiplied, of a lhs in another dtype
    row_scales: Any  # [lhs_blocks or 1, tile_m, 128] float32: each lane has the scale of a row, of a quantised lhs
    row_sums: Any  # [blocks, tile_m, 128] float32: each lane has the sum of a row's block, times unit and offset
    acc: Any  # [weights, tile_m, tile_n] float32, or int32: the sums over k so far
    weights: Any  # [weights, tile_k, subtile_n] as they are pushed
    values_sem: Any  # (slots, weights)
    scales_sem: Any
    out_sem: Any  # (out slots,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ring:
    """The copies of a step of the grid (i, j, kk), which is number `step`."""

    refs: QuantizedOperands
    out_hbm: Any
    its: Buffers
    schedule: QuantizedSchedule
    step: Any

    @classmethod
    def of_this_step(cls, refs: QuantizedOperands, out_hbm: Any, its: Buffers, schedule: QuantizedSchedule) -> Ring:
        """The ring of the grid's step."""
        i, j, kk = (pl.program_id(axis) for axis in range(3))
        number = (i * schedule.grid_n + j) * schedule.grid_k + kk
        return cls(refs=refs, out_hbm=out_hbm, its=its, schedule=schedule, step=number)

    @property
    def slot(self) -> Any:
        """Where this step's tile of the weight is."""
        return lax.rem(self.step, jnp.int32(self.schedule.slots))

    @property
    def out_slot(self) -> Any:
        """Where this step's tile of the result goes."""
        return lax.rem(lax.div(self.step, jnp.int32(self.schedule.grid_k)), jnp.int32(self.schedule.out_slots))

    def fetch(self) -> None:
        """Starts the copy of the tile that takes the slot of the step before; in the first step, of all before it."""
        ahead = self.schedule.slots - 1

        @pl.when(self.step == 0)
        def _first() -> None:
            for number in range(min(ahead, self.schedule.steps)):
                self._start(jnp.int32(number))

        pl.when(self.step + ahead < self.schedule.steps)(lambda: self._start(self.step + ahead))

    def wait(self) -> None:
        """Waits for this step's tile."""
        for copy in self._copies(self.step):
            copy.wait()

    def reserve_out(self) -> None:
        """Waits until the slot of this step's result has been stored."""
        its = self.schedule
        before = lax.div(self.step, jnp.int32(its.grid_k)) - its.out_slots
        pl.when(before >= 0)(lambda: self._out_copy(before).wait())

    def store(self) -> None:
        """Stores this step's result; the last one waits for all."""
        its, tiles = self.schedule, self.schedule.grid_m * self.schedule.grid_n
        tile = lax.div(self.step, jnp.int32(its.grid_k))
        self._out_copy(tile).start()

        @pl.when(tile == tiles - 1)
        def _all() -> None:
            for number in range(max(tiles - its.out_slots, 0), tiles):
                self._out_copy(jnp.int32(number)).wait()

    def _start(self, number: Any) -> None:
        for copy in self._copies(number):
            copy.start()

    def _copies(self, number: Any) -> list[Any]:
        its, refs, schedule = self.its, self.refs, self.schedule
        kk = lax.rem(number, jnp.int32(schedule.grid_k))
        j = lax.rem(lax.div(number, jnp.int32(schedule.grid_k)), jnp.int32(schedule.grid_n))
        slot = lax.rem(number, jnp.int32(schedule.slots))
        apart = refs.up_values is not None
        weights = [(refs.values, refs.scales), (refs.up_values, refs.up_scales)]
        count = its.values.shape[1]
        copies = []
        for weight in range(count):
            values, scales = weights[weight if apart else 0]
            beside = 1 if apart else count  # weights whose columns are in one array
            columns = part(j + (0 if apart else weight * schedule.grid_n), schedule.tile_n, schedule.grid_n * beside)
            rows = part(kk, schedule.tile_k, schedule.grid_k)
            for tile, ring, sem in (
                (scales.at[kk if scales.shape[0] > 1 else 0, :, columns], its.scales, its.scales_sem),
                (values.at[rows, columns], its.values, its.values_sem),
            ):
                copies.append(pltpu.make_async_copy(tile, ring.at[slot, weight], sem.at[slot, weight]))
        return copies

    def _out_copy(self, tile: Any) -> Any:
        schedule = self.schedule
        i, j = lax.div(tile, jnp.int32(schedule.grid_n)), lax.rem(tile, jnp.int32(schedule.grid_n))
        slot = lax.rem(tile, jnp.int32(schedule.out_slots))
        target = self.out_hbm.at[part(i, schedule.tile_m, schedule.grid_m), part(j, schedule.tile_n, schedule.grid_n)]
        return pltpu.make_async_copy(self.its.out.at[slot], target, self.its.out_sem.at[slot])
