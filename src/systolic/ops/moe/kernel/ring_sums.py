"""Sums of pieces of tokens that are sent round a ring of devices, tile of columns by tile.

A sum travels in the dtype of the result; a device adds in float32 and rounds what it passes on. Each sum has a place of
its own in VMEM in which it arrives.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.moe.kernel.packed_rows import SUBLANES
from systolic.ops.moe.ring_products import ROW_TILE, ScatterProductsSchedule
from systolic.ops.moe.ring_schedule import STAGES, Field
from systolic.schedule.legality import LANES


class Sends:
    """The sums of pieces of tokens, which are sent on with those that have arrived for them."""

    def __init__(self, refs: Any, schedule: ScatterProductsSchedule, walk: Walk) -> None:
        self._refs, self._schedule, self._walk = refs, schedule, walk
        self._sends = refs.table.shape[0]
        self._nothing = refs.arrivals.shape[0] - 1

    def _sent(self, number: Any, direction: int) -> Any:
        refs, arrivals = self._refs, self._schedule.scatter.arrivals
        tile, send, stage = lax.div(number, self._sends), lax.rem(number, self._sends), lax.rem(number, STAGES)
        place = tile * arrivals + jnp.maximum(refs.table[send, Field.SENT], 0)
        source, target = refs.stages.at[stage], refs.arrivals.at[place]
        return self._walk.copy_on(source, target, refs.send_sem.at[stage], refs.recv_sem.at[place], direction)

    def _own(self, number: Any) -> Any:
        refs, columns, tokens = self._refs, self._schedule.columns, self._schedule.scatter.combine.tokens
        tile, send, stage = lax.div(number, self._sends), lax.rem(number, self._sends), lax.rem(number, STAGES)
        rows = pl.ds(pl.multiple_of(refs.table[send, Field.OWN] * tokens, tokens), tokens)
        target = refs.out.at[rows, pl.ds(pl.multiple_of(tile * columns, columns), columns)]
        return pltpu.make_async_copy(refs.stages.at[stage], target, refs.send_sem.at[stage])

    def end(self, number: Any) -> None:
        """Wait until a stage is free again."""
        place = self._refs.table[lax.rem(number, self._sends), Field.SENT]
        pl.when(place >= 0)(lambda: self._sent(number, 0).wait_send())
        pl.when(place < 0)(lambda: self._own(number).wait())

    def send(self, tile: Any, send: Any) -> None:
        refs, schedule = self._refs, self._schedule
        number = tile * self._sends + send
        stage = lax.rem(number, STAGES)
        pl.when(number >= STAGES)(lambda: self.end(number - STAGES))
        places = []
        for way in DIRECTIONS:
            place = refs.table[send, Field.ARRIVED + way]
            has_arrival = place < schedule.scatter.arrivals
            place = jnp.where(has_arrival, tile * schedule.scatter.arrivals + place, self._nothing)
            places.append(place)

            @pl.when(has_arrival)
            def _arrived(place: Any = place) -> None:
                target, sems = refs.arrivals.at[place], (refs.send_sem.at[0], refs.recv_sem.at[place])
                self._walk.copy_on(refs.stages.at[0], target, *sems, 0).wait_recv()

        self._round(lax.rem(tile, 2), refs.table[send, Field.BLOCK], stage, places)
        sent, way = refs.table[send, Field.SENT], refs.table[send, Field.WAY]
        for direction in DIRECTIONS:
            is_sent = (sent >= 0) & (way == direction)
            pl.when(is_sent)(lambda direction=direction: self._sent(number, direction).start())
        pl.when(sent < 0)(lambda: self._own(number).start())

    def _round(self, parity: Any, block: Any, stage: Any, places: list[Any]) -> None:
        """Round the sums of a piece, with what has arrived, and set them to zero for the tile after the next."""
        refs, registers, tokens = self._refs, self._schedule.registers, self._schedule.scatter.combine.tokens

        def group(number: Any) -> None:
            rows = pl.ds(pl.multiple_of(number * ROW_TILE, ROW_TILE), ROW_TILE)
            for register in range(registers):
                columns, parts = slice(register * LANES, (register + 1) * LANES), []
                for tile in range(ROW_TILE // SUBLANES):
                    first = (block * tokens + number * ROW_TILE + tile * SUBLANES) * registers + register * SUBLANES
                    words = pl.ds(pl.multiple_of(first, SUBLANES), SUBLANES)
                    parts.append(refs.sums[parity, words, :])
                    refs.sums[parity, words, :] = jnp.zeros((SUBLANES, LANES), jnp.float32)
                total = jnp.concatenate(parts)
                for place in places:
                    total += refs.arrivals[place, rows, columns].astype(jnp.float32)
                refs.stages[stage, rows, columns] = total.astype(refs.stages.dtype)

        pl.loop(0, tokens // ROW_TILE, unroll=2)(group)
