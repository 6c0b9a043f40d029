"""The gradient of a grouped product's matrices: `out[g] = lhs[rows of g]ᵀ @ cotangent[rows of g]`.

Groups are processed one after another. A group's rows of lhs stay in VMEM while its columns of the cotangent pass, tile
by tile; too many rows come in several visits for each tile, whose sums are added up. The matrix units hold the
cotangent and take long columns of lhs, which are transposed on the way. A tile of the result is stored once, and waits
in a ring of tiles while products of larger groups keep the matrix units busy. Two cores share the tiles of columns:
each has all rows of lhs, and its own columns of the cotangent.

Rows of other groups in a visit's first and last register are zeroed in both operands: a NaN there must not be added.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.kernels.dots import dot
from systolic.kernels.epilogue import as_dtype
from systolic.kernels.launch import HbmKernel, core_number, on_cores, vmem_shapes
from systolic.kernels.registers import block_of, keep_rows, on_tile, part, parts_of
from systolic.kernels.ring import Act, Ring
from systolic.ops.grouped.kernel.visits import Field, Groups, list_groups
from systolic.ops.grouped.schedule import GradientSchedule
from systolic.ops.grouped.spec import GroupedGradientSpec


class GradientOperands(NamedTuple):
    sizes: Any  # int32 [all groups]
    offset: Any  # int32 [1], or None
    lhs: Any  # [m, k]
    cotangent: Any  # [m, n]


class _Buffers(NamedTuple):
    table: Any  # int32 [Field.COUNT, visits]
    lhs: Any
    cotangent: Any
    acc: Any
    out: Any
    lhs_sem: Any
    cotangent_sem: Any
    out_sem: Any


def grouped_gradient(
    operands: GradientOperands, kernel: HbmKernel[GroupedGradientSpec, GradientSchedule]
) -> Shaped[Array, "groups k n"]:
    """Return the matrices' gradient; the gradient of a group without rows is zero.

    Args:
      operands: `m` is a multiple of `schedule.row_multiple`.
    """
    spec, schedule = kernel.spec, kernel.schedule
    buffers = _Buffers(
        table=pltpu.SMEM((Field.COUNT, schedule.most_visits), jnp.int32),
        **vmem_shapes(schedule.buffers),
        lhs_sem=pltpu.SemaphoreType.DMA((schedule.lhs_slots,)),
        cotangent_sem=pltpu.SemaphoreType.DMA((schedule.cotangent_slots,)),
        out_sem=pltpu.SemaphoreType.DMA((schedule.out_slots,)),
    )

    def body(refs: GradientOperands, out_hbm: Any, buffers: _Buffers) -> None:
        first = core_number(schedule.cores) * schedule.core_n
        _Kernel(refs=refs, out_hbm=out_hbm, buffers=buffers, spec=spec, schedule=schedule, first_tile=first).run()

    scalars, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)
    return kernel.launch(
        body,
        operands,
        GradientOperands(scalars, scalars, hbm, hbm),
        (spec.groups, spec.k, spec.n),
        activations=("lhs", "cotangent"),
        scratch_shapes=(buffers,),
        name=f"systolic_grouped_gradient_{spec.dtype}_{spec.groups}_{spec.m}_{spec.k}_{spec.n}",
        **on_cores(schedule.cores, vmem_limit_bytes=kernel.vmem_limit_bytes),
    )


class _At(NamedTuple):
    """A step: one visit and one tile of the result; `tile_n` is counted from this core's first tile."""

    visit: Any
    tile_k: Any
    tile_n: Any


class _Front(NamedTuple):
    """The next step whose copies are to be started, and the number of blocks of lhs fetched before it."""

    number: Any
    fetched: Any
    at: _At


class _Done(NamedTuple):
    fetched: Any  # blocks of lhs
    tiles: Any  # of the result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kernel:
    refs: GradientOperands
    out_hbm: Any
    buffers: _Buffers
    spec: GroupedGradientSpec
    schedule: GradientSchedule
    first_tile: Any  # of columns, of this core

    def run(self) -> None:
        schedule = self.schedule
        groups = Groups(self.refs.sizes, self.refs.offset, self.spec.groups, self.spec.m)
        visits = list_groups(groups, self.buffers.table, schedule)
        steps = visits * schedule.grid_k * schedule.core_n
        zero = jnp.int32(0)
        begin = _At(zero, zero, zero)
        front = self._fetch(steps, zero, zero, _Front(zero, zero, begin))

        def step(number: Any, state: tuple[_Front, _At, _Done]) -> tuple[_Front, _At, _Done]:
            front, at, done = state
            is_new = self._is_new(at)
            # A block of lhs that stays is the last one fetched; a step that needs a new block frees it.
            block = jnp.where(is_new, done.fetched, jnp.maximum(done.fetched - 1, 0))
            front = self._fetch(steps, number, block, front)
            self._step(number, block, done.tiles, at)
            tiles = done.tiles + self._of(at, Field.LAST)
            return front, self._after(at), _Done(done.fetched + is_new.astype(jnp.int32), tiles)

        _, _, done = lax.fori_loop(0, steps, step, (front, begin, _Done(zero, zero)))
        self._outs.drain(done.tiles)

    def _of(self, at: _At, field: int) -> Any:
        return self.buffers.table[field, at.visit]

    def _is_new(self, at: _At) -> Any:
        """True if a step needs another block of lhs than the step before; a group with one visit keeps its block."""
        return (self._of(at, Field.SIZE) > 0) & ((self._of(at, Field.PLACE) == 0) | (at.tile_n == 0))

    def _after(self, at: _At) -> _At:
        schedule = self.schedule
        last = self._of(at, Field.LAST) == 1
        last_n, last_k = at.tile_n == schedule.core_n - 1, at.tile_k == schedule.grid_k - 1
        again = last & jnp.logical_not(last_n & last_k)
        return _At(
            jnp.where(again, self._of(at, Field.FIRST), at.visit + 1),
            jnp.where(last & last_n, jnp.where(last_k, 0, at.tile_k + 1), at.tile_k),
            jnp.where(last, jnp.where(last_n, 0, at.tile_n + 1), at.tile_n),
        )

    def _fetch(self, steps: Any, number: Any, block: Any, front: _Front) -> _Front:
        """Start copies for later steps, up to the number of buffers."""

        def has_slot_for_lhs(front: _Front) -> Any:
            fetched = front.fetched + self._is_new(front.at).astype(jnp.int32)
            return fetched <= block + self.schedule.lhs_slots

        def start(front: _Front) -> _Front:
            is_new = self._is_new(front.at)
            pl.when(is_new)(lambda: self._lhs_copy(front.fetched, front.at).start())
            has_rows = self._of(front.at, Field.SIZE) > 0
            self._cotangents.start_if(has_rows, (front.number, front.at))
            return _Front(front.number + 1, front.fetched + is_new.astype(jnp.int32), self._after(front.at))

        return self._cotangents.fetch_while(front, number, steps, [has_slot_for_lhs], start)

    @property
    def _cotangents(self) -> Ring:
        return Ring(slots=self.schedule.cotangent_slots, copies=self._on_cotangent)

    @property
    def _outs(self) -> Ring:
        """The ring of tiles of the result, waited for by number: tiles of columns come in turn."""

        def copies(tile: Any, act: Act) -> None:
            slot = lax.rem(tile, jnp.int32(self.schedule.out_slots))
            self._on_out(slot, 0, 0, lax.rem(tile, jnp.int32(self.schedule.core_n)), act)

        return Ring(slots=self.schedule.out_slots, copies=copies)

    def _rows(self, row: Any) -> Any:
        return pl.multiple_of(row, self.schedule.row_multiple)

    def _row_copy(self, source: Any, tile: Any, target: Any, buffer_columns: Any, sem: Any, at: _At) -> Any:
        size = self._rows(self._of(at, Field.SIZE))
        rows = pl.ds(self._rows(self._of(at, Field.BEGIN)), size)
        return pltpu.make_async_copy(block_of(source, rows, tile), target.at[pl.ds(0, size), buffer_columns], sem)

    def _lhs_copy(self, block: Any, at: _At) -> Any:
        slot, schedule, buffers = lax.rem(block, jnp.int32(self.schedule.lhs_slots)), self.schedule, self.buffers
        tile = part(at.tile_k, schedule.tile_k, schedule.grid_k)
        return self._row_copy(self.refs.lhs, tile, buffers.lhs.at[slot], slice(None), buffers.lhs_sem.at[slot], at)

    def _on_cotangent(self, step: tuple[Any, _At], act: Act) -> None:
        number, at = step
        slot, buffers = lax.rem(number, jnp.int32(self.schedule.cotangent_slots)), self.buffers
        target, sem = buffers.cotangent.at[slot], buffers.cotangent_sem.at[slot]

        def each(columns: Any, buffer_columns: Any) -> None:
            act(self._row_copy(self.refs.cotangent, columns, target, buffer_columns, sem, at))

        on_tile(self.first_tile + at.tile_n, self.schedule, each)

    def _on_out(self, slot: Any, group: Any, tile_k: Any, tile_n: Any, act: Act) -> None:
        """Start, or wait for, the copy of a slot to a tile of the result."""
        rows = part(tile_k, self.schedule.tile_k, self.schedule.grid_k)

        def each(columns: Any, buffer_columns: Any) -> None:
            source, target = self.buffers.out.at[slot, :, buffer_columns], self.out_hbm.at[group, rows, columns]
            act(pltpu.make_async_copy(source, target, self.buffers.out_sem.at[slot]))

        on_tile(self.first_tile + tile_n, self.schedule, each)

    def _step(self, number: Any, block: Any, tile: Any, at: _At) -> None:
        buffers, schedule = self.buffers, self.schedule
        size, is_new = self._of(at, Field.SIZE), self._is_new(at)
        lhs = buffers.lhs.at[lax.rem(block, jnp.int32(schedule.lhs_slots))]
        cotangent = buffers.cotangent.at[self._cotangents.slot(number)]
        slot = self._outs.slot(tile)

        @pl.when(is_new)
        def _lhs() -> None:
            self._lhs_copy(block, at).wait()
            self._clean(lhs, at)

        @pl.when(size > 0)
        def _cotangent() -> None:
            self._cotangents.wait((number, at))
            self._clean(cotangent, at)

        is_first = self._of(at, Field.FIRST) == at.visit
        self._outs.reserve(tile, when=is_first)

        @pl.when(size == 0)
        def _without_rows() -> None:
            buffers.out[slot] = jnp.zeros_like(buffers.out[slot])

        largest, *smaller = schedule.depths
        count = lax.div(jnp.maximum(size - (smaller[0] if smaller else 0) + largest - 1, 0), largest)

        def whole(index: Any, carry: None) -> None:
            self._add(lhs, cotangent, slot, index * largest, largest, is_first & (index == 0))
            return carry

        lax.fori_loop(0, count, whole, None)
        row = count * largest
        for depth in smaller:
            pl.when(size > row)(lambda depth=depth: self._add(lhs, cotangent, slot, row, depth, is_first & (row == 0)))
        place = self._of(at, Field.GROUP), at.tile_k, at.tile_n
        pl.when(self._of(at, Field.LAST) == 1)(lambda: self._on_out(slot, *place, lambda copy: copy.start()))

    def _add(self, lhs: Any, cotangent: Any, slot: Any, row: Any, depth: int, is_first: Any) -> None:
        """Add the products of `depth` rows to a tile of the result, block by block.

        The result is stored with every addition: the vector unit has time for it, and code without a branch is faster.
        """
        buffers, schedule, spec = self.buffers, self.schedule, self.spec
        rows = pl.ds(self._rows(row), depth)

        def one(rows_out: Any, columns: Any) -> None:
            total = dot(lhs[rows, rows_out], cotangent[rows, columns], (0, 0), spec)
            partial_sum = buffers.acc[rows_out, columns]
            total = total + jnp.where(is_first, jnp.zeros_like(partial_sum), partial_sum)
            buffers.acc[rows_out, columns] = total
            buffers.out[slot, rows_out, columns] = as_dtype(total, spec.dtype_out)

        down, across = parts_of(schedule.tile_k, schedule.block_k), parts_of(schedule.tile_n, schedule.block_n)
        for block_rows, block_columns in itertools.product(down, across):
            count = jnp.int32(block_columns.how_many)
            pl.loop(0, block_rows.how_many * block_columns.how_many)(
                lambda index, its_rows=block_rows, its_columns=block_columns, count=count: one(
                    its_rows.at(lax.div(index, count)), its_columns.at(lax.rem(index, count))
                )
            )

    def _clean(self, ref: Any, at: _At) -> None:
        size, first, end = (self._of(at, field) for field in (Field.SIZE, Field.HEAD, Field.KEPT))
        schedule = self.schedule
        keep_rows(ref, size=size, first=first, end=end, multiple=schedule.row_multiple, depth=schedule.depths[-1])
