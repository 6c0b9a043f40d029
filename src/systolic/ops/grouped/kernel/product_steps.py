"""The steps of a grouped product: the copies that each one starts and waits for, and its products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.dots import dot
from systolic.kernels.epilogue import apply_epilogue
from systolic.kernels.registers import Parts, block_of, parts_of, spread_over_registers
from systolic.kernels.ring import Act, Ring
from systolic.ops.grouped.code_blocks import RowBlock
from systolic.ops.grouped.kernel.product_arrays import At, Buffers, GroupedOperands
from systolic.ops.grouped.kernel.product_outputs import Outputs, rows_of
from systolic.ops.grouped.kernel.visits import Field, Groups, Listed, Panels
from systolic.ops.grouped.schedule import GroupedSchedule
from systolic.ops.grouped.spec import GroupedSpec
from systolic.schedule import LANES

Fn = Callable[[Array], Array]


class _Front(NamedTuple):
    number: Any
    at: At


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    refs: GroupedOperands
    buffers: Buffers
    spec: GroupedSpec
    schedule: GroupedSchedule
    activation: Fn | None
    outputs: Outputs

    def run(self) -> None:
        """List the visits, take all steps, and store the rows that no group has."""
        schedule, zero = self.schedule, jnp.int32(0)
        groups = Groups(self.refs.sizes, self.refs.offset, self.spec.groups, self.spec.m)
        panels = Panels(groups=groups, table=self.buffers.table, schedule=schedule)
        begin = At(zero, zero)

        def list_and_fetch(part: Any, state: tuple[Listed, _Front]) -> tuple[Listed, _Front]:
            listed, front = state
            listed = panels.list(listed, jnp.where(part == 0, schedule.weight_slots + 1, schedule.most_visits + 1))
            # The step after the last visit depends on whether its panel ends.
            steps = jnp.where(panels.is_whole(listed), listed.visits * schedule.core_n, listed.visits - 1)
            return listed, self._fetch(steps, zero, begin, front)

        # First as many visits as there are slots, whose copies run while the others are listed.
        listed, front = lax.fori_loop(0, 2, list_and_fetch, (panels.begin(), _Front(zero, begin)))
        self.outputs.begin(listed)
        steps = listed.visits * schedule.core_n

        def step(number: Any, state: tuple[_Front, At]) -> tuple[_Front, At]:
            front, at = state
            front = self._fetch(steps, number, at, front)
            self._step(number, at)
            return front, self._after(at)

        lax.fori_loop(0, steps, step, (front, begin))
        self.outputs.end(listed)

    def _of(self, at: At, field: int) -> Any:
        return self.buffers.table[field, at.visit]

    def _weight_columns(self, tile: Any, product: int, columns: Any) -> Any:
        """Return the columns of a tile in the array that has a product's weights."""
        schedule, spec = self.schedule, self.spec
        if not spec.side_by_side:
            return columns
        begin = product * spec.n + (self.outputs.first_tile + tile) * schedule.tile_n
        return pl.ds(pl.multiple_of(begin, schedule.tile_n), schedule.tile_n)

    def _after(self, at: At) -> At:
        last = self._of(at, Field.LAST) == 1
        again = last & (at.tile < self.schedule.core_n - 1)
        return At(
            jnp.where(again, self._of(at, Field.FIRST), at.visit + 1),
            jnp.where(last, jnp.where(again, at.tile + 1, 0), at.tile),
        )

    def _panel_and_tile(self, at: At) -> Any:
        """Return the number of a panel's tile of columns among the tiles of all panels."""
        return self._of(at, Field.PANEL) * self.schedule.core_n + at.tile

    def _residual_rows(self, at: At) -> tuple[Any, Any]:
        slot = lax.rem(self._panel_and_tile(at), jnp.int32(self.schedule.residual_slots))
        return slot, lax.rem(self._of(at, Field.PLACE), jnp.int32(self.schedule.panel))

    def _fetch(self, steps: Any, number: Any, at: At, front: _Front) -> _Front:
        """Start copies for later steps than the one at `at`, as far as there are slots."""
        schedule, panel = self.schedule, self._of(at, Field.PANEL)

        def has_room_for_rows(front: _Front) -> Any:
            return self._of(front.at, Field.PANEL) < panel + schedule.panels

        def has_slot_for_residual(front: _Front) -> Any:
            return self._panel_and_tile(front.at) < self._panel_and_tile(at) + schedule.residual_slots

        def start(front: _Front) -> _Front:
            self._copies.start((front.number, front.at))
            return _Front(front.number + 1, self._after(front.at))

        rooms = [has_room_for_rows] if self.refs.residual is None else [has_room_for_rows, has_slot_for_residual]
        return self._copies.fetch_while(front, number, steps, rooms, start)

    @property
    def _copies(self) -> Ring:
        """The ring of a step's inputs: rows of its visit, if it has the first tile, and columns of its tile."""

        def copies(step: tuple[Any, At], act: Act) -> None:
            number, at = step
            # Rows first: copies end in the order in which they were started.
            for copy in self._row_copies(number, at):
                pl.when(at.tile == 0)(lambda copy=copy: act(copy))

            def on_columns(columns: Any, in_buffer: Any) -> None:
                for copy in self._tile_copies(number, at, columns, in_buffer):
                    act(copy)

            self.outputs.on_tile(at.tile, on_columns)

        return Ring(slots=self.schedule.weight_slots, copies=copies)

    def _row_copies(self, number: Any, at: At) -> list[Any]:
        slot = lax.rem(number, jnp.int32(self.schedule.weight_slots))
        size = rows_of(self.schedule, self._of(at, Field.SIZE))
        source = pl.ds(rows_of(self.schedule, self._of(at, Field.BEGIN)), size)
        target = pl.ds(rows_of(self.schedule, self._of(at, Field.PLACE)), size)
        buffers, refs = self.buffers, self.refs
        result = [pltpu.make_async_copy(refs.lhs.at[source, :], buffers.rows.at[target, :], buffers.rows_sem.at[slot])]
        scales = (
            (refs.row_scale, buffers.scale, buffers.scale_sem),
            (refs.lhs_scale, buffers.lhs_scale, buffers.lhs_scale_sem),
        )
        for array, buffer, sem in scales:
            if array is not None:
                result.append(pltpu.make_async_copy(array.at[source, :], buffer.at[target, :], sem.at[slot]))
        return result

    def _tile_copies(self, number: Any, at: At, columns: Any, buffer_columns: Any) -> list[Any]:
        slot = lax.rem(number, jnp.int32(self.schedule.weight_slots))
        group, buffers, refs, spec = self._of(at, Field.GROUP), self.buffers, self.refs, self.spec
        result = []
        for product in range(spec.products):
            source = refs.up if product and not spec.side_by_side else refs.rhs
            across = self._weight_columns(at.tile, product, columns)
            cuts = across, buffer_columns
            tile, place = ((cut, slice(None)) if spec.transpose_rhs else (slice(None), cut) for cut in cuts)
            weights = buffers.weights.at[slot, product, *place]
            result.append(pltpu.make_async_copy(source.at[group, *tile], weights, buffers.weights_sem.at[slot]))
        if refs.bias is not None:
            bias = refs.bias.at[group, :, columns], buffers.bias.at[slot, :, buffer_columns]
            result.append(pltpu.make_async_copy(*bias, buffers.bias_sem.at[slot]))
        if refs.rhs_scale is not None:
            if spec.scale_columns > 1:
                scale = refs.rhs_scale.at[group], buffers.rhs_scale.at[slot]
            else:
                scale = refs.rhs_scale.at[group, :, columns], buffers.rhs_scale.at[slot, :, buffer_columns]
            result.append(pltpu.make_async_copy(*scale, buffers.rhs_scale_sem.at[slot]))
        if refs.residual is not None:
            residual_slot, row = self._residual_rows(at)
            size, begin = (rows_of(self.schedule, self._of(at, field)) for field in (Field.SIZE, Field.BEGIN))
            rows = block_of(refs.residual, pl.ds(begin, size), columns)
            target = buffers.residual.at[residual_slot, pl.ds(rows_of(self.schedule, row), size), buffer_columns]
            result.append(pltpu.make_async_copy(rows, target, buffers.residual_sem.at[slot]))
        return result

    def _step(self, number: Any, at: At) -> None:
        self._copies.wait((number, at))
        slot = self._copies.slot(number)
        size = self._of(at, Field.SIZE)
        if self.buffers.column_scale is not None:
            self._scale_columns(at, slot)

        largest, *smaller = self.schedule.blocks
        count = lax.div(jnp.maximum(size - largest.above + largest.rows - 1, 0), largest.rows)

        def whole(index: Any, carry: None) -> None:
            row, out_slot = index * largest.rows, self.outputs.next_slot()
            self._multiply(at, slot, row, out_slot, largest)
            self.outputs.store(at, row, largest.rows, out_slot)
            return carry

        lax.fori_loop(0, count, whole, None)
        if not smaller:
            return

        def rest(row: Any) -> Any:
            out_slot, rows = self.outputs.next_slot(), jnp.int32(smaller[-1].rows)
            for block in reversed(smaller[:-1]):
                rows = jnp.where(size - row > block.above, block.rows, rows)
            for block in smaller:
                pl.when(rows == block.rows)(lambda block=block: self._multiply(at, slot, row, out_slot, block))
            self.outputs.store(at, row, rows, out_slot)
            return row + rows

        lax.while_loop(lambda row: row < size, rest, count * largest.rows)

    def _multiply(self, at: At, slot: Any, row: Any, out_slot: Any, block: RowBlock) -> None:
        """Multiply a block of rows by all columns of the tile, into a slot of the ring of results."""
        buffers, spec, schedule = self.buffers, self.spec, self.schedule
        rows = pl.ds(rows_of(schedule, self._of(at, Field.PLACE) + row), block.rows)
        residual = self._residual_of(at, row, block)

        def one(columns: Any, width: int) -> None:
            total, *up = (self._scaled(rows, slot, product, columns, width, block) for product in range(spec.products))
            buffers.out[out_slot, pl.ds(0, block.rows), columns] = apply_epilogue(
                total,
                spec.dtype_out,
                bias=None if buffers.bias is None else lambda: buffers.bias[slot, :, columns],
                activation=self.activation,
                up=up[0] if up else None,
                row_scale=None if buffers.scale is None else lambda: buffers.scale[rows, :],
                residual=None if residual is None else lambda: residual[:, columns],
            )

        for parts in parts_of(schedule.tile_n, block.columns):
            pl.loop(0, parts.how_many)(lambda index, parts=parts: one(parts.at(index), parts.size))

    def _residual_of(self, at: At, row: Any, block: RowBlock) -> Any:
        """Return the residual of a block of rows, with all columns of the tile."""
        if self.buffers.residual is None:
            return None
        slot, begin = self._residual_rows(at)
        return self.buffers.residual.at[slot, pl.ds(rows_of(self.schedule, begin + row), block.rows), :]

    def _scaled(self, rows: Any, slot: Any, product: int, columns: Any, width: int, block: RowBlock) -> Array:
        total = self._total(rows, slot, product, columns, width, block)
        if self.buffers.rhs_scale is not None and self.spec.scale_blocks == 1:
            total = total * self._scale(slot, product, 0, columns)
        return total if self.buffers.lhs_scale is None else total * self.buffers.lhs_scale[rows, :]

    def _scale(self, slot: Any, product: int, block: Any, columns: Any) -> Array:
        """Return the scales of a block of k."""
        row = pl.ds(product * self.spec.scale_blocks + block, 1)
        if self.buffers.column_scale is not None:
            return self.buffers.column_scale[row, columns]
        return self.buffers.rhs_scale[slot, row, columns]

    def _scale_columns(self, at: At, slot: Any) -> None:
        """Write the scales of a step's columns, of those that whole registers of columns share."""
        first = (self.outputs.first_tile + at.tile) * (self.schedule.tile_n // LANES)
        spread_over_registers(self.buffers.rhs_scale[slot], self.buffers.column_scale, first)

    def _total(self, rows: Any, slot: Any, product: int, columns: Any, width: int, block: RowBlock) -> Array:
        """Return a product of a block with `columns` of the weights, over all of k, with the scales of blocks of k."""
        buffers, spec = self.buffers, self.spec

        def partial(depth: Any) -> Array:
            tile = (columns, depth) if spec.transpose_rhs else (depth, columns)
            # Quantized weights are exact in the dtype of the rows; scales multiply the sums.
            weights = buffers.weights[slot, product, *tile].astype(spec.dtype_pushed)
            return dot(buffers.rows[rows, depth], weights, (1, 1 if spec.transpose_rhs else 0), spec)

        def scaled(part: Parts, number: Any) -> Array:
            """Return the sum of a part of k, a stretch of whole blocks if these have scales."""
            if spec.scale_blocks == 1:
                return partial(part.at(number))
            scale_block = spec.k // spec.scale_blocks
            first = part.first + number * part.size
            total = None
            for begin in range(0, part.size, scale_block):
                row = first + begin if isinstance(number, int) else pl.multiple_of(first + begin, scale_block)
                scale = self._scale(slot, product, lax.div(row, scale_block), columns)
                of_block = partial(pl.ds(row, scale_block)) * scale
                total = of_block if total is None else total + of_block
            assert total is not None
            return total

        if buffers.acc is None:
            return scaled(parts_of(spec.k, spec.k)[0], 0)
        acc = buffers.acc.at[product, pl.ds(0, block.rows), pl.ds(0, width)]

        def add(number: Any) -> None:
            partial_sum = scaled(first_part, number)
            acc[...] = jnp.where(number == 0, jnp.zeros_like(partial_sum), acc[...]) + partial_sum

        first_part, *rest = parts_of(spec.k, block.depth)
        pl.loop(0, first_part.how_many)(add)
        for later_part in rest:
            acc[...] += scaled(later_part, 0)
        return acc[...]
