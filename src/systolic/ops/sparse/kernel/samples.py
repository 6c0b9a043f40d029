"""The steps of `sampled`: chunks of blocks, the panels of each chunk, and the lines that have some of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.dots import dot
from systolic.kernels.epilogue import as_dtype
from systolic.kernels.registers import part
from systolic.kernels.ring import Act, Ring
from systolic.ops.sparse.kernel.lists import (
    BlockList,
    Item,
    ListBuffers,
    Panels,
    Places,
    joined,
    over_items,
    with_code_for,
)
from systolic.ops.sparse.kernel.zeros import Zeros
from systolic.ops.sparse.schedule import SampledSchedule
from systolic.ops.sparse.spec import SparseSpec


class SampledOperands(NamedTuple):
    places: Places
    lhs: Any  # [m, k]
    rhs: Any  # [k, n], or [n, k]


class Buffers(NamedTuple):
    list: ListBuffers
    sums: Any  # [slots, block rows, block columns]
    panel: Any  # [panel slots, tile_k, n], or [panel slots, n, tile_k]
    rows: Any  # [row slots, block rows, tile_k]
    out: Any  # [stages, block rows, block columns]
    zeros: Any  # [block rows, zero columns]
    under_way: Any  # int32 [widths]: copies of zeros
    panel_sem: Any
    rows_sem: Any
    out_sem: Any
    zeros_sem: Any  # (widths,)


class _Chunk(NamedTuple):
    """Blocks whose sums are in VMEM, and the lines that have some of them."""

    begin: Any
    end: Any
    line: Any
    lines: Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    refs: SampledOperands
    out_hbm: Any
    buffers: Buffers
    list: BlockList
    spec: SparseSpec
    schedule: SampledSchedule
    cores: int
    band: tuple[int | None, int | None]

    @property
    def _panels(self) -> Panels:
        schedule = self.schedule
        return Panels(
            source=self.refs.rhs,
            target=self.buffers.panel,
            sem=self.buffers.panel_sem,
            axis=1 if self.spec.transpose_rhs else 0,
            size=schedule.tile_k,
            grid=schedule.grid_k,
            parts=schedule.parts,
        )

    @property
    def _zeros(self) -> Zeros:
        widths = self.schedule.zero_widths
        return Zeros(list=self.list, out_hbm=self.out_hbm, buffers=self.buffers, spec=self.spec, widths=widths)

    def run(self) -> None:
        schedule, spec = self.schedule, self.spec
        number = self.list.begins[spec.lines]
        # About equally many blocks in each chunk, and equally many chunks for each core.
        chunks = jnp.maximum(
            lax.div(number + (schedule.slots * self.cores - 1), jnp.int32(schedule.slots * self.cores)), 1
        )
        share = lax.div(number + chunks * self.cores - 1, chunks * self.cores)
        core = pl.program_id(0) if self.cores > 1 else jnp.int32(0)
        zeros = self._zeros
        zeros.prepare()
        self._panels.start(0, schedule.parts, 0, 0)
        passes = chunks * schedule.grid_k

        def chunk(at: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            line, stored = state
            begin = jnp.minimum((core * chunks + at) * share, number)
            chunk = self._chunk(begin, jnp.minimum(begin + share, number), line)
            self._rows(chunk).fill(chunk.lines * schedule.grid_k)

            def panel(kk: Any, stored: Any) -> Any:
                turn = at * schedule.grid_k + kk
                zeros.fill(core * passes + turn, passes * self.cores)
                return self._panel(chunk, kk, turn, turn + 1 < passes, stored)

            return chunk.line, lax.fori_loop(0, schedule.grid_k, panel, stored)

        _, stored = lax.fori_loop(0, chunks, chunk, (jnp.int32(0), jnp.int32(0)))
        self._outs.wait_all(0, jnp.minimum(stored, schedule.stages), lambda stage: (0, 0, stage))
        zeros.wait()

    def _chunk(self, begin: Any, end: Any, line: Any) -> _Chunk:
        begins, lines = self.list.begins, self.spec.lines

        def is_before(line: Any) -> Any:
            return (line < lines) & (begins[jnp.minimum(line + 1, lines)] <= begin)

        first = lax.while_loop(is_before, lambda line: line + 1, line)
        end_line = lax.while_loop(
            lambda line: (line < lines) & (begins[jnp.minimum(line, lines)] < end), lambda line: line + 1, first
        )
        return _Chunk(begin, end, first, end_line - first)

    def _span(self, chunk: _Chunk, line: Any) -> tuple[Any, Any]:
        begins = self.list.begins
        return jnp.maximum(begins[line], chunk.begin), jnp.minimum(begins[line + 1], chunk.end)

    def _rows_copy(self, line: Any, kk: Any, slot: Any) -> Any:
        schedule, spec = self.schedule, self.spec
        source = self.refs.lhs.at[part(line, spec.block_rows, spec.lines), part(kk, schedule.tile_k, schedule.grid_k)]
        return pltpu.make_async_copy(source, self.buffers.rows.at[slot], self.buffers.rows_sem.at[slot])

    def _rows(self, chunk: _Chunk) -> Ring:
        """Return the ring of blocks of lhs. Each visit of a line, for some of k, takes one."""

        def copies(visit: Any, act: Act) -> None:
            kk = lax.div(visit, chunk.lines)
            line = chunk.line + visit - kk * chunk.lines
            begin, end = self._span(chunk, line)
            slot = lax.rem(visit, jnp.int32(self.schedule.row_slots))
            pl.when(begin < end)(lambda: act(self._rows_copy(line, kk, slot)))

        return Ring(slots=self.schedule.row_slots, copies=copies)

    @property
    def _outs(self) -> Ring:
        return Ring(slots=self.schedule.stages, copies=lambda place, act: act(self._out_copy(*place)))

    def _panel(self, chunk: _Chunk, kk: Any, turn: Any, has_next: Any, stored: Any) -> Any:
        """Add the products of one panel to the sums of a chunk, while the next one arrives."""
        schedule, rows = self.schedule, self._rows(chunk)
        slot, next_slot = (lax.rem(turn + ahead, jnp.int32(schedule.panel_slots)) for ahead in (0, 1))
        pl.when((turn == 0) | (schedule.grid_k > 1))(lambda: self._panels.wait(slot))
        has_next = has_next & (schedule.grid_k > 1)
        next_panel = jnp.where(kk == schedule.grid_k - 1, 0, kk + 1)

        @pl.when(has_next & (chunk.lines == 0))
        def _all_of_it() -> None:
            self._panels.start(0, schedule.parts, next_panel, next_slot)

        def line(at: Any, stored: Any) -> Any:
            visit = kk * chunk.lines + at
            rows.fetch_next(visit, chunk.lines * schedule.grid_k)

            @pl.when(has_next)
            def _arrives() -> None:
                self._panels.start(*self._panels.due(at, chunk.lines), next_panel, next_slot)

            begin, end = self._span(chunk, chunk.line + at)
            row_slot = rows.slot(visit)

            def work() -> Any:
                self._rows_copy(chunk.line + at, kk, row_slot).wait()

                def item(item: Item, stored: Any) -> Any:
                    with_code_for(
                        item.count,
                        schedule.joined,
                        lambda number: self._multiply(chunk, item, number, kk, slot, row_slot),
                    )
                    count = jnp.where(kk == schedule.grid_k - 1, item.count, 0)

                    def store(number: Any, stored: Any) -> Any:
                        self._store(chunk, chunk.line + at, item.block + number, stored)
                        return stored + 1

                    return lax.fori_loop(0, count, store, stored)

                return over_items(begin, end, schedule.joined, item, stored)

            return lax.cond(begin < end, work, lambda: stored)

        return lax.fori_loop(0, chunk.lines, line, stored)

    def _multiply(self, chunk: _Chunk, item: Item, number: int, kk: Any, slot: Any, row_slot: Any) -> None:
        buffers, spec, schedule = self.buffers, self.spec, self.schedule
        sums = [item.block + at - chunk.begin for at in range(number)]
        along = [part(self.list.places[item.block + at], spec.block_columns, spec.places) for at in range(number)]

        @pl.loop(0, spec.block_rows // schedule.subtile)
        def _(subtile: Any) -> None:
            rows = part(subtile, schedule.subtile, spec.block_rows // schedule.subtile)
            left = buffers.rows[row_slot, rows, :]
            if spec.transpose_rhs:
                right, contracted = joined([buffers.panel[slot, place, :] for place in along], 0), (1, 1)
            else:
                right, contracted = joined([buffers.panel[slot, :, place] for place in along], 1), (1, 0)
            total = dot(left, right, contracted, spec)
            for at, sum_slot in enumerate(sums):
                partial_sum = buffers.sums[sum_slot, rows, :]
                columns = slice(at * spec.block_columns, (at + 1) * spec.block_columns)
                buffers.sums[sum_slot, rows, :] = total[:, columns] + jnp.where(
                    kk == 0, jnp.zeros_like(partial_sum), partial_sum
                )

    def _store(self, chunk: _Chunk, line: Any, block: Any, stored: Any) -> None:
        buffers, spec = self.buffers, self.spec
        stage, place = self._outs.slot(stored), self.list.places[block]
        target = (line if spec.dense_out else block, place, stage)
        self._outs.reserve(stored, target)
        total = buffers.sums[block - chunk.begin]
        lower, upper = self.band
        if lower is not None or upper is not None:
            row, column = (lax.broadcasted_iota(jnp.int32, total.shape, axis) for axis in (0, 1))
            diagonal = column - row + (place * spec.block_columns - line * spec.block_rows)
            if lower is not None:
                total = jnp.where(diagonal >= lower, total, jnp.zeros_like(total))
            if upper is not None:
                total = jnp.where(diagonal <= upper, total, jnp.zeros_like(total))
        buffers.out[stage] = as_dtype(total, spec.dtype_out)
        self._outs.start(target)

    def _out_copy(self, where: Any, place: Any, stage: Any) -> Any:
        spec, target = self.spec, self.out_hbm.at[where]
        if spec.dense_out:
            rows = part(where, spec.block_rows, spec.lines)
            target = self.out_hbm.at[rows, part(place, spec.block_columns, spec.places)]
        return pltpu.make_async_copy(self.buffers.out.at[stage], target, self.buffers.out_sem.at[stage])
