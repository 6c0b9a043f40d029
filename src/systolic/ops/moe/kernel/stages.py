"""Blocks of rows on their way to HBM, each through one of a few places in VMEM."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.ops.moe.blocks import ROW_TILE, STAGES


class Stages:
    """Places [STAGES, rows, columns]; `stored`, int32 [1 + STAGES], counts blocks and keeps the rows of the last."""

    def __init__(self, stages: Any, out: Any, stored: Any, sems: Any) -> None:
        self._stages, self._out, self._stored, self._sems = stages, out, stored, sems

    @staticmethod
    def stored_scratch() -> Any:
        return pltpu.SMEM((1 + STAGES,), jnp.int32)

    def begin(self) -> None:
        self._stored[0] = jnp.int32(0)

    def reserve(self) -> Any:
        """Return the next block's place, when it is free."""
        number = self._stored[0]
        stage = lax.rem(number, jnp.int32(STAGES))
        pl.when(number >= STAGES)(lambda: self._departure(stage, 0, self._stored[1 + stage], 0).wait())
        return stage

    def send(self, stage: Any, row: Any, rows: Any, column: Any = 0) -> None:
        """Send whole registers of rows to rows of HBM from `row` on, and columns from `column` on."""
        self._departure(stage, row, rows, column).start()
        self._stored[1 + stage] = rows
        self._stored[0] += 1

    def _departure(self, stage: Any, row: Any, rows: Any, column: Any) -> Any:
        rows, width = pl.multiple_of(rows, ROW_TILE), self._stages.shape[2]
        columns = slice(None) if width == self._out.shape[1] else pl.ds(pl.multiple_of(column, width), width)
        target = self._out.at[pl.ds(pl.multiple_of(row, ROW_TILE), rows), columns]
        return pltpu.make_async_copy(self._stages.at[stage, pl.ds(0, rows), :], target, self._sems.at[stage])

    def end(self) -> None:
        for stage in range(STAGES):
            wait = functools.partial(self._departure, stage, 0, self._stored[1 + stage], 0)
            pl.when(self._stored[0] > stage)(lambda wait=wait: wait().wait())
