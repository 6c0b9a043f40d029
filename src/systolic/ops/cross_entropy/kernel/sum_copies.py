"""Copies of the sums of w's gradient between HBM and VMEM, which take place during other steps' products.

A part of a tile of dw is one sum over the tiles of rows: the kernel reads the sum of the tiles before, adds its part,
and writes it: in float32, for the last tile of rows in w's dtype.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.subtiles import times
from systolic.ops.cross_entropy.kernel.gradient_refs import GradientRefs
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, LossSchedule


class _Sum(NamedTuple):
    """A sum's tile of rows, tile of the vocabulary, and part of the features."""

    i: Any
    j: Any
    part: Any


@dataclass(frozen=True, slots=True)
class SumCopies:
    """Copies of the sum that a step of the kernel's grid adds to.

    Before the first errors of a tile of rows there are steps that add zero to the first sum of this tile.

    Slots are counted in SMEM, and neighbors of a sum are counted without a division, which takes dozens of cycles.
    """

    schedule: LossSchedule
    refs: GradientRefs
    core: Any
    i: Any
    j: Any
    part: Any

    @property
    def slot(self) -> Any:
        """The slot of the sum in float32."""
        return self.refs.scratch.slots_smem[0]

    @property
    def converted_slot(self) -> Any:
        return self.refs.scratch.slots_smem[1]

    @property
    def _sum(self) -> _Sum:
        j = self.j - self.schedule.lag
        return _Sum(self.i, jnp.maximum(j, 0), jnp.where(j < 0, 0, self.part))

    def begin(self) -> None:
        """Wait until the sum is in VMEM, and start to read the next one."""
        grid_m, lag, slots = self.schedule.core_grid[1], self.schedule.lag, self.refs.scratch.slots_smem
        is_first_step = (self.i == 0) & (self.j == 0) & (self.part == 0)

        @pl.when(is_first_step)
        def _() -> None:
            slots[0], slots[1] = jnp.int32(-1), jnp.int32(-1)

        # The first sum of a tile of rows begins with the first of the steps that add zero to it.
        continues = (self.j < lag) & ((self.j > 0) | (self.part > 0)) | (self.j == lag) & (self.part == 0)

        @pl.when(~continues)
        def _() -> None:
            slots[0] = _following(slots[0], DW_SLOTS)
            slots[1] = _following(slots[1], CONVERTED_SLOTS)
            this = self._sum
            before = self._before(self._before(this))

            # The slot of the next sum is free once the copy of the one two before has left it.
            @pl.when(before.i >= 0)
            def _() -> None:
                self._each(before, _following(slots[0], DW_SLOTS), slots[1], "write", "wait")

            if grid_m == 1:
                return
            after = self._after(this)

            @pl.when((after.i > 0) & (after.i < grid_m))
            def _() -> None:
                self._each(after, _following(slots[0], DW_SLOTS), 0, "read", "start")

            @pl.when(self.i > 0)
            def _() -> None:
                self._each(this, slots[0], 0, "read", "wait")

    def end(self) -> None:
        """Start to write the sum; after the last one, wait for all."""
        grid_m, grid_n = self.schedule.core_grid[1:]

        @pl.when(self.j >= self.schedule.lag)
        def _() -> None:
            this = self._sum
            self._each(this, self.slot, self.converted_slot, "write", "start")
            is_last = (this.i == grid_m - 1) & (this.j == grid_n - 1) & (this.part == self.schedule.parts - 1)

            @pl.when(is_last)
            def _() -> None:
                before = self._before(this)

                @pl.when(before.i >= 0)
                def _() -> None:
                    slot = _following(_following(self.slot, DW_SLOTS), DW_SLOTS)
                    self._each(before, slot, 1 - self.converted_slot, "write", "wait")

                self._each(this, self.slot, self.converted_slot, "write", "wait")

    def _before(self, this: _Sum) -> _Sum:
        borrows = this.part == 0
        j = jnp.where(borrows, this.j - 1, this.j)
        part = jnp.where(borrows, self.schedule.parts - 1, this.part - 1)
        return _Sum(jnp.where(j < 0, this.i - 1, this.i), jnp.where(j < 0, self.schedule.core_grid[2] - 1, j), part)

    def _after(self, this: _Sum) -> _Sum:
        carries = this.part == self.schedule.parts - 1
        j = jnp.where(carries, this.j + 1, this.j)
        wraps = j == self.schedule.core_grid[2]
        part = jnp.where(carries, 0, this.part + 1)
        return _Sum(jnp.where(wraps, this.i + 1, this.i), jnp.where(wraps, 0, j), part)

    def _each(self, of: _Sum, slot: Any, converted_slot: Any, direction: str, action: str) -> None:
        """Start a copy, or wait for it; the last part and the last tile of the vocabulary are smaller."""
        schedule, scratch, tiles = self.schedule, self.refs.scratch, self.schedule.config.tiles
        grid_m, grid_n = schedule.core_grid[1:]
        sums = self.refs.outputs.sums_hbm, scratch.sums_vmem, slot
        dw = self.refs.outputs.dw_hbm, *((scratch.dw_vmem, converted_slot) if schedule.converts_dw else sums[1:])
        semaphore = (scratch.read_sem if direction == "read" else scratch.write_sem).at[slot]

        def act(kind: str, features: int, columns: int) -> None:
            in_hbm, in_vmem, at = dw if kind == "dw" else sums
            row = self.core * schedule.stored_depth + of.part * tiles.tile_k
            row = pl.multiple_of(row, math.gcd(schedule.stored_depth, tiles.tile_k))
            ends = (
                in_hbm.at[pl.ds(row, features), pl.ds(times(of.j, tiles.tile_n), columns)],
                in_vmem.at[at, pl.ds(0, features), pl.ds(0, columns)],
            )
            source, target = ends if direction == "read" else ends[::-1]
            getattr(pltpu.make_async_copy(source, target, semaphore), action)()

        heights = _sizes(of.part, schedule.parts, tiles.tile_k, schedule.last_features)
        widths = _sizes(of.j, grid_n, tiles.tile_n, schedule.last_columns)
        for (of_height, features), (of_width, columns) in itertools.product(heights, widths):
            of_size = of_height & of_width
            if direction == "read" or grid_m == 1:
                pl.when(of_size)(functools.partial(act, "sums" if direction == "read" else "dw", features, columns))
                continue
            pl.when(of_size & (of.i == grid_m - 1))(functools.partial(act, "dw", features, columns))
            pl.when(of_size & (of.i < grid_m - 1))(functools.partial(act, "sums", features, columns))


def _following(slot: Any, slots: int) -> Any:
    return jnp.where(slot == slots - 1, 0, slot + 1)


def _sizes(number: Any, count: int, size: int, last: int) -> list[tuple[Any, int]]:
    """Return the sizes of blocks, each with the condition on a block's number."""
    return [(number >= 0, size)] if last == size else [(number < count - 1, size), (number == count - 1, last)]
