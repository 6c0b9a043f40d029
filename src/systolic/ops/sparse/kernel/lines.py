"""The steps of `product`: chunks of lines, the panels of each chunk, and the blocks of each line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.dots import dot
from systolic.kernels.epilogue import apply_epilogue, as_dtype
from systolic.kernels.registers import part
from systolic.kernels.ring import Ring
from systolic.ops.sparse.kernel.lists import BlockList, ListBuffers, Panels, Places, joined, with_code_for
from systolic.ops.sparse.schedule import ProductSchedule
from systolic.ops.sparse.spec import SparseSpec


class ProductOperands(NamedTuple):
    places: Places
    blocks: Any  # [blocks, *stored block]; the list may be a part of them
    dense: Any  # rhs [k, n] of dsd, lhs [m, k] of dds
    bias: Any = None  # float32 [1, n]
    first: Any = None  # int32 [1], in SMEM: the block with which the list begins; None: the first one


class Buffers(NamedTuple):
    list: ListBuffers
    blocks: Any  # [slots, *stored block]
    panel: Any  # [panel slots, k, tile], of dds [panel slots, tile, k]
    acc: Any  # [line, tile], of dds [tile, line]
    out: Any  # [out slots, as acc]
    blocks_sem: Any
    panel_sem: Any
    out_sem: Any


class _State(NamedTuple):
    started: Any  # copies of blocks, each of `fetched` of them
    arrived: Any
    stored: Any  # lines of the result
    panels: Any  # panels that have passed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    refs: ProductOperands
    out_hbm: Any
    buffers: Buffers
    list: BlockList
    spec: SparseSpec
    schedule: ProductSchedule
    cores: int
    activation: Callable[[Array], Array] | None

    @property
    def _turned(self) -> bool:
        return self.spec.kind == "dds"

    @property
    def _panels(self) -> Panels:
        schedule = self.schedule
        return Panels(
            source=self.refs.dense,
            target=self.buffers.panel,
            sem=self.buffers.panel_sem,
            axis=0 if self._turned else 1,
            size=schedule.tile,
            grid=schedule.grid,
            parts=schedule.parts,
        )

    def run(self) -> None:
        schedule = self.schedule
        core_lines = -(-schedule.grid // self.cores)
        first = pl.program_id(0) * core_lines if self.cores > 1 else jnp.int32(0)
        end = jnp.minimum(first + core_lines, schedule.grid)
        zero = jnp.int32(0)

        @pl.when(first < end)
        def _work() -> None:
            self._panels.start(0, schedule.parts, first, 0)
            state = self._fetch(zero, _State(zero, zero, zero, zero))

            def chunk(at: tuple[Any, _State]) -> tuple[Any, _State]:
                line, state = at
                chunk_end = self._chunk_end(line)
                state = lax.fori_loop(
                    first, end, lambda panel, state: self._panel(line, chunk_end, (first, panel, end), state), state
                )
                return chunk_end, state

            _, state = lax.while_loop(lambda at: at[0] < self.spec.lines, chunk, (zero, state))

            used_slots = jnp.minimum(state.stored, schedule.out_slots)
            self._outs.wait_all(0, used_slots, lambda slot: (zero, zero, slot))

    def _chunk_end(self, line: Any) -> Any:
        """Return the line after the last one of a chunk, such that chunks have about equally many blocks."""
        begins, capacity, lines = self.list.begins, self.schedule.capacity, self.spec.lines
        begin = begins[line]
        left = begins[lines] - begin
        share = lax.div(left, jnp.maximum(lax.div(left + (capacity - 1), jnp.int32(capacity)), 1))

        def fits(line: Any) -> Any:
            next_begin = begins[jnp.minimum(line + 1, lines)]
            is_empty = next_begin == begins[jnp.minimum(line, lines)]
            return (line < lines) & (next_begin - begin <= capacity) & (is_empty | (begins[line] - begin < share))

        return lax.while_loop(fits, lambda line: line + 1, line)

    def _panel(self, line: Any, behind: Any, panels: tuple[Any, Any, Any], state: _State) -> _State:
        """Multiply one panel by all lines of a chunk, while the next one arrives."""
        schedule, (first, panel, end) = self.schedule, panels
        is_last, is_one = panel == end - 1, end - first == 1  # one panel stays
        slot = jnp.where(is_one, 0, lax.rem(state.panels, jnp.int32(schedule.panel_slots)))
        pl.when((state.panels == 0) | jnp.logical_not(is_one))(lambda: self._panels.wait(slot))
        has_next = jnp.logical_not(is_one) & (jnp.logical_not(is_last) | (behind < self.spec.lines))
        next_panel, next_slot = jnp.where(is_last, first, panel + 1), lax.rem(slot + 1, jnp.int32(schedule.panel_slots))

        def one_line(number: Any, state: _State) -> _State:
            used_blocks = self.list.begins[jnp.where(is_last, number, line)]
            state = self._line(number, panel, slot, used_blocks, state)

            @pl.when(has_next)
            def _arrives() -> None:
                self._panels.start(*self._panels.due(number - line, behind - line), next_panel, next_slot)

            return self._fetch(self.list.begins[jnp.where(is_last, number + 1, line)], state)

        state = lax.fori_loop(line, behind, one_line, state)
        return state._replace(panels=state.panels + 1)

    def _fetch(self, used: Any, state: _State) -> _State:
        """Start copies of blocks that fit into the room of the blocks before `used`."""
        schedule = self.schedule
        number = self.list.begins[self.spec.lines]
        fetched_number, room = (
            lax.div(limit, jnp.int32(schedule.fetched))
            for limit in (number + schedule.fetched - 1, used + schedule.slots)
        )
        end = jnp.minimum(jnp.minimum(fetched_number, room), state.arrived + schedule.under_way)
        self._blocks.start_all(state.started, end)
        return state._replace(started=jnp.maximum(state.started, end))

    @property
    def _blocks(self) -> Ring:
        return Ring(
            slots=self.schedule.slots // self.schedule.fetched, copies=lambda copy, act: act(self._block_copy(copy))
        )

    @property
    def _outs(self) -> Ring:
        return Ring(slots=self.schedule.out_slots, copies=lambda place, act: act(self._out_copy(*place)))

    def _block_copy(self, copy: Any) -> Any:
        schedule = self.schedule
        slot = self._blocks.slot(copy)
        order, first = self.list.order, self.refs.first
        block = copy * schedule.fetched if order is None else order[copy]
        source = self.refs.blocks.at[pl.ds(block if first is None else first[0] + block, schedule.fetched)]
        target = self.buffers.blocks.at[pl.ds(slot * schedule.fetched, schedule.fetched)]
        sem = self.buffers.blocks_sem.at[lax.rem(copy, jnp.int32(schedule.under_way))]
        return pltpu.make_async_copy(source, target, sem)

    def _out_copy(self, line: Any, panel: Any, slot: Any) -> Any:
        schedule, spec = self.schedule, self.spec
        along, across = part(line, spec.line_size, spec.lines), part(panel, schedule.tile, schedule.grid)
        target = self.out_hbm.at[(across, along) if self._turned else (along, across)]
        return pltpu.make_async_copy(self.buffers.out.at[slot], target, self.buffers.out_sem.at[slot])

    def _line(self, line: Any, panel: Any, slot: Any, used: Any, state: _State) -> _State:
        begins, schedule, outs = self.list.begins, self.schedule, self._outs
        begin, end = begins[line], begins[line + 1]
        out_slot = outs.slot(state.stored)
        place = (line, panel, out_slot)

        def arrive(copy: Any, state: _State) -> _State:
            self._blocks.wait(copy)
            return self._fetch(used, state._replace(arrived=copy + 1))

        state = lax.fori_loop(
            state.arrived, lax.div(end + (schedule.fetched - 1), jnp.int32(schedule.fetched)), arrive, state
        )
        outs.reserve(state.stored, place)
        stretches = lax.div(jnp.maximum(end - begin - 1, 0), jnp.int32(schedule.joined))  # stretches that only add up

        def add(number: Any, carry: None) -> None:
            self._multiply(begin + number * schedule.joined, schedule.joined, slot, number > 0, None)
            return carry

        lax.fori_loop(0, stretches, add, None)
        block = begin + stretches * schedule.joined
        pl.when(begin == end)(lambda: self._empty(out_slot))
        with_code_for(
            end - block, schedule.joined, lambda number: self._multiply(block, number, slot, stretches > 0, out_slot)
        )
        if self._has_end:
            self._finish(line, panel, out_slot)
        outs.start(place)
        return state._replace(stored=state.stored + 1)

    @property
    def _has_end(self) -> bool:
        return self.spec.bias or self.activation is not None

    def _empty(self, out_slot: Any) -> None:
        target = self.buffers.acc if self._has_end else self.buffers.out.at[out_slot]
        target[...] = jnp.zeros_like(target)

    def _subtile(self, number: Any) -> tuple[Any, Any]:
        subtile_columns = part(number, self.schedule.subtile, self.schedule.tile // self.schedule.subtile)
        return (subtile_columns, slice(None)) if self._turned else (slice(None), subtile_columns)

    def _multiply(self, block: Any, number: int, slot: Any, has_sums: Any, out_slot: Any) -> None:
        """Add the products of `number` blocks to the sums, or store their sum as the result.

        Store slots are the scarcest: complete sums are stored only as the result.

        Args:
          has_sums: True if there are sums of earlier blocks.
          out_slot: slot of the result; None: more blocks follow.
        """
        buffers, spec = self.buffers, self.spec
        first, slots = lax.rem(block, jnp.int32(self.schedule.slots)), self.schedule.slots
        # A remainder takes long on the scalar unit.
        rings = [first, *(jnp.where(first + at >= slots, first + (at - slots), first + at) for at in range(1, number))]
        places = [self.list.places[block + at] for at in range(number)]
        along = [part(place, spec.place_size, spec.places) for place in places]

        @pl.loop(0, self.schedule.tile // self.schedule.subtile)
        def _(subtile: Any) -> None:
            where = self._subtile(subtile)
            blocks = [buffers.blocks[ring] for ring in rings]
            # A stored block is summed over along its columns as a lhs, along its rows as a rhs; transposed vice versa.
            summed = 1 if self._turned == spec.transpose_sparse else 0
            if self._turned:
                left, right = (
                    joined([buffers.panel[slot, where[0], place] for place in along], 1),
                    joined(blocks, summed),
                )
                contracted = (1, summed)
            else:
                left, right = (
                    joined(blocks, summed),
                    joined([buffers.panel[slot, place, where[1]] for place in along], 0),
                )
                contracted = (summed, 0)
            partial_sum = buffers.acc[where]
            total = dot(left, right, contracted, spec) + jnp.where(has_sums, partial_sum, jnp.zeros_like(partial_sum))
            if out_slot is None or self._has_end:
                buffers.acc[where] = total
            else:
                buffers.out[(out_slot, *where)] = as_dtype(total, spec.dtype_out)

    def _finish(self, line: Any, panel: Any, out_slot: Any) -> None:
        buffers, spec, schedule = self.buffers, self.spec, self.schedule

        @pl.loop(0, schedule.tile // schedule.subtile)
        def _(subtile: Any) -> None:
            where = self._subtile(subtile)
            total, bias = buffers.acc[where], None
            if spec.bias:
                size, number, count = schedule.subtile, panel * (schedule.tile // schedule.subtile) + subtile, spec.n
                if self._turned:
                    size, number = spec.line_size, line
                bias = self.refs.bias[:, part(number, size, count // size)]
            buffers.out[(out_slot, *where)] = apply_epilogue(
                total, spec.dtype_out, bias=bias, activation=self.activation
            )
