"""Copies of a grouped product's result to HBM, and the rows that no group has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.registers import block_of, on_tile, wide
from systolic.ops.grouped.kernel.product_arrays import At, Buffers
from systolic.ops.grouped.kernel.visits import Field, Listed, down
from systolic.ops.grouped.schedule import GroupedSchedule
from systolic.ops.grouped.spec import GroupedSpec


def rows_of(schedule: GroupedSchedule, row: Any) -> Any:
    """Return a row, or a number of rows, declared as a multiple of a register's rows."""
    return pl.multiple_of(row, schedule.row_multiple)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """The result: a ring of blocks in VMEM, and registers that two groups share.

    It is not a `kernels.ring.Ring`: a block has any number of rows, so SMEM holds the number of rows that each slot
    stores.
    """

    out_hbm: Any
    buffers: Buffers
    spec: GroupedSpec
    schedule: GroupedSchedule
    first_tile: Any  # of columns, of this core

    def on_tile(self, tile: Any, act: Callable[[Any, Any], None]) -> None:
        """Call `act` with the columns of one of this core's tiles, and the columns of its buffer."""
        on_tile(self.first_tile + tile, self.schedule, act)

    def begin(self, listed: Listed) -> None:
        """Initialize: no copy is under way, and no register is shared except with rows that are to remain."""
        self.buffers.shared[...] = jnp.zeros_like(self.buffers.shared)
        if self.spec.existing_out:
            self._fetch_first_register(listed)
        for slot in range(self.schedule.out_slots + 1):
            self.buffers.stored[slot] = 0

    def end(self, listed: Listed) -> None:
        self._drain()
        self._zero_rest(listed)

    def _start(self, slot: Any, rows: Any, row: Any, tile: Any) -> None:
        """Start the copy of `rows` of a slot to a row and a tile of the result."""
        self.on_tile(tile, lambda columns, buffer_columns: self._copy(slot, rows, row, columns, buffer_columns).start())

    def next_slot(self) -> Any:
        """Return the next free slot of the ring of results."""
        stored, slots = self.buffers.stored, self.schedule.out_slots
        slot = stored[slots]
        stored[slots] = jnp.where(slot == slots - 1, 0, slot + 1)
        rows = stored[slot]
        pl.when(rows > 0)(lambda: self._wait(slot, rows))
        return slot

    def _wait(self, slot: Any, rows: Any) -> None:
        tiles = self.buffers.stored_tile
        tile = 0 if tiles is None else tiles[slot]
        self.on_tile(tile, lambda columns, buffer_columns: self._copy(slot, rows, 0, columns, buffer_columns).wait())

    def _copy(self, slot: Any, rows: Any, row: Any, columns: Any, buffer_columns: Any) -> Any:
        rows, buffers = rows_of(self.schedule, rows), self.buffers
        target = block_of(self.out_hbm, pl.ds(rows_of(self.schedule, row), rows), columns)
        return pltpu.make_async_copy(
            buffers.out.at[slot, pl.ds(0, rows), buffer_columns], target, buffers.out_sem.at[slot]
        )

    def store(self, at: At, row: Any, rows: Any, slot: Any) -> None:
        """Send a block of at most `rows` rows to HBM, except a last register that the next group shares."""
        buffers, multiple = self.buffers, self.schedule.row_multiple
        size, head, kept_rows = (self.buffers.table[field, at.visit] for field in (Field.SIZE, Field.HEAD, Field.KEPT))

        @pl.when((head > 0) & (row == 0))
        def _rows_of_groups_before() -> None:
            number = lax.broadcasted_iota(jnp.int32, (multiple, self.schedule.tile_n), 0)
            mine, theirs = wide(buffers.out[slot, pl.ds(0, multiple), :]), wide(buffers.shared[at.tile])
            buffers.out[slot, pl.ds(0, multiple), :] = jnp.where(number < head, theirs, mine).astype(buffers.out.dtype)

        @pl.when((kept_rows < size) & (row + rows >= size))
        def _left_for_the_next_group() -> None:
            buffers.shared[at.tile] = buffers.out[
                slot, pl.ds(rows_of(self.schedule, size - multiple - row), multiple), :
            ]

        stored = jnp.clip(kept_rows - row, 0, rows)
        buffers.stored[slot] = stored
        if buffers.stored_tile is not None:
            buffers.stored_tile[slot] = at.tile
        begin = buffers.table[Field.BEGIN, at.visit] + row
        pl.when(stored > 0)(lambda: self._start(slot, stored, begin, at.tile))

    def _fetch_first_register(self, listed: Listed) -> None:
        """Fetch the rows that are to remain before the first group's rows in its first register."""

        @pl.when((listed.visits > 0) & (lax.rem(listed.begin, jnp.int32(self.schedule.row_multiple)) > 0))
        def _fetch() -> None:
            row = down(listed.begin, self.schedule.row_multiple)

            def fetch(tile: Any, carry: None) -> None:
                self._bring(row, tile, self.buffers.shared.at[tile])
                return carry

            lax.fori_loop(0, self.schedule.core_n, fetch, None)

    def _bring(self, row: Any, tile: Any, target: Any) -> None:
        """Copy a register of the existing array to VMEM, and wait for it."""
        rows = pl.ds(rows_of(self.schedule, row), self.schedule.row_multiple)

        def bring(columns: Any, buffer_columns: Any) -> None:
            source = self.out_hbm.at[rows, columns]
            copy = pltpu.make_async_copy(source, target.at[:, buffer_columns], self.buffers.out_sem.at[0])
            copy.start()
            copy.wait()

        self.on_tile(tile, bring)

    def _drain(self) -> None:
        def wait(slot: Any, carry: None) -> None:
            rows = self.buffers.stored[slot]
            pl.when(rows > 0)(lambda: self._wait(slot, rows))
            return carry

        lax.fori_loop(0, self.schedule.out_slots, wait, None)

    def _zero_rest(self, listed: Listed) -> None:
        """Store the last register of the last group, and zeros before the first group and after the last one.

        If the result is written into an array, its rows remain in place of zeros.
        """
        buffers, schedule, multiple = self.buffers, self.schedule, self.schedule.row_multiple
        used_rows = listed.end - down(listed.end, multiple)
        has_rows = listed.visits > 0

        @pl.when((used_rows > 0) & has_rows)
        def _last_register() -> None:
            number = lax.broadcasted_iota(jnp.int32, (multiple, schedule.tile_n), 0)

            def store(tile: Any, carry: None) -> None:
                rows = buffers.out.at[0, pl.ds(0, multiple), :]
                rest: Any = 0
                if self.spec.existing_out:
                    self._bring(listed.end - used_rows, tile, rows)
                    rest = wide(rows[...])
                rows[...] = jnp.where(number < used_rows, wide(buffers.shared[tile]), rest).astype(buffers.out.dtype)

                def copy(columns: Any, buffer_columns: Any) -> None:
                    row_copy = self._copy(0, multiple, listed.end - used_rows, columns, buffer_columns)
                    row_copy.start()
                    row_copy.wait()

                self.on_tile(tile, copy)
                return carry

            lax.fori_loop(0, schedule.core_n, store, None)

        if self.spec.existing_out:
            return
        rows = schedule.blocks[0].rows
        begin_row = jnp.where(has_rows, down(listed.begin, multiple), 0)
        end_row = jnp.where(has_rows, down(listed.end + multiple - 1, multiple), 0)

        @pl.when((begin_row > 0) | (end_row < self.spec.m))
        def _zeros() -> None:
            buffers.out[0] = jnp.zeros_like(buffers.out[0])
            for begin, end in ((jnp.int32(0), begin_row), (end_row, jnp.int32(self.spec.m))):
                self._zero(begin, end, rows)

    def _zero(self, begin: Any, end: Any, rows: int) -> None:
        copies = lax.div(end - begin + (rows - 1), rows) * self.schedule.core_n

        def copy(index: Any, act: Callable[[Any], None]) -> None:
            row = begin + lax.div(index, jnp.int32(self.schedule.core_n)) * rows
            size, tile = jnp.minimum(rows, end - row), lax.rem(index, jnp.int32(self.schedule.core_n))
            self.on_tile(tile, lambda columns, buffer_columns: act(self._copy(0, size, row, columns, buffer_columns)))

        def start(index: Any, carry: None) -> None:
            copy(index, lambda row_copy: row_copy.start())
            return carry

        def wait(index: Any, carry: None) -> None:
            copy(index, lambda row_copy: row_copy.wait())
            return carry

        lax.fori_loop(0, copies, start, None)
        lax.fori_loop(0, copies, wait, None)
