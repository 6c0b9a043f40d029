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
from systolic.ops.moe.kernel.rounded_sums import round_sums
from systolic.ops.moe.ring.products import SUM_STAGES, ScatterProductsSchedule
from systolic.ops.moe.ring.schedule import WAYS, Field

_OWN_AFTER = 12  # sends of the next tile, while the last sums of neighbors arrive


class Sends:
    """The sums of pieces of tokens, which are sent on with those that have arrived for them."""

    def __init__(self, refs: Any, schedule: ScatterProductsSchedule, walk: Walk) -> None:
        self._refs, self._schedule, self._walk = refs, schedule, walk
        self._sends = refs.table.shape[0]
        self._on_ring = self._sends - schedule.scatter.pieces
        self._nothing = refs.arrivals.shape[0] - 1
        self.head = min(2 * WAYS, self._on_ring)  # at once, so that links are busy
        self._first_own = min(_OWN_AFTER, self._on_ring)
        # The last tile's own pieces are stored in the place that they would have in the next tile.
        self.count = schedule.tiles * self._sends + self._first_own + schedule.scatter.pieces

    def _item(self, number: Any) -> tuple[Any, Any, Any]:
        """Return the tile of a send, its row in the table, and True if there is one.

        A tile's own pieces, which wait for the last sums of neighbors, are after some sends of the next tile.
        """
        tile, at = lax.div(number, jnp.int32(self._sends)), lax.rem(number, jnp.int32(self._sends))
        pieces, first = self._schedule.scatter.pieces, self._first_own
        is_own = (at >= first) & (at < first + pieces)
        send = jnp.where(is_own, at + (self._on_ring - first), jnp.where(at < first, at, at - pieces))
        tile = tile - jnp.where(is_own, 1, 0)
        return tile, send, (tile >= 0) & (tile < self._schedule.tiles)

    def _sent(self, number: Any, direction: int) -> Any:
        refs, arrivals = self._refs, self._schedule.scatter.arrivals
        (tile, send, _), stage = self._item(number), lax.rem(number, SUM_STAGES)
        place = tile * arrivals + jnp.maximum(refs.table[send, Field.SENT], 0)
        source, target = refs.stages.at[stage], refs.arrivals.at[place]
        return self._walk.copy_on(source, target, refs.send_sem.at[stage], refs.recv_sem.at[place], direction)

    def _own(self, number: Any) -> Any:
        refs, columns, tokens = self._refs, self._schedule.columns, self._schedule.scatter.combine.tokens
        (tile, send, _), stage = self._item(number), lax.rem(number, SUM_STAGES)
        rows = pl.ds(pl.multiple_of(refs.table[send, Field.OWN] * tokens, tokens), tokens)
        target = refs.out.at[rows, pl.ds(pl.multiple_of(tile * columns, columns), columns)]
        return pltpu.make_async_copy(refs.stages.at[stage], target, refs.send_sem.at[stage])

    def end(self, number: Any) -> None:
        """Wait until a stage is free again."""
        _, send, exists = self._item(number)
        place = self._refs.table[send, Field.SENT]
        pl.when(exists & (place >= 0))(lambda: self._sent(number, 0).wait_send())
        pl.when(exists & (place < 0))(lambda: self._own(number).wait())

    def send(self, number: Any) -> None:
        """Round the sums of a piece, and send them."""
        pl.when(number >= SUM_STAGES)(lambda: self.end(number - SUM_STAGES))
        pl.when(self._item(number)[2])(lambda: self._send(number))

    def _send(self, number: Any) -> None:
        refs, schedule = self._refs, self._schedule
        (tile, send, _), stage = self._item(number), lax.rem(number, SUM_STAGES)
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

        first_token = refs.table[send, Field.BLOCK] * schedule.scatter.combine.tokens
        arrivals = [refs.arrivals.at[place] for place in places]
        round_sums(refs.sums.at[lax.rem(tile, 2)], first_token, refs.stages.at[stage], arrivals)
        sent, way = refs.table[send, Field.SENT], refs.table[send, Field.WAY]
        for direction in DIRECTIONS:
            is_sent = (sent >= 0) & (way == direction)
            pl.when(is_sent)(lambda direction=direction: self._sent(number, direction).start())
        pl.when(sent < 0)(lambda: self._own(number).start())
