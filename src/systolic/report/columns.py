"""Tables as columns: each says what it is called, what it shows of a row, and how that is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Row = TypeVar("Row")
Whole = TypeVar("Whole")

NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """One column of a table.

    Attributes:
      title: its heading, with the unit.
      value: what it shows of a row: a number, or text; None shows as a dash.
      form: how a number is written: as `format` takes it, or what writes it, as `written.us` does.
      kind: "text", "code" (text that was written for a compiler), or "number".
      share: of a row, the share that a page draws behind the cell as a bar.
      style: of a row, the colour in a terminal.
      droppable: whether it gives way where a terminal is too narrow; the last such column goes first.
      optional: whether it is left out where no row has a value.
    """

    title: str
    value: Callable[[Row], Any]
    form: str | Callable[[float], str] = ""
    kind: Literal["text", "code", "number"] = "number"
    share: Callable[[Row], float | None] | None = None
    style: Callable[[Row], str] | None = None
    droppable: bool = False
    optional: bool = False

    def text(self, row: Row) -> str:
        """The cell of a row."""
        value = self.value(row)
        if value is None:
            return NOTHING
        if isinstance(value, str):
            return value
        return self.form(value) if callable(self.form) else format(value, self.form)

    def is_empty(self, row: Row) -> bool:
        """True if there is nothing to show of a row."""
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
    """A column of numbers, or of text that is set like numbers."""
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
    """A column of text."""
    return Column(title=title, value=value, kind=kind, style=style, droppable=droppable, optional=optional)


def of_part(column: Column[Row], part: Callable[[Whole], Row]) -> Column[Whole]:
    """A column of rows that hold the rows which it was made for."""
    return Column(
        title=column.title,
        value=lambda row: column.value(part(row)),
        form=column.form,
        kind=column.kind,
        droppable=column.droppable,
        optional=column.optional,
    )
