"""Copies of the sums of w's gradient between HBM and VMEM, which take place during other steps' products."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.subtiles import times
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, LossSchedule


class SumCopies:
    """Copies of dw's tiles between HBM and the slots; the last tile of the vocabulary is narrower."""

    def __init__(
        self,
        schedule: LossSchedule,
        core: Any,
        sums: tuple[Any, Any],
        dw: tuple[Any, Any],
        read_sem: Any,
        write_sem: Any,
    ) -> None:
        self._schedule, self._core, self._sums, self._dw = schedule, core, sums, dw
        self._sems = {"read": read_sem, "write": write_sem}

    def each(self, step: Any, direction: str, action: str) -> None:
        """Start a copy of a step's tile, or wait for it: of sums, or for the last tile of rows of the gradient."""
        (_, grid_m, grid_n), tile_n = self._schedule.core_grid, self._schedule.config.tiles.tile_n
        depth = self._schedule.stored_depth
        rows = pl.ds(times(self._core, depth), depth)
        j, last = lax.rem(step, jnp.int32(grid_n)), self._schedule.last_columns
        dw_slots = CONVERTED_SLOTS if self._schedule.converts_dw else DW_SLOTS
        is_final = step >= (grid_m - 1) * grid_n

        def act(kind: str, columns: int) -> None:
            (in_hbm, in_vmem), slots = (self._dw, dw_slots) if kind == "dw" else (self._sums, DW_SLOTS)
            semaphore = self._sems[direction].at[lax.rem(step, jnp.int32(DW_SLOTS))]
            ends = (
                in_hbm.at[rows, pl.ds(times(j, tile_n), columns)],
                in_vmem.at[lax.rem(step, jnp.int32(slots)), pl.ds(0, depth), pl.ds(0, columns)],
            )
            source, target = ends if direction == "read" else ends[::-1]
            getattr(pltpu.make_async_copy(source, target, semaphore), action)()

        widths = [(j < grid_n - 1, tile_n), (j == grid_n - 1, last)] if last != tile_n else [(j >= 0, tile_n)]
        for of_width, columns in widths:
            if direction == "read":
                pl.when(of_width)(functools.partial(act, "sums", columns))
                continue
            pl.when(of_width & is_final)(functools.partial(act, "dw", columns))
            if grid_m > 1:
                pl.when(of_width & ~is_final)(functools.partial(act, "sums", columns))
