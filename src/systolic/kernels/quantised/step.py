"""One step of a quantised product: a tile of the weight, times the rows that stay in VMEM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.kernels.functions import as_dtype
from systolic.kernels.grouped.registers import part
from systolic.kernels.quantised.ring import Buffers, QuantizedOperands, Ring
from systolic.kernels.quantised.weights import pushed_weights, stored_bits
from systolic.schedule import LANES
from systolic.schedule.grouped import largest_divisor
from systolic.schedule.quantised import QuantizedSchedule
from systolic.spec import QuantizedSpec

Fn = Callable[[Array], Array]

_DOTS_TOGETHER = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """The step (i, j, kk) of the grid. Refs of its slots are made once: where a slot lies takes scalar code."""

    refs: QuantizedOperands
    its: Buffers
    ring: Ring
    values_vmem: Any
    scales_vmem: Any
    out_vmem: Any
    spec: QuantizedSpec
    schedule: QuantizedSchedule
    activation: Fn | None

    @classmethod
    def of_the_grid(
        cls,
        refs: QuantizedOperands,
        out_hbm: Any,
        its: Buffers,
        spec: QuantizedSpec,
        schedule: QuantizedSchedule,
        activation: Fn | None,
    ) -> Step:
        """The one that the kernel is called for."""
        ring = Ring.of_this_step(refs, out_hbm, its, schedule)
        slot = ring.slot
        return cls(
            refs=refs,
            its=its,
            ring=ring,
            values_vmem=its.values.at[slot],
            scales_vmem=its.scales.at[slot],
            out_vmem=its.out.at[ring.out_slot],
            spec=spec,
            schedule=schedule,
            activation=activation,
        )

    def run(self) -> None:
        """Makes rows ready when a block of them is new, and multiplies the tile in subtiles."""
        j, kk, ring, schedule = pl.program_id(1), pl.program_id(2), self.ring, self.schedule
        ring.fetch()
        pl.when((j == 0) & (kk == 0))(self._prepare_rows)
        ring.wait()
        pl.when(kk == 0)(ring.reserve_out)

        def columns(number: Any, carry: None) -> None:
            self._columns(part(number, schedule.subtile_n, schedule.tile_n // schedule.subtile_n))
            return carry

        lax.fori_loop(0, schedule.tile_n // schedule.subtile_n, columns, None)
        pl.when(kk == schedule.grid_k - 1)(ring.store)

    @property
    def _lhs_vmem(self) -> Any:
        return self.refs.lhs if self.its.rows is None else self.its.rows

    @property
    def _depths(self) -> list[slice]:
        """Parts of the tile's k, each of one dot."""
        depth = min(self.schedule.route.depth, self.schedule.tile_k)
        return [slice(first, first + depth) for first in range(0, self.schedule.tile_k, depth)]

    def _prepare_rows(self) -> None:
        its = self.its
        if its.rows is not None:
            its.rows[...] = self.refs.lhs[...].astype(jnp.bfloat16)
        if its.row_sums is not None:
            self._sum_rows(its.row_sums)

    def _sum_rows(self, sums_vmem: Any) -> None:
        """The matrix units add up each block of a row: what an offset of the weights adds to its products.

        Several dots follow each other in straight code, so that one need not wait for another; not all of them, because
        the compiler keeps what each reads.
        """
        spec, route = self.spec, self.schedule.route
        width = min(route.depth, spec.block)
        ones = jnp.full((width, LANES), route.offset * route.unit, jnp.bfloat16)
        parts = spec.block // width
        together = largest_divisor(parts, 1, _DOTS_TOGETHER)
        aligned = spec.block % LANES == 0 and width % LANES == 0

        def one_block(block: Any) -> None:
            def several(number: Any, total: Array) -> Array:
                for part_of_it in range(together):
                    first = block * spec.block + (number * together + part_of_it) * width
                    at = pl.multiple_of(first, LANES) if aligned and not isinstance(first, int) else first
                    total = total + _dot(self._lhs_vmem[:, pl.ds(at, width)], ones)
                return total

            sums_vmem[block] = lax.fori_loop(0, parts // together, several, jnp.zeros(sums_vmem.shape[1:]))

        if not aligned:
            for block in range(spec.blocks):
                one_block(block)
            return
        at_once = largest_divisor(spec.blocks, 1, max(_DOTS_TOGETHER // parts, 1))

        def some_blocks(number: Any, carry: None) -> None:
            for block in range(at_once):
                one_block(number * at_once + block)
            return carry

        lax.fori_loop(0, spec.blocks // at_once, some_blocks, None)

    def _columns(self, columns: Any) -> None:
        """All rows of the tile, with these columns of it."""
        its, schedule, kk = self.its, self.schedule, pl.program_id(2)
        made: Callable[[slice], Array] = lambda depth: self._weights(depth, columns)  # noqa: E731
        if its.weights is not None:
            kept = its.weights
            for depth in self._depths:
                kept[depth, :] = made(depth)
            made = lambda depth: kept[depth, :]  # noqa: E731

        def rows(number: Any, carry: None) -> None:
            at = part(number, schedule.subtile_m, schedule.tile_m // schedule.subtile_m)
            total = self._total(made, at, columns)
            if its.acc is not None:
                total = jnp.where(kk == 0, 0.0, its.acc[at, columns]) + total
                its.acc[at, columns] = total
            # In every step over k; only the last one's is stored.
            self.out_vmem[at, columns] = self._finished(total, at, columns)
            return carry

        lax.fori_loop(0, schedule.tile_m // schedule.subtile_m, rows, None)

    def _weights(self, depth: slice, columns: Any) -> Array:
        """What is pushed of a part of the tile."""
        spec, route, scales = self.spec, self.schedule.route, None
        if route.scaled == "weights":
            blocks = slice(depth.start // spec.block, depth.stop // spec.block)
            scales = self._scales(blocks, columns).astype(jnp.bfloat16)
        stored = stored_bits(self.values_vmem, depth, columns)
        return pushed_weights(stored, scales, route, spec.block)

    def _scales(self, blocks: slice, columns: Any) -> Array:
        """Scales of what is pushed: a code of four bits stands for so many units."""
        scales = self.scales_vmem[blocks, columns].astype(jnp.float32)
        unit = self.schedule.route.unit
        return scales if unit == 1.0 else scales * (1 / unit)

    def _total(self, weights: Callable[[slice], Array], rows: Any, columns: Any) -> Array:
        """The product over the tile's part of k, scaled."""
        spec, schedule, total = self.spec, self.schedule, None
        of_block = None
        begin = pl.program_id(2) * schedule.tile_k if schedule.grid_k > 1 else 0
        for depth in self._depths:
            first = depth.start if schedule.grid_k == 1 else pl.multiple_of(begin + depth.start, LANES)
            found = _dot(self._lhs_vmem[rows, pl.ds(first, depth.stop - depth.start)], weights(depth))
            of_block = found if of_block is None else of_block + found
            if schedule.route.scaled == "sums":
                if depth.stop % spec.block and depth.stop != schedule.tile_k:
                    continue
                of_block = self._scaled(of_block, depth.start // spec.block, rows, columns)
            total = of_block if total is None else total + of_block
            of_block = None
        assert total is not None
        return total

    def _scaled(self, of_block: Array, block: int, rows: Any, columns: Any) -> Array:
        """The sum of a block of the tile, without what the weights' offset adds, times its scale."""
        its, schedule, kk = self.its, self.schedule, pl.program_id(2)
        if its.row_sums is not None:
            of_tiles = kk * schedule.tile_blocks if self.spec.blocks > 1 and schedule.grid_k > 1 else 0
            offset = its.row_sums[of_tiles + block, rows, :]
            if self.spec.blocks == 1 and schedule.grid_k > 1:
                offset = jnp.where(kk == 0, offset, 0.0)  # that of all of k goes with the first tile
            copies = schedule.subtile_n // LANES
            of_block = of_block - (offset if copies == 1 else jnp.concatenate([offset] * copies, axis=1))
        return of_block * self._scales(slice(block, block + 1), columns)

    def _finished(self, total: Array, rows: Any, columns: Any) -> Array:
        refs, schedule = self.refs, self.schedule
        if refs.bias is not None:
            total = total + refs.bias.at[:, part(pl.program_id(1), schedule.tile_n, schedule.grid_n)][:, columns]
        if self.activation is not None:
            total = self.activation(total)
        if refs.residual is not None:
            total = total + refs.residual[rows, columns].astype(jnp.float32)
        return as_dtype(total, self.spec.dtype_out)


def _dot(left: Array, right: Array) -> Array:
    return lax.dot_general(left, right, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
