"""Tables, JSON and notes: standard output is data, standard error is what is said beside it."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from systolic.chips import flags_text, with_clock_state
from systolic.cli.complaints import note, shown_text
from systolic.compiler import versions
from systolic.printable import printable
from systolic.report.columns import Column, Row
from systolic.report.explained_tables import ExplainedTable
from systolic.whole_file import whole_file

# Of the rows that commands write by `--json`; 1 is that of systolic 0.3.0, which did not say it.
RESULT_SCHEMA = 2

__all__ = [
    "RESULT_SCHEMA",
    "check_target",
    "console",
    "give",
    "heading",
    "make_folder",
    "note",
    "printable",
    "show_section",
    "show_table",
    "versions",
    "write_json",
    "write_text",
    "writing",
]

SIMULATED = "times are simulated: compiled for the chip, executed on its model"
# A table that goes to a file or a pipe is not cut to a terminal's width.
_WIDTH_OF_A_FILE = 200


class _PrintableConsole(Console):
    """A console on which no name of a file can move the cursor or change colours."""

    def render_str(self, text: str, **style: Any) -> Text:  # type: ignore[override]
        """Text that is shown as it stands, but for what no terminal shows."""
        return super().render_str(shown_text(text), **style)


def console() -> Console:
    """Standard output."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
    # Without emoji: of file.py:zero: rich would make a picture.
    return _PrintableConsole(width=width, highlight=False, soft_wrap=False, emoji=False)


def check_target(target: str | Path | None) -> None:
    """Makes the folder of a file before the work starts: an hour of it should not end in "cannot write".

    Raises:
      click.UsageError: the folder cannot be made, or is no place for the file.
    """
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise click.UsageError(f"cannot write {target}: it is a folder")
    make_folder(path.parent, target)


def make_folder(folder: Path, target: str | Path) -> None:
    """Makes the folder that `target` is to be written to.

    Raises:
      click.UsageError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"cannot write {target}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise click.UsageError(f"cannot write {target}: no permission to write to {folder}")


def write_json(target: str, command: str, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Writes one JSON object: `command`, `schema`, `versions`, `rows`, `summary`. A file appears whole or not at all.

    JSON has no NaN and no infinity: they are written as null.

    Raises:
      click.UsageError: the file cannot be written.
    """
    head = {"command": command, "schema": RESULT_SCHEMA, "versions": versions()}
    document = {**head, "rows": list(rows), "summary": dict(summary)}
    text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
    if target == "-":
        click.echo(text, nl=False)
        return
    write_text(Path(target), text)


def give(
    json_file: str | None,
    command: str,
    rows: Iterable[Mapping[str, Any]],
    summary: Mapping[str, Any],
    show: Callable[[], None],
) -> None:
    """Hands over a result: as JSON where a file is named, and as tables unless JSON goes to standard output.

    Raises:
      click.UsageError: the file cannot be written.
    """
    if json_file is not None:
        write_json(json_file, command, list(rows), summary)
    if json_file != "-":
        show()


def heading(
    out: Console,
    chips: Iterable[str],
    *facts: str,
    made_with: Mapping[str, str | None] | None = None,
    flags: Mapping[str, str] | None = None,
) -> None:
    """The first line of a result: the chips with their clock states and flags, then facts, such as how times are known,
    and versions.
    """
    installed = versions() if made_with is None else made_with
    packages = f"jax {installed.get('jax')}, libtpu {installed.get('libtpu') or 'missing'}"
    names = ", ".join(with_clock_state(name) for name in dict.fromkeys(chips))
    facts = (f"compiled with {flags_text(flags)}", *facts) if flags else facts
    out.print(f"[bold]{escape(names)}[/] · {escape(' · '.join((*facts[:-1], packages, *facts[-1:])))}", soft_wrap=True)


def by_reason(reasons: Iterable[tuple[str, str, str]]) -> list[str]:
    """Lines that say why something is not there; a text that several share stands once.

    Args:
      reasons: of whom, why, and where.
    """
    grouped: dict[tuple[str, str], list[str]] = {}
    for who, why, where in reasons:
        if why:
            grouped.setdefault((who, why), []).append(where)
    return [f"{who}: {why} [{', '.join(dict.fromkeys(places))}]" for (who, why), places in grouped.items()]


def write_text(path: Path, text: str) -> None:
    """Writes a file, which appears whole or not at all.

    Raises:
      click.UsageError: it cannot be written.
    """
    make_folder(path.parent, path)
    with writing(path), whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes a file.

    Raises:
      click.UsageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_table(out: Console, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> None:
    """Prints a plain table. Cells are shown as they are, without markup.

    Columns that are optional are left out where they hold nothing; on a terminal that is too narrow, those that may be
    dropped give way from the right, and a line says which.
    """
    every = list(rows)
    kept = [one for one in columns if not (one.optional and all(map(one.is_empty, every)))]
    dropped: list[str] = []
    made = _table(kept, every)
    while out.is_terminal and Measurement.get(out, out.options.update(max_width=10_000), made).minimum > out.width:
        at = max((at for at, one in enumerate(kept) if one.droppable), default=None)
        if at is None:
            break
        dropped.insert(0, kept.pop(at).title)
        made = _table(kept, every)
    out.print(made)
    if dropped:
        out.print(f"not shown, for want of width: {', '.join(dropped)}; --json has all", markup=False)


def show_section(out: Console, title: str, found: ExplainedTable[Any] | None, otherwise: str = "") -> None:
    """Prints a table with its title, or, where there is none, what is said in its place."""
    if found is None:
        if otherwise:
            out.print(f"\n{otherwise}")
        return
    out.print(f"\n[bold]{escape(title)}[/]")
    show_table(out, found.columns, found.rows)
    if found.left_out:
        out.print(f"and {found.left_out:,} more")


_LEAST_TEXT = 12  # characters, to which a column of text may be folded


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for one in columns:
        is_text = one.kind != "number"
        longest = max((cell_len(shown_text(one.text(row))) for row in rows), default=0)
        made.add_column(
            Text(shown_text(one.title)),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
            # Text folds, but not to single letters; a number is whole or not there.
            min_width=max(cell_len(one.title), min(longest, _LEAST_TEXT) if is_text else longest),
        )
    for row in rows:
        made.add_row(*(Text(shown_text(one.text(row)), one.style(row) if one.style else "") for one in columns))
    return made
