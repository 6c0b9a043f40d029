"""Sums of products of an expert's rows with slab after slab of its matrices, which stay in VMEM up to the last slab."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.epilogue import Fn, apply_epilogue
from systolic.kernels.packed_rows import PackedRows
from systolic.kernels.ring import Act, Ring
from systolic.ops.moe.blocks import ROW_TILE, ExpertsSpec, small_rows
from systolic.ops.moe.kernel.collected_rows import CollectedRows
from systolic.ops.moe.kernel.stages import Stages
from systolic.ops.moe.kernel.stored_weights import StoredWeights
from systolic.ops.moe.ring.products import RingProductsSchedule
from systolic.schedule.legality import LANES


class Expert:
    """Rows of the table of experts."""

    CODE = 0  # the first code of its rows
    BEGIN = 1  # its first row
    END = 2  # after its last row; rows are whole registers
    COUNT = 3


class _Step(NamedTuple):
    panel: Any  # rows whose sums are in VMEM together
    slab: Any
    expert: Any


class SlabProducts:
    def __init__(
        self,
        refs: Any,
        spec: ExpertsSpec,
        schedule: RingProductsSchedule,
        tokens: PackedRows,
        activation: Fn | None,
    ) -> None:
        self._refs, self._spec, self._schedule, self._activation = refs, spec, schedule, activation
        self._rows = CollectedRows(refs.rows, tokens, refs.codes)
        self.stages = Stages(refs.stages, refs.out, refs.stored, refs.stages_sem)
        scales = refs.slab_scales, refs.column_scales
        self._weights = StoredWeights(spec.matrices, spec.dtype, refs.weights, *scales)

    def at(self, number: Any) -> _Step:
        slabs, experts = jnp.int32(self._schedule.slabs), jnp.int32(self._spec.experts)
        slab = lax.div(number, experts)
        return _Step(lax.div(slab, slabs), lax.rem(slab, slabs), lax.rem(number, experts))

    def _rows_of(self, at: _Step) -> tuple[Any, Any]:
        """Return the first row of an expert in a panel, and the number of them."""
        first, table, panel = at.panel * self._schedule.panel, self._refs.experts, self._schedule.panel
        begin = jnp.maximum(table[Expert.BEGIN, at.expert], first)
        return begin, jnp.minimum(table[Expert.END, at.expert], first + panel) - begin

    @property
    def weights_ring(self) -> Ring:
        refs, columns = self._refs, self._schedule.columns

        def copies(number: Any, act: Act) -> None:
            at = self.at(number)
            slot = lax.rem(number, jnp.int32(self._schedule.weight_slots))
            rows = pl.ds(pl.multiple_of(at.slab * columns, columns), columns)
            has_rows = self._rows_of(at)[1] > 0
            for product, matrices in enumerate(refs.matrices):
                copy = pltpu.make_async_copy(
                    matrices.at[at.expert, rows, :], refs.weights.at[slot, product], refs.weights_sem.at[slot]
                )
                pl.when(has_rows)(functools.partial(act, copy))
            if refs.scales is not None:
                group = lax.div(at.slab * columns, jnp.int32(max(columns, self._spec.matrices.block or columns)))
                source, sem = refs.scales.at[at.expert, group], refs.weights_sem.at[slot]
                pl.when(has_rows)(lambda: self._weights.copy_scales(source, slice(None), slot, sem, act))

        return Ring(slots=self._schedule.weight_slots, copies=copies)

    def add(self, at: _Step, slot: Any) -> None:
        """Add the products of an expert's rows of a slab; of the last slab, store the result."""
        large, small = self._schedule.rows
        begin, size = self._rows_of(at)
        pl.when(size > 0)(lambda: self._weights.spread_scales(slot, 0))
        others = size - small_rows(self._schedule.rows)
        count = lax.div(jnp.maximum(others + large - 1, 0), jnp.int32(large))

        def blocks(rows: int, first: Any, end: Any) -> None:
            def block(number: Any, carry: None) -> None:
                row = first + number * rows
                self._block(at, slot, begin + row, jnp.minimum(size - row, rows), rows)
                return carry

            lax.fori_loop(0, lax.div(jnp.maximum(end - first + rows - 1, 0), jnp.int32(rows)), block, None)

        blocks(large, 0, jnp.minimum(count * large, size))
        blocks(small, count * large, size)

    def _block(self, at: _Step, slot: Any, row: Any, used: Any, rows: int) -> None:
        refs, spec, schedule, width = self._refs, self._spec, self._schedule, self._schedule.block_columns
        used = pl.multiple_of(used, ROW_TILE)
        code = refs.experts[Expert.CODE, at.expert] + row - refs.experts[Expert.BEGIN, at.expert]
        self._rows.collect(refs.tokens, at.slab, code, used)
        place = pl.multiple_of(row - at.panel * schedule.panel, ROW_TILE)
        # Later rows of the block are of the next expert.
        is_used = lax.broadcasted_iota(jnp.int32, (rows, width), 0) < used

        def on_columns(number: Any) -> None:
            columns = pl.ds(pl.multiple_of(number * width, width), width)
            for product in range(spec.products):
                total = self._weights.product(functools.partial(self._rows.columns, rows), slot, product, columns)
                before = refs.sums[product, pl.ds(place, rows), columns]
                total += jnp.where(at.slab == 0, jnp.zeros_like(before), before)
                refs.sums[product, pl.ds(place, rows), columns] = jnp.where(is_used, total, before)

        pl.loop(0, spec.f // width)(on_columns)
        pl.when(at.slab == schedule.slabs - 1)(lambda: self._store(row, place, used, rows))

    def _store(self, row: Any, place: Any, used: Any, rows: int) -> None:
        refs, spec, stage = self._refs, self._spec, self.stages.reserve()

        def on_columns(number: Any) -> None:
            columns = pl.ds(pl.multiple_of(number * LANES, LANES), LANES)
            total, *up = (refs.sums[product, pl.ds(place, rows), columns] for product in range(spec.products))
            refs.stages[stage, pl.ds(0, rows), columns] = apply_epilogue(
                total, spec.dtype, activation=self._activation, up=up[0] if up else None
            )

        pl.loop(0, spec.f // LANES)(on_columns)
        self.stages.send(stage, row, used)
