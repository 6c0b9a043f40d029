"""The visits that a grouped kernel makes, listed in SMEM from the sizes of the groups.

The listing is scalar code, about 90 cycles per group; XLA would need several operations before the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def down(row: Any, multiple: int) -> Any:
    """Return the multiple at or below a row; `multiple` is a power of two."""
    return lax.bitwise_and(row, jnp.int32(-multiple))


class Listed(NamedTuple):
    """The visits of a product that are in the table, and where its listing stands."""

    groups: Any  # number of groups that are listed
    begin: Any  # first row of all groups
    end: Any  # row after the rows of the groups that are listed
    visits: Any
    panel_rows: Any  # rows of the last panel
    slot: Any  # of the last panel in VMEM
    first: Any  # visit of the last panel
    panels: Any  # number of the last panel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panels:
    """Lists the visits of a product, in panels: rows of consecutive groups that are in VMEM together."""

    groups: Groups
    table: Any
    schedule: GroupedSchedule

    def begin(self) -> Listed:
        zero, row = jnp.int32(0), self._walk.first_row()
        return Listed(zero, row, row, *[zero] * 5)

    def is_whole(self, listed: Listed) -> Any:
        return listed.groups == self.groups.number

    def list(self, listed: Listed, visits: Any) -> Listed:
        """List groups until there are at least `visits` visits. Whether a panel ends is known at its next visit.

        Listing a group takes about 90 cycles: copies of the first visits can start before all are listed.
        """

        def is_left(listed: Listed) -> Any:
            return (listed.groups < self.groups.number) & (listed.visits < visits)

        listed = lax.while_loop(is_left, self._list_group, listed)

        @pl.when(self.is_whole(listed) & (listed.visits > 0))
        def _last() -> None:
            self.table[Field.LAST, listed.visits - 1] = 1

        return listed

    @property
    def _walk(self) -> _Walk:
        return _Walk(groups=self.groups, multiple=self.schedule.row_multiple)

    def _list_group(self, listed: Listed) -> Listed:
        schedule, table, panel = self.schedule, self.table, self.schedule.panel
        rows = self._walk.rows_of(listed.groups, listed.end)
        blocks = lax.div(rows.span + (panel - 1), jnp.int32(panel))
        block_rows = _even(rows.span, blocks, schedule.blocks[0].rows)

        def block(at: Any, listed: Listed) -> Listed:
            visit = listed.visits
            begin = rows.begin + at * block_rows
            size = jnp.minimum(block_rows, rows.begin + rows.span - begin)
            is_new = listed.panel_rows + size > panel

            @pl.when(visit > 0)
            def _end_of_panel() -> None:
                table[Field.LAST, visit - 1] = is_new.astype(jnp.int32)

            next_slot = jnp.where(listed.slot == schedule.panels - 1, 0, listed.slot + 1)
            slot = jnp.where(is_new, next_slot, listed.slot)
            panel_rows = jnp.where(is_new, 0, listed.panel_rows)
            first, panels = jnp.where(is_new, visit, listed.first), listed.panels + is_new.astype(jnp.int32)
            table[Field.GROUP, visit] = listed.groups
            table[Field.BEGIN, visit] = begin
            table[Field.SIZE, visit] = size
            table[Field.HEAD, visit] = jnp.where(at == 0, rows.start - begin, 0)
            table[Field.KEPT, visit] = jnp.minimum(size, down(rows.end, schedule.row_multiple) - begin)
            table[Field.FIRST, visit] = first
            table[Field.PLACE, visit] = slot * panel + panel_rows
            table[Field.PANEL, visit] = panels
            return listed._replace(
                visits=visit + 1, panel_rows=panel_rows + size, slot=slot, first=first, panels=panels
            )

        listed = lax.fori_loop(0, blocks, block, listed)
        return listed._replace(groups=listed.groups + 1, end=rows.end)


def list_groups(groups: Groups, table: Any, schedule: GradientSchedule) -> Any:
    """List the visits of a gradient, and return their number.

    All visits of a group are consecutive, and a group without rows has one too.
    """
    walk = _Walk(groups=groups, multiple=schedule.row_multiple)
    max_rows, depth = schedule.most_rows, schedule.depths[-1]

    def group(number: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        visit, start = state
        rows = walk.rows_of(number, start)
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
        return visit + blocks, rows.end

    visits, _ = lax.fori_loop(0, groups.number, group, (jnp.int32(0), walk.first_row()))
    return visits


class _Rows(NamedTuple):
    """Rows of a group: from `start` to `end`, and in whole registers `span` of them from `begin` on."""

    start: Any
    end: Any
    begin: Any
    span: Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walk:
    """Goes through the groups that the kernel has, one after another."""

    groups: Groups
    multiple: int

    def first_row(self) -> Any:
        """Return the first row of the groups."""
        groups, zero = self.groups, jnp.int32(0)
        if groups.offset_smem is None:
            return zero
        before = jnp.minimum(groups.offset_smem[0], groups.sizes_smem.shape[0])
        return lax.fori_loop(0, before, lambda number, row: self._end_of(row, self._size_of(number)), zero)

    def rows_of(self, number: Any, start: Any) -> _Rows:
        """Return the rows of a group, which begin at `start`."""
        groups, multiple = self.groups, self.multiple
        end = self._end_of(
            start, self._size_of(number if groups.offset_smem is None else groups.offset_smem[0] + number)
        )
        begin = down(start, multiple)
        return _Rows(start, end, begin, jnp.where(end > start, down(end + (multiple - 1), multiple) - begin, 0))

    def _end_of(self, start: Any, size: Any) -> Any:
        # Not the minimum of m and the sum, which sizes near 2^31 would overflow.
        return start + jnp.minimum(jnp.maximum(size, 0), self.groups.m - start)

    def _size_of(self, number: Any) -> Any:
        """Return the rows of one of all groups."""
        sizes = self.groups.sizes_smem
        if self.groups.offset_smem is None:
            return sizes[number]
        # The offset may have any value: a matrix without a group meets no rows.
        count = sizes.shape[0]
        return jnp.where((number >= 0) & (number < count), sizes[jnp.clip(number, 0, count - 1)], 0)


def _even(span: Any, blocks: Any, multiple: int) -> Any:
    """Return the rows per block for about equal blocks; all rows if there is one block."""
    block_rows = lax.div(span + blocks - 1, jnp.maximum(blocks, 1))
    return jnp.where(blocks > 1, lax.div(block_rows + (multiple - 1), multiple) * multiple, span)
