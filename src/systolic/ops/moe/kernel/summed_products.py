"""Products of an expert's rows, added in VMEM to the sums of their tokens while the next block is multiplied.

The sums of a row's columns are a register, read and written with a stride, in the code in which the matrix units work.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.packed_rows import SUBLANES
from systolic.kernels.ring import Act, Ring
from systolic.ops.moe.blocks import ROW_TILE, small_rows
from systolic.ops.moe.kernel.stored_weights import StoredWeights, scale_scratch
from systolic.ops.moe.sum_tiles import SumTiles
from systolic.schedule.legality import LANES


class Expert:
    """Rows of the table of experts."""

    CODE = 0  # its first row among sorted choices
    BEGIN = 1  # its first row of hidden
    ROWS = 2
    COUNT = 3


class Block:
    """Words about the block whose products are yet to be added."""

    BUFFER = 0  # of products
    CODE = 1  # its first row among sorted choices
    USED = 2  # rows
    PARITY = 3  # of its tile of columns
    COUNT = 4


def summed_scratch(schedule: SumTiles, f: int) -> list[Any]:
    """Return the scratch for rows, weights, both kinds of scales, products of two blocks, and sums of all tokens."""
    dtype, registers = jnp.dtype(schedule.dtype), schedule.registers
    products = pltpu.VMEM((schedule.rows[0] * registers, LANES), jnp.float32)
    return [
        pltpu.VMEM((schedule.places + 1, schedule.rows[0], f), dtype),
        pltpu.VMEM((schedule.slots, 1, f, schedule.columns), jnp.dtype(schedule.down.dtype)),
        *scale_scratch(schedule.buffers),
        (products, products),
        pltpu.VMEM((2, (schedule.tokens + SUBLANES) * registers, LANES), jnp.float32),
    ]


class SummedProducts:
    def __init__(self, refs: Any, schedule: SumTiles, repeats: bool) -> None:
        self._refs, self._schedule, self._repeats = refs, schedule, repeats
        scales = refs.tile_scales, refs.column_scales
        self._weights = StoredWeights(schedule.down, schedule.dtype, refs.weights, *scales)

    @property
    def inputs(self) -> Ring:
        """The ring of weights, and of the first rows of an expert where they do not stay."""
        refs, schedule = self._refs, self._schedule
        experts = jnp.int32(refs.experts.shape[1])

        def copies(number: Any, act: Act) -> None:
            tile, expert, slot = lax.div(number, experts), lax.rem(number, experts), lax.rem(number, schedule.slots)
            columns = pl.ds(pl.multiple_of(tile * schedule.columns, schedule.columns), schedule.columns)
            weights = pltpu.make_async_copy(
                refs.down.at[expert, :, columns], refs.weights.at[slot, 0], refs.slots_sem.at[slot]
            )
            has_rows = refs.experts[Expert.ROWS, expert] > 0
            comes = has_rows & (tile == 0) if schedule.keeps_rows else has_rows
            pl.when(comes)(lambda: act(self._rows_copy(expert, 0, self._place(number), refs.slots_sem.at[slot])))
            pl.when(has_rows)(lambda: act(weights))
            if refs.scales is not None:
                source, sem = refs.scales.at[expert], refs.slots_sem.at[slot]
                pl.when(has_rows)(lambda: self._weights.copy_scales(source, columns, slot, sem, act))

        return Ring(slots=schedule.slots, copies=copies)

    def _place(self, number: Any) -> Any:
        """Return where a step's first rows are."""
        return lax.rem(number, jnp.int32(self._refs.rows.shape[0] - 1))

    def clear(self) -> None:
        refs, words = self._refs, self._schedule.registers * SUBLANES

        def zero(buffers: Sequence[Any], tile: Any) -> None:
            for buffer in buffers:
                buffer[pl.ds(pl.multiple_of(tile * words, words), words), :] = jnp.zeros((words, LANES), jnp.float32)

        sums = [refs.sums.at[parity] for parity in range(2)]
        pl.loop(0, self._schedule.tokens // SUBLANES)(functools.partial(zero, sums))
        pl.loop(0, self._schedule.rows[0] // SUBLANES)(functools.partial(zero, refs.products))
        for word in range(Block.COUNT):
            refs.block[word] = jnp.int32(0)

    def _rows_copy(self, expert: Any, row: Any, place: Any, sem: Any) -> Any:
        """Return the copy of a block's rows, whole registers."""
        refs = self._refs
        rows = jnp.minimum(refs.experts[Expert.ROWS, expert] - row, self._schedule.rows[0])
        rows = pl.multiple_of(lax.div(rows + ROW_TILE - 1, jnp.int32(ROW_TILE)) * ROW_TILE, ROW_TILE)
        first = pl.multiple_of(refs.experts[Expert.BEGIN, expert] + row, ROW_TILE)
        return pltpu.make_async_copy(refs.hidden.at[pl.ds(first, rows), :], refs.rows.at[place, pl.ds(0, rows), :], sem)

    def add(self, number: Any, tile: Any, expert: Any) -> None:
        """Add the products of an expert's rows with a tile of columns to the sums of their tokens."""
        refs, (large, small) = self._refs, self._schedule.rows
        size, later = refs.experts[Expert.ROWS, expert], refs.rows.shape[0] - 1
        slot = self.inputs.slot(number)
        pl.when(size > 0)(lambda: self._weights.spread_scales(slot, tile * self._schedule.registers))
        others = size - small_rows(self._schedule.rows)
        count = lax.div(jnp.maximum(others + large - 1, 0), jnp.int32(large))

        def blocks(rows: int, first: Any, end: Any, *, is_large: bool) -> None:
            def block(at: Any, carry: None) -> None:
                row = first + at * rows

                @pl.when(row > 0)
                def _later_rows() -> None:
                    copy = self._rows_copy(expert, row, later, refs.block_sem)
                    copy.start()
                    copy.wait()

                used = jnp.minimum(size - row, rows)
                place = jnp.where(row > 0, later, self._place(number))
                block_rows = refs.rows.at[place, pl.ds(0, rows)]
                if is_large:
                    before, parity = refs.block[Block.BUFFER], refs.block[Block.PARITY]
                    # Code of its own for each buffer: the compiler sees that it reads one and writes the other.
                    for buffer, products in enumerate(refs.products):
                        added = 1 - buffer, parity
                        pl.when(before != buffer)(
                            lambda products=products, added=added: self._multiply(
                                block_rows, slot, products, used, added
                            )
                        )
                    refs.block[Block.BUFFER] = 1 - before
                else:  # its code is too short to add up meanwhile
                    self.add_up()
                    self._multiply(block_rows, slot, refs.products[0], used, None)
                    refs.block[Block.BUFFER] = jnp.int32(0)
                refs.block[Block.PARITY] = lax.rem(tile, jnp.int32(2))
                refs.block[Block.USED] = used
                refs.block[Block.CODE] = refs.experts[Expert.CODE, expert] + row
                return carry

            lax.fori_loop(0, lax.div(jnp.maximum(end - first + rows - 1, 0), jnp.int32(rows)), block, None)

        blocks(large, 0, jnp.minimum(count * large, size), is_large=True)
        blocks(small, count * large, size, is_large=False)

    def add_up_before(self, tile: Any) -> None:
        """Add up what is left of the tile before: nothing, after a large block of this tile."""
        pl.when(self._refs.block[Block.PARITY] != lax.rem(tile, jnp.int32(2)))(self.add_up)

    def _multiply(self, rows: Any, slot: Any, products: Any, used: Any, added: tuple[int, Any] | None) -> None:
        """Multiply the rows of a block, and add up all rows of the block before in the same code.

        Args:
          products: the buffer to write to.
          added: the buffer of the block before, and the parity of its sums; None: do not add.
        """
        schedule = self._schedule
        width, registers, eights = schedule.block_columns, schedule.registers, rows.shape[0] // SUBLANES
        shares = schedule.columns // width
        share = eights // shares
        # The rest is added to sums later, and zeros do no harm.
        is_used = lax.broadcasted_iota(jnp.int32, (rows.shape[0], width), 0) < used

        def on_columns(number: Any) -> None:
            columns = pl.ds(pl.multiple_of(number * width, width), width)
            total = self._weights.product(lambda first, size: rows[:, pl.ds(first, size)], slot, 0, columns)
            total = jnp.where(is_used, total, 0)
            for row in range(0, rows.shape[0], SUBLANES):
                for register in range(width // LANES):
                    first = row * registers + (number * (width // LANES) + register) * SUBLANES
                    products[pl.ds(pl.multiple_of(first, SUBLANES), SUBLANES), :] = total[
                        row : row + SUBLANES, register * LANES : (register + 1) * LANES
                    ]
            if added is not None:
                for eight in range(share):
                    self._add_eight(*added, number * share + eight)

        pl.loop(0, shares, unroll=True)(on_columns)  # sums are added during the next columns' products, too
        if added is not None and share * shares < eights:
            pl.loop(share * shares, eights)(functools.partial(self._add_eight, *added))

    def add_up(self) -> None:
        """Add the last block's products to the sums of their tokens, and leave zeros in their place."""
        refs, words = self._refs, self._schedule.registers * SUBLANES

        def of_buffer(buffer: int) -> None:
            parity = refs.block[Block.PARITY]

            def eight(number: Any) -> None:
                self._add_eight(buffer, parity, number)
                place = pl.ds(pl.multiple_of(number * words, words), words)
                refs.products[buffer][place, :] = jnp.zeros((words, LANES), jnp.float32)

            pl.loop(0, lax.div(refs.block[Block.USED] + SUBLANES - 1, jnp.int32(SUBLANES)))(eight)

        for buffer in range(len(refs.products)):
            pl.when(refs.block[Block.BUFFER] == buffer)(functools.partial(of_buffer, buffer))
        refs.block[Block.USED] = jnp.int32(0)

    def _add_eight(self, buffer: int, parity: Any, number: Any) -> None:
        """Add eight rows of the last block's products to sums. Those that are not used are zeros."""
        refs, schedule, first = self._refs, self._schedule, number * SUBLANES
        registers, sums = schedule.registers, refs.sums.at[parity]
        words = SUBLANES * registers
        products = refs.products[buffer].at[pl.ds(pl.multiple_of(first * registers, words), words)]
        code = refs.block[Block.CODE] + first

        def row_of(ref: Any, first: Any) -> Any:
            return ref.at[pl.ds(first, registers, stride=SUBLANES), :]

        # Twice as many rows at once would take more scalar registers than there are.
        places = [refs.words[code + row] for row in range(SUBLANES)]
        if self._repeats:
            used = refs.block[Block.USED] - first
            nothing = schedule.tokens * registers
            places = [jnp.where(row < used, place, nothing) for row, place in enumerate(places)]
        totals: list[Any] = []
        before = [row_of(sums, place)[...] for place in places]
        for row in range(SUBLANES):
            total = before[row]
            if self._repeats and row:
                total = jnp.where(places[row] == places[row - 1], totals[-1], total)
            totals.append(total + row_of(products, row)[...] * refs.factors[code + row])
        # The next expert's rows, of the same tokens perhaps, add zeros: they are written first.
        for row in range(SUBLANES) if self._repeats else reversed(range(SUBLANES)):
            row_of(sums, places[row])[...] = totals[row]
