"""Make a page for each lesson and each rung: the docstring, the last simulated numbers, the code.

Numbers come from docs/numbers, which `make lesson-numbers` fills; nothing is simulated while pages are made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grouped_picture import grouped_picture
from pictures import blocks_picture, buffers_picture, pipeline_picture
from ring_picture import ring_picture
from source_files import SourceFile, read

from systolic.lessons import LESSONS
from systolic.lessons.ladder import RUNGS

DOCS = Path(__file__).parents[1]
NUMBERS = DOCS / "numbers"

# Rows of docs/numbers/ladder.json have more columns than a page can show.
_LADDER_COLUMNS = (
    ("chip", "chip"),
    ("m", "m = k = n"),
    ("tiles", "tiles m/k/n"),
    ("status", "status"),
    ("time_us", "simulated µs"),
    ("percent_of_peak", "% of peak"),
    ("ratio_to_xla", "XLA's time ÷ this"),
    ("stall_share", "stalls"),
)
_UNKNOWN_ERROR = "? ("  # and the reason, which is longer than a column is wide
_WHY_UNKNOWN = "?: the error is not known ([why](../../explanation/errors.md#which-programs-are-alike))."
_SHARES = ("stall_share", "matrix_busy", "waiting_for_copies")
_INITIALS = ("hbm", "vmem", "vpu", "eup", "xlu")
_UNITS = {"_us": " µs", "_mb": " MB", "_mib": " MiB", "_percent": " %"}


def lesson_pages() -> dict[str, str]:
    """Return name below docs/generated → Markdown, for the lessons and for their list."""
    results = _numbers("lessons.json")
    pages, titles = {}, {}
    for name, entry in LESSONS.items():
        files = [read(module) for module in entry.files]
        rows = [_without(row, "lesson") for row in results.get("rows", []) if row["lesson"] == name]
        keys = dict.fromkeys(key for row in rows for key in row if key != "reason")
        columns = [(key, _heading(key)) for key in keys]
        command = f"systolic lessons {name} --chip v5e,v5p,v6e,v7x"
        titles[name] = files[0].title
        drawn = ["pipelining"] if name == "pipelining" else []
        pages[f"lessons/{name}"] = _page(files, _shown(rows, columns, results, command), drawn)
    pages["lessons"] = _list(
        "Lessons",
        "Each lesson teaches one idea, with a kernel that you can paste, since it needs only JAX, and with numbers.",
        "systolic lessons all --chip v5e,v5p,v6e,v7x",
        {f"lessons/{name}": (name, title) for name, title in titles.items()},
    )
    return pages


def rung_pages() -> dict[str, str]:
    """Return name below docs/generated → Markdown, for the ladder's rungs and for their list."""
    results = _numbers("ladder.json")
    pages, titles = {}, {}
    for name, rung in RUNGS.items():
        file = read(rung.module)
        rows = [_rung_row(row) for row in results.get("rows", []) if row["rung"] == name]
        sizes = ",".join(str(size) for size in dict.fromkeys(row["m"] for row in rows))
        command = f"systolic ladder {name} --chip v5e,v5p,v6e,v7x" + (f" --sizes {sizes}" if sizes else "")
        numbers = _shown(rows, _LADDER_COLUMNS, results, command)
        plots = sorted(NUMBERS.glob(f"ladder_{name}_*.png"))
        pictures = [f"![{plot.stem}]({_from(f'ladder/{name}', plot)})" for plot in plots]
        titles[name] = file.title
        pages[f"ladder/{name}"] = _page([file], "\n\n".join([numbers, *pictures]), [name, f"{name}_buffers"])
    pages["ladder"] = _list(
        "The ladder",
        "Eight matmul kernels. Each adds one idea to the previous one. You can paste its file, which needs only JAX.",
        "systolic ladder all --chip v5e,v5p,v6e,v7x",
        {f"ladder/{name}": (name, title) for name, title in titles.items()},
    )
    return pages


def pictures() -> dict[str, str]:
    """Return name below docs/generated/pictures → SVG."""
    drawings = {name: blocks_picture(rung) for name, rung in RUNGS.items()}
    drawings |= {f"{name}_buffers": buffers_picture(rung) for name, rung in RUNGS.items()}
    return {**drawings, "pipelining": pipeline_picture(), "grouped": grouped_picture(), "ring_products": ring_picture()}


def _page(files: Sequence[SourceFile], numbers: str, drawings: Sequence[str]) -> str:
    """Return the page of a lesson or rung; `drawings` stand at its top, side by side where there is room."""
    main, *parts = files
    drawn = " ".join(f"![{name}](../pictures/{name}.svg)" for name in drawings)
    sections = [f"# {main.title}", drawn, main.prose, "## Numbers", numbers, "## Code", _code(main)]
    for part in parts:
        sections += [f"## {part.title}", part.prose, _code(part)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _code(file: SourceFile) -> str:
    # Every page of a lesson lies two folders below docs/.
    name = file.path.relative_to(DOCS.parent)
    return (
        f"```{{literalinclude}} {_from('lessons/x', file.path)}\n"
        f":caption: {name}\n:language: python\n:lines: {file.first_line}-\n```"
    )


def _list(title: str, text: str, command: str, entries: Mapping[str, tuple[str, str]]) -> str:
    """Return a page of links; `entries` are pages with their short names, for the side bar, and titles."""
    links = "\n".join(f"- [{title}]({page}.md)" for page, (_, title) in entries.items())
    lines = "\n".join(f"{name} <{page}>" for page, (name, _) in entries.items())
    # The command stands before the list: an indented block after it would be a paragraph of the last entry.
    return f"# {title}\n\n{text}\n\n    {command}\n\n{links}\n\n```{{toctree}}\n:hidden:\n\n{lines}\n```\n"


def _numbers(name: str) -> dict[str, Any]:
    path = NUMBERS / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _shown(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]], found: Mapping[str, Any], command: str
) -> str:
    """Return the rows as a table, the versions that made them, and the command; or a note that there are no rows.

    Reasons are sentences: they stand below the table, and the status has their number.
    """
    repeat = f"    {command}"
    if not rows:
        return f"There are no numbers yet. This command makes them, in seconds to minutes:\n\n{repeat}"
    reasons = list(dict.fromkeys(row["reason"] for row in rows if row.get("reason")))
    numbered = [
        {**row, "status": f"{row['status']} ({reasons.index(row['reason']) + 1})"} if row.get("reason") else row
        for row in rows
    ]
    filled = [(key, title) for key, title in columns if any(row.get(key) not in (None, "") for row in rows)]
    if all(row.get("status") in (None, "ok") for row in numbered):  # a column without information
        filled = [(key, title) for key, title in filled if key != "status"]
    lines = [[title for _, title in filled], ["---"] * len(filled)]
    lines += [[_cell(key, row.get(key)) for key, _ in filled] for row in numbered]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if reasons:
        notes = [f"({number}) {_escaped(reason)}" for number, reason in enumerate(reasons, start=1)]
        table = "\n\n".join([table, *notes])
    if any(str(value).startswith(_UNKNOWN_ERROR) for row in rows for value in row.values()):
        table = f"{table}\n\n{_WHY_UNKNOWN}"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    return f"{table}\n\nMade with {versions}, by\n\n{repeat}"


def _rung_row(row: Mapping[str, Any]) -> dict[str, Any]:
    tiles = "/".join(str(row[f"tile_{side}"]) for side in "mkn")
    return {**row, "tiles": tiles}


def _without(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def _heading(key: str) -> str:
    ending = next((ending for ending in _UNITS if key.endswith(ending)), "")
    words = key.removesuffix(ending).split("_")
    return " ".join(word.upper() if word in _INITIALS else word for word in words) + _UNITS.get(ending, "")


def _cell(key: str, value: object) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and key in _SHARES:
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if str(value).startswith(_UNKNOWN_ERROR):
        return "?"
    return _escaped(str(value))


def _escaped(text: str) -> str:
    """Return text, which may be somebody else's, for a table of Markdown: a bar or a line's end would break the row."""
    text = " ".join(text.split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _from(page: str, path: Path) -> str:
    """Return a file's path relative to a page of docs/generated."""
    return os.path.relpath(path, (DOCS / "generated" / page).parent)
