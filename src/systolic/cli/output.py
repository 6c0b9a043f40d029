"""Write tables and JSON to standard output or files, and notes to standard error."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from systolic.chips import flags_text, with_clock_state
from systolic.cli.complaints import note
from systolic.compiler import versions
from systolic.support.extras import check_drawing
from systolic.support.printable import printable
from systolic.support.whole_file import whole_file

RESULT_SCHEMA = 2  # version of the rows that `--json` writes

__all__ = [
    "RESULT_SCHEMA",
    "check_drawing_target",
    "check_target",
    "give",
    "heading",
    "make_folder",
    "note",
    "printable",
    "versions",
    "write_bytes",
    "write_json",
    "write_text",
    "writing",
]

SIMULATED = "times are simulated: compiled for the chip, executed on its model"


def check_target(target: str | Path | None) -> None:
    """Make the folder of a file before the work starts, so that an hour of work does not end in "cannot write".

    Raises:
      click.UsageError: the folder cannot be made or written to, or `target` is a folder.
    """
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise click.UsageError(f"cannot write {target}: it is a folder")
    make_folder(path.parent, target)


def check_drawing_target(target: Path | None) -> None:
    """Do as `check_target` for a plot or a page, and check that the drawing library is installed.

    Raises:
      click.UsageError: the folder cannot be made or written to, or `target` is a folder.
      DrawingMissing: a library is missing.
    """
    if target is not None:
        check_drawing()
        check_target(target)


def make_folder(folder: Path, target: str | Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"cannot write {target}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise click.UsageError(f"cannot write {target}: no permission to write to {folder}")


def write_json(target: str, command: str, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Write one JSON object: `command`, `schema`, `versions`, `rows`, `summary`. A file is written whole or not at all.

    NaN and infinities, which JSON lacks, are written as null.

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
    """Write a result: as JSON if a file is named, and as tables unless JSON goes to standard output.

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
    """Print the first line of a result: chips with clock states and flags, the provenance, and versions."""
    installed = versions() if made_with is None else made_with
    packages = f"jax {installed.get('jax')}, libtpu {installed.get('libtpu') or 'missing'}"
    names = ", ".join(with_clock_state(name) for name in dict.fromkeys(chips))
    facts = (f"compiled with {flags_text(flags)}", *facts) if flags else facts
    out.print(f"[bold]{escape(names)}[/] · {escape(' · '.join((*facts[:-1], packages, *facts[-1:])))}", soft_wrap=True)


def by_reason(reasons: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return lines that say why something is missing; a reason that several places share appears once.

    Args:
      reasons: name, reason and place of each.
    """
    grouped: dict[tuple[str, str], list[str]] = {}
    for who, why, where in reasons:
        if why:
            grouped.setdefault((who, why), []).append(where)
    return [f"{who}: {why} [{', '.join(dict.fromkeys(places))}]" for (who, why), places in grouped.items()]


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; raise `click.UsageError` if it cannot be written."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, contents: bytes) -> None:
    """Write a file as `write_text` does."""
    make_folder(path.parent, path)
    with writing(path), whole_file(path) as partial:
        partial.write_bytes(contents)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block that writes a file into a `click.UsageError`."""
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
