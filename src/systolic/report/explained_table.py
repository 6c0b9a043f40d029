"""A table of an explanation, cut to the rows that a page or a terminal shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic

from systolic.report.columns import Column, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTable(Generic[Row]):
    """A table. `left_out` rows were too many to show."""

    columns: tuple[Column[Row], ...]
    rows: tuple[Row, ...]
    left_out: int = 0

    def shortened(self, limit: int) -> ExplainedTable[Row]:
        return replace(self, rows=self.rows[:limit], left_out=self.left_out + max(0, len(self.rows) - limit))


def explained_table(
    columns: tuple[Column[Row], ...], items: Iterable[Row], *, max_rows: int | None = None, omitted: int = 0
) -> ExplainedTable[Row]:
    """Make a table of at most `max_rows` items, without empty optional columns; `omitted` rows were left out before."""
    all_rows = tuple(items)
    shown = all_rows[:max_rows]
    shown_columns = tuple(column for column in columns if not (column.optional and all(map(column.is_empty, shown))))
    return ExplainedTable(columns=shown_columns, rows=shown, left_out=omitted + len(all_rows) - len(shown))
