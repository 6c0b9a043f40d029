"""Summaries of results on one screen: as text, in a notebook, and as a data frame."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 10  # rows
_WIDEST = 48  # characters of a cell in a terminal; a notebook folds them


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One screen of a result."""

    heading: str  # one line
    facts: Mapping[str, str] = field(default_factory=dict)  # further values by name; "" is left out
    columns: tuple[str, ...] = ()  # the table's, with units
    rows: tuple[tuple[Any, ...], ...] = ()  # all of them, the most important first; the first ten are shown

    @property
    def said(self) -> dict[str, str]:
        """The facts that are not empty."""
        return {name: text for name, text in self.facts.items() if text}

    @property
    def left_out(self) -> str:
        """The number of rows not shown, in words."""
        return f"and {len(self.rows) - _SHOWN:,} more" if len(self.rows) > _SHOWN else ""

    def text(self) -> str:
        width = max(map(len, self.said), default=0)
        lines = [self.heading, *(f"{name:<{width}}  {text}" for name, text in self.said.items())]
        if self.rows:
            table = [self.columns, *([_cut(_cell(value)) for value in row] for row in self.rows[:_SHOWN])]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            numbers = [isinstance(value, int | float) for value in self.rows[0]]
            lines.append("")
            for row in table:
                cells = zip(row, widths, numbers, strict=True)
                lines.append(
                    "  ".join(f"{cell:{'>' if right else '<'}{width}}" for cell, width, right in cells).rstrip()
                )
            lines += [self.left_out] if self.left_out else []
        return "\n".join(lines)

    def as_html(self) -> str:
        """Return HTML for a notebook, in the notebook's own style."""
        parts = [f"<p><b>{html.escape(self.heading)}</b></p>"]
        if self.said:
            facts = ((name, text) for name, text in self.said.items())
            parts.append(_table("", facts))
        if self.rows:
            head = "".join(f"<th>{html.escape(title)}</th>" for title in self.columns)
            parts.append(_table(f"<thead><tr>{head}</tr></thead>", self.rows[:_SHOWN]))
            parts += [f"<p>{self.left_out}</p>"] if self.left_out else []
        return f"<div>{''.join(parts)}</div>"


class Summarised:
    """A result that shows itself: `print(result)` and the last line of a notebook's cell fit one screen."""

    __slots__ = ()

    def summary(self) -> Summary:
        """Return the result's summary on one screen."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().as_html()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # IPython's own text would show the whole record.
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def to_dataframe(self) -> Any:
        """Return the table of `summary`, all its rows, as a `pandas.DataFrame`.

        Raises:
          ModuleNotFoundError: pandas is not installed.
        """
        summary = self.summary()
        return importlib.import_module("pandas").DataFrame(list(summary.rows), columns=list(summary.columns))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        # Enough digits to rank by.
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else " ".join(str(value).split())


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _table(head: str, rows: Any) -> str:
    lines = ("".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) for row in rows)
    return f"<table>{head}<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"
