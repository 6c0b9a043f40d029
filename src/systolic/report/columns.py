"""Columns of tables: heading, value and format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Row = TypeVar("Row")
Whole = TypeVar("Whole")

NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """One column of a table."""

    title: str  # its heading, with the unit
    value: Callable[[Row], Any]  # a row's number or text; None shows as a dash
    form: str | Callable[[float], str] = ""  # a number's format: a format spec, or a function such as `written.us`
    # "text", "code" (text that was written for a compiler), or "number".
    kind: Literal["text", "code", "number"] = "number"
    share: Callable[[Row], float | None] | None = None  # the share of a row that a page draws as a bar under the cell
    style: Callable[[Row], str] | None = None  # a row's color in a terminal
    droppable: bool = False  # left out if a terminal is too narrow; the last such column goes first
    optional: bool = False  # left out if no row has a value

    def text(self, row: Row) -> str:
        value = self.value(row)
        if value is None:
            return NOTHING
        if isinstance(value, str):
            return value
        return self.form(value) if callable(self.form) else format(value, self.form)

    def is_empty(self, row: Row) -> bool:
        return self.value(row) in (None, "")


def numeric(
    title: str,
    value: Callable[[Row], float | str | None],
    form: str | Callable[[float], str] = "",
    *,
    share: Callable[[Row], float | None] | None = None,
    droppable: bool = False,
    optional: bool = False,
) -> Column[Row]:
    """Return a column of numbers, or of text that is set like numbers."""
    return Column(title=title, value=value, form=form, share=share, droppable=droppable, optional=optional)


def textual(
    title: str,
    value: Callable[[Row], str | None],
    *,
    kind: Literal["text", "code"] = "text",
    style: Callable[[Row], str] | None = None,
    droppable: bool = False,
    optional: bool = False,
) -> Column[Row]:
    return Column(title=title, value=value, kind=kind, style=style, droppable=droppable, optional=optional)


def of_part(column: Column[Row], part: Callable[[Whole], Row]) -> Column[Whole]:
    """Return a column for rows that hold the original rows."""
    return Column(
        title=column.title,
        value=lambda row: column.value(part(row)),
        form=column.form,
        kind=column.kind,
        droppable=column.droppable,
        optional=column.optional,
    )
