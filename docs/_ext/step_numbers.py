"""Write the tables of docs/results/steps.md from the results that benchmarks/training_steps.py keeps."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench_numbers import NUMBERS, put

_MIN_SHARE = 0.03  # of the step: smaller parts are not listed

Row = Mapping[str, Any]


def step_tables(text: str) -> str:
    """Renew the tables of predicted steps, of their parts, and of steps without a prediction."""
    rows = [*_kept("steps.json"), *(_through_maxtext(row) for row in _kept("steps_maxtext.json"))]
    predicted = [row for row in rows if row["predicted_s"] is not None]
    others = [row for row in rows if row["predicted_s"] is None]
    for heading, lines in (
        ("| step | published s | simulated s | error | minutes", map(_result, predicted)),
        ("| step | parts |", map(_parts, predicted)),
        *([("| step | why not |", (f"| {_name(row)} | {row['reason']} |" for row in others))] if others else ()),
    ):
        text = _put_rows(heading, lines, text)
    return text


def _kept(name: str) -> list[Row]:
    file = NUMBERS / name
    return json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []


def _through_maxtext(row: Row) -> Row:
    return {**row, "step": f"{row['step']} (MaxText's own code)"}


def _put_rows(heading: str, lines: Iterable[str], text: str) -> str:
    [first] = [line for line in text.splitlines() if line.startswith(heading)]
    columns = first.count("|") - 1
    rows = tuple(lines) or ("| – " * columns + "|",)
    opening = heading.replace("|", r"\|")
    return put(rf"^{opening}(?:.|\n)*?(?=\n\n)", "\n".join((first, "|---" * columns + "|", *rows)), text)


def _name(row: Row) -> str:
    return f"{row['step']}, {row['chip']} {row['topology']}"


def _result(row: Row) -> str:
    minutes = " + ".join(f"{row[name] / 60:.0f}" for name in ("compile_s", "simulate_s"))
    cells = (
        _name(row),
        f"{row['published_s']:.2f}",
        f"{row['predicted_s']:.2f}",
        f"{row['error_percent']:+.1f} %",
        minutes,
        f"`{row['source']}`",
        row["differs"],
    )
    return f"| {' | '.join(cells)} |"


def _parts(row: Row) -> str:
    total: dict[str, float] = defaultdict(float)
    for part in row["parts"]:
        total[part["part"]] += part["s"]
    exposed = sum(part["exposed_s"] for part in row["parts"])
    listed = ", ".join(_large(total, row["predicted_s"]))
    return f"| {_name(row)} | {listed}; exposed communication {exposed:.2f} |"


def _large(total: Mapping[str, float], step_s: float) -> Iterator[str]:
    ordered: Sequence[tuple[str, float]] = sorted(total.items(), key=lambda part: -part[1])
    return (f"{part} {seconds:.2f}" for part, seconds in ordered if seconds > _MIN_SHARE * step_s)
