"""`systolic lessons`: the lessons, one by one or all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from systolic.chips import Chip
from systolic.cli.options import chip_option, output_options
from systolic.cli.output import check_target, give
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.lessons import LESSONS, Lesson, LessonEntry
from systolic.report.columns import Column, numeric, textual
from systolic.support.choices import unknown_name


@click.command()
@click.argument("names", nargs=-1)
@chip_option()
@output_options
def lessons(names: tuple[str, ...], chips: tuple[Chip, ...], json_file: str | None, quiet: bool) -> int:
    """Run lessons by NAME, or all; without a name, list them. The ladder is `systolic ladder`.

    \b
    Examples:
      systolic lessons
      systolic lessons roofline
      systolic lessons all --chip v5e,v5p,v6e,v7x --json lessons.json
    """
    check_target(json_file)
    if not names:
        listed = list(LESSONS.values())
        rows = [{"lesson": entry.name, "title": entry.title} for entry in listed]
        give(json_file, "lessons", rows, {"lessons": len(listed)}, lambda: show_table(console(), _LISTED, listed))
        return 0
    unknown = [name for name in names if name not in LESSONS and name != "all"]
    if unknown:
        raise click.UsageError(unknown_name("lesson", unknown[0], (*LESSONS, "all")))
    chosen = list(LESSONS) if "all" in names else list(dict.fromkeys(names))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # kernels run in interpret mode
    done: dict[str, Lesson] = {}
    with progress_bar(quiet=quiet) as bar:
        bar.planned(len(chosen))
        for name in chosen:
            done[name] = LESSONS[name].run(chips)
            bar.done(name)
    records = ({"lesson": name, **row} for name, lesson in done.items() for row in lesson.rows)
    give(json_file, "lessons", records, {name: lesson.ok for name, lesson in done.items()}, lambda: _show(done))
    return 0 if all(lesson.ok for lesson in done.values()) else 1


_LISTED: tuple[Column[LessonEntry], ...] = (
    textual("lesson", lambda entry: entry.name),
    textual("shows", lambda entry: entry.title),
)


def _show(done: Mapping[str, Lesson]) -> None:
    out = console()
    for name, lesson in done.items():
        out.print(f"\n[bold]{name}[/] · {LESSONS[name].title}")
        for line in lesson.lines:
            out.print(line, markup=False)
        if lesson.rows:
            keys = dict.fromkeys(key for row in lesson.rows for key in row)
            show_table(out, [_column(key, lesson.rows) for key in keys], lesson.rows)


def _column(key: str, rows: Sequence[Mapping[str, object]]) -> Column[Mapping[str, object]]:
    if any(isinstance(row.get(key), str) for row in rows):
        return textual(key, lambda row: _cell(row.get(key)) or "")
    return numeric(key, lambda row: _cell(row.get(key)))


def _cell(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
