"""One step of a quantized product: a tile of each weight, times the rows that stay in VMEM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.kernels.epilogue import apply_epilogue
from systolic.kernels.registers import part
from systolic.ops.quantized.kernel.copies import Buffers, Copies, QuantizedOperands
from systolic.ops.quantized.kernel.rows import dot, prepare_rows
from systolic.ops.quantized.kernel.weights import pushed_weights, stored_bits
from systolic.ops.quantized.schedule import QuantizedSchedule
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import LANES

Fn = Callable[[Array], Array]


class Tile(NamedTuple):
    values: Any  # [tile_k, tile_n]
    scales: Any  # [tile_blocks, tile_n]
    acc: Any  # [tile_m, tile_n], or None
    weights: Any  # converted, [tile_k, subtile_n], or None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """The step (i, j, kk) of the grid. Refs of its slots are made once, because a slot's address takes scalar code."""

    refs: QuantizedOperands
    buffers: Buffers
    copies: Copies
    tiles: tuple[Tile, ...]
    lhs_vmem: Any
    out_vmem: Any
    spec: QuantizedSpec
    schedule: QuantizedSchedule
    activation: Fn | None

    @classmethod
    def of_the_grid(
        cls,
        refs: QuantizedOperands,
        out_hbm: Any,
        buffers: Buffers,
        spec: QuantizedSpec,
        schedule: QuantizedSchedule,
        activation: Fn | None,
    ) -> Step:
        copies = Copies.of_this_step(refs, out_hbm, buffers, schedule)
        slot = copies.slot
        return cls(
            refs=refs,
            buffers=buffers,
            copies=copies,
            tiles=tuple(
                Tile(
                    values=buffers.values.at[slot, weight],
                    scales=buffers.scales.at[slot, weight],
                    acc=None if buffers.acc is None else buffers.acc.at[weight],
                    weights=None if buffers.weights is None else buffers.weights.at[weight],
                )
                for weight in range(spec.weights)
            ),
            lhs_vmem=copies.lhs_vmem,
            out_vmem=buffers.out.at[copies.out_slot],
            spec=spec,
            schedule=schedule,
            activation=activation,
        )

    def run(self) -> None:
        """Prepare rows when a block of them is new, and multiply the tile in subtiles."""
        j, kk, copies, schedule = pl.program_id(1), pl.program_id(2), self.copies, self.schedule
        copies.fetch()
        pl.when((j == 0) & (kk == 0))(lambda: prepare_rows(copies, self.lhs_vmem, self.spec))
        copies.fetch_next_rows()
        copies.wait()
        pl.when(kk == 0)(copies.reserve_out)

        def columns(number: Any, carry: None) -> None:
            self._columns(part(number, schedule.subtile_n, schedule.tile_n // schedule.subtile_n))
            return carry

        lax.fori_loop(0, schedule.tile_n // schedule.subtile_n, columns, None)
        pl.when(kk == schedule.grid_k - 1)(copies.store)

    @property
    def _rows_vmem(self) -> Any:
        return self.lhs_vmem if self.buffers.rows is None else self.buffers.rows

    @property
    def _depths(self) -> list[slice]:
        """Return parts of the tile's k, each of one dot."""
        depth = min(self.schedule.route.depth, self.schedule.tile_k)
        return [slice(first, first + depth) for first in range(0, self.schedule.tile_k, depth)]

    def _columns(self, columns: Any) -> None:
        """Compute all rows of the tile, with these columns of it."""
        schedule = self.schedule
        for tile in self.tiles:
            if tile.weights is not None:
                for depth in self._depths:
                    tile.weights[depth, :] = self._weights(tile, depth, columns)

        def rows(number: Any, carry: None) -> None:
            at = part(number, schedule.subtile_m, schedule.tile_m // schedule.subtile_m)
            totals = [self._product(tile, at, columns) for tile in self.tiles]
            # In every step over k; only the last one's is stored.
            self.out_vmem[at, columns] = self._finished(totals, at, columns)
            return carry

        lax.fori_loop(0, schedule.tile_m // schedule.subtile_m, rows, None)

    def _product(self, tile: Tile, rows: Any, columns: Any) -> Array:
        total = self._total(tile, rows, columns)
        if tile.acc is not None:
            total = total.astype(tile.acc.dtype)
            total = jnp.where(pl.program_id(2) == 0, jnp.zeros_like(total), tile.acc[rows, columns]) + total
            tile.acc[rows, columns] = total
        return self._scaled(tile, total, 0, rows, columns) if self.spec.blocks == 1 else total

    def _weights(self, tile: Tile, depth: slice, columns: Any) -> Array:
        spec, route, scales = self.spec, self.schedule.route, None
        if route.scaled == "weights":
            blocks = slice(depth.start // spec.block, depth.stop // spec.block)
            scales = self._scales(tile, blocks, columns).astype(jnp.bfloat16)
        stored = stored_bits(tile.values, depth, columns, route)
        return pushed_weights(stored, scales, route, spec)

    def _scales(self, tile: Tile, blocks: slice, columns: Any) -> Array:
        """Return the scales of pushed weights: a code of four bits represents a number of units."""
        scales = tile.scales[blocks, columns].astype(jnp.float32)
        unit = self.schedule.route.unit
        return scales if unit == 1.0 else scales * (1 / unit)

    def _total(self, tile: Tile, rows: Any, columns: Any) -> Array:
        """Return the product over the tile's part of k; with several blocks, the sum of their scaled products."""
        spec, schedule, total = self.spec, self.schedule, None
        block_sum = None
        begin = pl.program_id(2) * schedule.tile_k if schedule.grid_k > 1 else 0
        for depth in self._depths:
            first = depth.start if schedule.grid_k == 1 else pl.multiple_of(begin + depth.start, LANES)
            weights = self._weights(tile, depth, columns) if tile.weights is None else tile.weights[depth, :]
            product = dot(self._rows_vmem[rows, pl.ds(first, depth.stop - depth.start)], weights)
            product = product.astype(jnp.dtype(schedule.route.sums))
            block_sum = product if block_sum is None else block_sum + product
            if schedule.route.scaled == "sums":
                if depth.stop % spec.block and depth.stop != schedule.tile_k:
                    continue
                if spec.blocks > 1:
                    block_sum = self._scaled(tile, block_sum, depth.start // spec.block, rows, columns)
            total = block_sum if total is None else total + block_sum
            block_sum = None
        assert total is not None
        return total

    def _scaled(self, tile: Tile, of_block: Array, block: int, rows: Any, columns: Any) -> Array:
        """Return the sum of a block of the tile, without the weights' offset, times its scales."""
        buffers, spec, schedule = self.buffers, self.spec, self.schedule
        first_block = pl.program_id(2) * schedule.tile_blocks if spec.blocks > 1 and schedule.grid_k > 1 else 0
        of_block = of_block.astype(jnp.float32)
        if buffers.row_sums is not None:
            of_block = of_block - self._in_columns(buffers.row_sums[first_block + block, rows, :])
        if spec.lhs_blocks > 1:
            of_block = of_block * self._in_columns(buffers.row_scales[first_block + block, rows, :])
        return of_block * self._scales(tile, slice(block, block + 1), columns)

    def _in_columns(self, of_rows: Array) -> Array:
        """Return a number for each row, in every column of a subtile."""
        copies = self.schedule.subtile_n // LANES
        return of_rows if copies == 1 else jnp.concatenate([of_rows] * copies, axis=1)

    def _finished(self, totals: list[Array], rows: Any, columns: Any) -> Array:
        refs, buffers = self.refs, self.buffers
        if buffers.row_scales is not None and self.spec.lhs_blocks <= 1:
            scales = self._in_columns(buffers.row_scales[0, rows, :])
            totals = [total * scales for total in totals]
        total, *up = totals
        return apply_epilogue(
            total,
            self.spec.dtype_out,
            bias=None if refs.bias is None else lambda: self._of_columns(refs.bias, columns),
            activation=self.activation,
            up=up[0] if up else None,
            residual=None if refs.residual is None else lambda: refs.residual[rows, columns],
            scale=None if refs.out_scale is None else lambda: self._of_columns(refs.out_scale, columns),
        )

    def _of_columns(self, row: Any, columns: Any) -> Array:
        """Return the subtile's columns of a row that covers all of n."""
        return row.at[:, part(pl.program_id(1), self.schedule.tile_n, self.schedule.grid_n)][:, columns]
