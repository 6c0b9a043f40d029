"""Print tables on standard output, in the form that `--format` names."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import click
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from systolic.cli.complaints import shown_text
from systolic.report.columns import Column, Row
from systolic.report.explained_table import ExplainedTable
from systolic.report.markdown import markdown_cell, markdown_text

TableFormat = Literal["table", "markdown", "csv", "json"]
FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)

_CHOSEN = f"{__name__}.format"  # in the context that all commands of a call share
# Width of text around tables in a file or a pipe; the tables take what they need.
_WIDTH_OF_A_FILE = 200
_LEAST = {"text": 12, "code": 24}  # characters, to which a column may be folded
_LONGEST_WORD = 24  # characters, up to which folding breaks no word
_BETWEEN = 2  # columns
# The folded rest of a line is indented by this much of it: its spaces, and a key: words and two spaces, or "rule ".
_MARGIN = re.compile(r"\s*(?:\S+(?: \S+)*\s{2,}(?=\S)|(?<=  )rule (?=\S)|)")
_LONGEST_KEY = 32  # characters, to which the first column, which says what a row is, may be folded


class _PrintableConsole(Console):
    """A console on which no file name can move the cursor or change colors, and on a terminal no line breaks a word."""

    def print(  # type: ignore[override]
        self, *objects: Any, soft_wrap: bool | None = None, markup: bool | None = None, **style: Any
    ) -> None:
        if not self.is_terminal:
            super().print(*objects, soft_wrap=soft_wrap, markup=markup, **style)
            return
        # A terminal breaks a line that is too long in the middle of a word.
        lines = [self._folded(text, markup=markup) if isinstance(text, str) else text for text in objects]
        super().print(*lines, **style)

    def _folded(self, text: str, *, markup: bool | None) -> Text:
        """Fold the lines of a text between words; folded lines are indented to the line's first word, or its value."""
        folded: list[Text] = []
        for line in self.render_str(text, markup=markup, emoji=False).split("\n", allow_blank=True):
            margin = _MARGIN.match(line.plain)
            begin = margin.end() if margin is not None and margin.end() < self.width // 2 else 0
            first, *others = line[begin:].wrap(self, self.width - begin)
            folded += [line[:begin] + first, *(Text(" " * begin) + other for other in others)]
        return Text("\n").join(folded)

    def render_str(self, text: str, **style: Any) -> Text:  # type: ignore[override]
        return super().render_str(shown_text(text), **style)


class _MarkdownConsole(_PrintableConsole):
    """A console on which no name can become Markdown."""

    def render_str(self, text: str, **style: Any) -> Text:  # type: ignore[override]
        return Text(markdown_text(super().render_str(text, **style).plain))


def choose_format(context: click.Context, form: TableFormat) -> None:
    context.meta[_CHOSEN] = form


def chosen_format() -> TableFormat:
    context = click.get_current_context(silent=True)
    return "table" if context is None else context.meta.get(_CHOSEN, "table")


def console() -> Console:
    """Return standard output; with CSV only tables go there, and all other lines go to standard error."""
    form = chosen_format()
    to_stderr = form == "csv"
    on_terminal = form == "table" and sys.stdout.isatty()
    kind = _MarkdownConsole if form == "markdown" else _PrintableConsole
    # Without emoji: of file.py:zero: rich would make a picture. Markdown unwrapped: a new line could begin a list.
    return kind(
        width=None if on_terminal else _WIDTH_OF_A_FILE,
        stderr=to_stderr,
        no_color=None if on_terminal else True,
        highlight=False,
        soft_wrap=form == "markdown",
        emoji=False,
    )


def say(text: str) -> None:
    """Print a line between the tables."""
    console().print(text, markup=False, soft_wrap=True)


def show_table(out: Console, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> None:
    """Print a plain table. Cells are shown as they are, without markup.

    Columns that are optional are left out where they hold nothing. On a terminal that is too narrow, those that may be
    dropped give way from the right, and a line says which; where that does not help, the table is turned: a line for
    each cell. A table that goes elsewhere has all columns, and each row is one line.
    """
    row_list = list(rows)
    shown_columns = [column for column in columns if not (column.optional and all(map(column.is_empty, row_list)))]
    form = chosen_format()
    if form == "csv":
        click.echo(_csv(shown_columns, row_list))
        return
    if form == "markdown":
        click.echo(f"\n{_markdown(shown_columns, row_list)}\n")
        return
    dropped: list[str] = []
    table = _table(shown_columns, row_list)
    while out.is_terminal and not _fits(out, table):
        at = max((at for at, column in enumerate(shown_columns) if column.droppable), default=None)
        if at is None:
            table = _turned(shown_columns, row_list)
            break
        dropped.insert(0, shown_columns.pop(at).title)
        table = _table(shown_columns, row_list)
    if not out.is_terminal:
        out.width = max(out.width, _width(out, table))
    out.print(table)
    if dropped:
        out.print(f"hidden at this width: {', '.join(dropped)}; --format csv shows all columns", markup=False)


def show_section(out: Console, title: str, table: ExplainedTable[Any] | None, otherwise: str = "") -> None:
    """Print a table with its title, or the text `otherwise` if there is no table."""
    if table is None:
        if otherwise:
            out.print(f"\n{otherwise}")
        return
    out.print(f"\n[bold]{escape(title)}[/]")
    show_table(out, table.columns, table.rows)
    if table.left_out:
        out.print(f"and {table.left_out:,} more")


def _fits(out: Console, made: Table) -> bool:
    """True if no number is cut and no text is folded below its minimum width: folding may break a word."""
    return sum((column.min_width or 0) + _BETWEEN for column in made.columns) - _BETWEEN <= out.width


def _width(out: Console, made: Table) -> int:
    return Measurement.get(out, out.options.update(max_width=100_000), made).maximum


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        is_text = column.kind != "number"
        row_texts = [shown_text(column.text(row)) for row in rows]
        longest = max(map(cell_len, row_texts), default=0)
        is_whole = not is_text or (number == 0 and longest <= _LONGEST_KEY)
        table.add_column(
            Text(shown_text(column.title)),
            justify="left" if is_text else "right",
            no_wrap=is_whole,
            overflow="fold",
            # Text folds between words; a number is whole or not there.
            min_width=max(
                cell_len(column.title), longest if is_whole else _folded_width(column, row_texts, is_key=number == 0)
            ),
        )
    for row in rows:
        table.add_row(*_cells(columns, row))
    return table


def _folded_width(column: Column[Row], texts: Sequence[str], *, is_key: bool) -> int:
    longest = max(map(cell_len, texts), default=0)
    words = [cell_len(word) for text in texts for word in text.split()]
    least = _LONGEST_KEY if is_key else _LEAST[column.kind]
    return min(longest, max([least, *(length for length in words if length <= _LONGEST_WORD)]))


def _turned(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for number, row in enumerate(rows):
        if number:
            table.add_row()
        for column, cell in zip(columns, _cells(columns, row), strict=True):
            table.add_row(Text(shown_text(column.title)), cell)
    return table


def _cells(columns: Sequence[Column[Row]], row: Row) -> list[Text]:
    return [Text(shown_text(column.text(row)), column.style(row) if column.style else "") for column in columns]


def _csv(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    """Return values unrounded: a reader of CSV does its own rounding."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(column.title for column in columns)
    writer.writerows([column.value(row) for column in columns] for row in rows)
    return written.getvalue()


def _markdown(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    lines = [
        [markdown_cell(shown_text(column.title)) for column in columns],
        ["---" if column.kind != "number" else "---:" for column in columns],
        *([markdown_cell(shown_text(column.text(row))) for column in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
