"""The visits that a grouped kernel makes, listed in SMEM from the sizes of the groups before the first copy starts.

The listing is scalar code, a few cycles per group; XLA would need several operations before the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule


class Groups(NamedTuple):
    sizes_smem: Any  # int32 of all groups
    offset_smem: Any  # int32 [1]: number of the first group that the kernel has; None: it has all
    number: int  # number of groups that the kernel has
    m: int  # rows; sizes past these do not count


class Field:
    """Rows of the table of visits: the properties of each visit."""

    GROUP = 0  # among the groups that the kernel has
    BEGIN = 1  # first row, a multiple of a register's
    SIZE = 2  # rows of the visit; 0 only in the gradient, for a group without rows
    HEAD = 3  # rows at the beginning that belong to other groups
    KEPT = 4  # rows from the beginning on that this visit stores; in the gradient, up to the group's end
    FIRST = 5  # the first visit of its panel, whose visits are processed together, one tile after another
    LAST = 6  # 1 for the last visit of the panel
    PLACE = 7  # first row in VMEM; in the gradient, 1 for the only visit of its group
    PANEL = 8  # number of the panel
    COUNT = 9


class Listed(NamedTuple):
    visits: Any
    begin: Any
    end: Any


def down(row: Any, multiple: int) -> Any:
    """Return the multiple at or below a row; `multiple` is a power of two."""
    return lax.bitwise_and(row, jnp.int32(-multiple))


def list_panels(groups: Groups, table: Any, schedule: GroupedSchedule) -> Listed:
    """List the visits of a product, in panels: rows of consecutive groups that are in VMEM together."""
    multiple, panel = schedule.row_multiple, schedule.panel

    def group(number: Any, rows: _Rows, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        blocks = lax.div(rows.span + (panel - 1), jnp.int32(panel))
        block_rows = _even(rows.span, blocks, schedule.blocks[0].rows)

        def block(at: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            visit, panel_rows, slot, first, panels = carry
            begin = rows.begin + at * block_rows
            size = jnp.minimum(block_rows, rows.begin + rows.span - begin)
            is_new = panel_rows + size > panel

            @pl.when(visit > 0)
            def _end_of_panel() -> None:
                table[Field.LAST, visit - 1] = is_new.astype(jnp.int32)

            slot = jnp.where(is_new, jnp.where(slot == schedule.panels - 1, 0, slot + 1), slot)
            panel_rows, first = jnp.where(is_new, 0, panel_rows), jnp.where(is_new, visit, first)
            panels = panels + is_new.astype(jnp.int32)
            table[Field.GROUP, visit] = number
            table[Field.BEGIN, visit] = begin
            table[Field.SIZE, visit] = size
            table[Field.HEAD, visit] = jnp.where(at == 0, rows.start - begin, 0)
            table[Field.KEPT, visit] = jnp.minimum(size, down(rows.end, multiple) - begin)
            table[Field.FIRST, visit] = first
            table[Field.PLACE, visit] = slot * panel + panel_rows
            table[Field.PANEL, visit] = panels
            return visit + 1, panel_rows + size, slot, first, panels

        return lax.fori_loop(0, blocks, block, carry)

    zero = jnp.int32(0)
    (visits, *_), begin, end = _over_groups(groups, multiple, group, (zero,) * 5)

    @pl.when(visits > 0)
    def _last() -> None:
        table[Field.LAST, visits - 1] = 1

    return Listed(visits, begin, end)


def list_groups(groups: Groups, table: Any, schedule: GradientSchedule) -> Listed:
    """List the visits of a gradient: all visits of a group are consecutive, and a group without rows has one too."""
    multiple, max_rows, depth = schedule.row_multiple, schedule.most_rows, schedule.depths[-1]

    def group(number: Any, rows: _Rows, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        (visit,) = carry
        blocks = jnp.maximum(lax.div(rows.span + (max_rows - 1), jnp.int32(max_rows)), 1)
        block_rows = _even(rows.span, blocks, depth)

        def block(at: Any, carry: None) -> None:
            begin = rows.begin + at * block_rows
            size = jnp.maximum(jnp.minimum(block_rows, rows.begin + rows.span - begin), 0)
            table[Field.GROUP, visit + at] = number
            table[Field.BEGIN, visit + at] = begin
            table[Field.SIZE, visit + at] = size
            table[Field.HEAD, visit + at] = jnp.where(at == 0, rows.start - rows.begin, 0)
            table[Field.KEPT, visit + at] = jnp.clip(rows.end - begin, 0, size)
            table[Field.FIRST, visit + at] = visit
            table[Field.LAST, visit + at] = (at == blocks - 1).astype(jnp.int32)
            table[Field.PLACE, visit + at] = (blocks == 1).astype(jnp.int32)
            return carry

        lax.fori_loop(0, blocks, block, None)
        return (visit + blocks,)

    (visits,), begin, end = _over_groups(groups, multiple, group, (jnp.int32(0),))
    return Listed(visits, begin, end)


class _Rows(NamedTuple):
    """Rows of a group: from `start` to `end`, and in whole registers `span` of them from `begin` on."""

    start: Any
    end: Any
    begin: Any
    span: Any


def _over_groups(
    groups: Groups, multiple: int, body: Callable[[Any, _Rows, Any], Any], carry: Any
) -> tuple[Any, Any, Any]:
    """Call `body` for each group that the kernel has; return the first and the last of their rows."""
    zero = jnp.int32(0)
    first = zero if groups.offset_smem is None else groups.offset_smem[0]
    count = groups.sizes_smem.shape[0]

    def end_of(start: Any, size: Any) -> Any:
        # Not the minimum of m and the sum, which sizes near 2^31 would overflow.
        return start + jnp.minimum(jnp.maximum(size, 0), groups.m - start)

    def size_of(number: Any) -> Any:
        if groups.offset_smem is None:
            return groups.sizes_smem[number]
        # The offset may have any value: a matrix without a group meets no rows.
        return jnp.where((number >= 0) & (number < count), groups.sizes_smem[jnp.clip(number, 0, count - 1)], 0)

    begin_row = zero
    if groups.offset_smem is not None:
        begin_row = lax.fori_loop(0, jnp.minimum(first, count), lambda number, row: end_of(row, size_of(number)), zero)

    def group(number: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        carry, start = state
        end = end_of(start, size_of(first + number))
        begin = down(start, multiple)
        span = jnp.where(end > start, down(end + (multiple - 1), multiple) - begin, 0)
        return body(number, _Rows(start, end, begin, span), carry), end

    carry, end_row = lax.fori_loop(0, groups.number, group, (carry, begin_row))
    return carry, begin_row, end_row


def _even(span: Any, blocks: Any, multiple: int) -> Any:
    """Return the rows per block for about equal blocks; all rows if there is one block."""
    block_rows = lax.div(span + blocks - 1, jnp.maximum(blocks, 1))
    return jnp.where(blocks > 1, lax.div(block_rows + (multiple - 1), multiple) * multiple, span)
