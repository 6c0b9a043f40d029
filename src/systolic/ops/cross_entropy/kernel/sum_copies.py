"""Copies of the sums of w's gradient between HBM and VMEM, which take place during other steps' products."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.subtiles import times
from systolic.ops.cross_entropy.kernel.gradient_refs import GradientRefs
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, LossSchedule


@dataclass(frozen=True, slots=True)
class SumCopies:
    """Copies of dw's tiles between HBM and the slots; the last tile of the vocabulary is narrower."""

    schedule: LossSchedule
    refs: GradientRefs
    core: Any

    def each(self, step: Any, direction: str, action: str) -> None:
        """Start a copy of a step's tile, or wait for it: of sums, or for the last tile of rows of the gradient."""
        schedule, refs = self.schedule, self.refs
        (_, grid_m, grid_n), tile_n = schedule.core_grid, schedule.config.tiles.tile_n
        depth = schedule.stored_depth
        rows = pl.ds(times(self.core, depth), depth)
        j, last = lax.rem(step, jnp.int32(grid_n)), schedule.last_columns
        sums = refs.outputs.sums_hbm, refs.scratch.sums_vmem, DW_SLOTS
        dw_slots = (refs.scratch.dw_vmem, CONVERTED_SLOTS) if schedule.converts_dw else sums[1:]
        dw = refs.outputs.dw_hbm, dw_slots[0], dw_slots[1]
        semaphores = refs.scratch.read_sem if direction == "read" else refs.scratch.write_sem
        is_final = step >= (grid_m - 1) * grid_n

        def act(kind: str, columns: int) -> None:
            in_hbm, in_vmem, slots = dw if kind == "dw" else sums
            semaphore = semaphores.at[lax.rem(step, jnp.int32(DW_SLOTS))]
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
