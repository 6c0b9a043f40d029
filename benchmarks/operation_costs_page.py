"""Writes the page with the table of operation costs, of what the lesson has found.

    systolic lessons operation_costs --chip v5e,v5p,v6e,v7x --json build/operation_costs.json
    python benchmarks/operation_costs_page.py build/operation_costs.json docs/operation_costs.md

The first command compiles two kernels for every operation and chip, which takes minutes; what was compiled is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

COMMANDS = (__doc__ or "").split("\n\n")[1]
LETTERS = {"vpu": "A", "eup": "T", "xlu": "L"}
INTRODUCTION = """\
# What an operation costs

Cycles for a full vector register of 4 KiB: [8, 128] of float32 or int32, [16, 128] of bfloat16 or int16, [32, 128] of
int8. Each operation is compiled for each chip and executed on its model; how, and what keeps the compiler from folding
it away, is said by the lesson, `src/systolic/lessons/operation_costs.py`. In parentheses the instructions: **A**
arithmetic, of which four are issued in a cycle, **T** transcendental, **L** across lanes. The column *page* is what
"Writing TPU kernels with Pallas" says.

It is the cost where there is work enough for all units, not the latency of one result; and it is simulated, from the
compiler's own schedule. Operations on shapes include reading a block from VMEM and adding what came out of it: compare
them with "read and add" of the same type. Registers are those of the block before, of a broadcast those after it.
"""


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(source: Path, target: Path) -> None:
    """Writes TARGET, in Markdown, of the lesson's JSON in SOURCE."""
    found = json.loads(source.read_text())
    rows = [row for row in found["rows"] if row["lesson"] == "operation_costs"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    parts = [INTRODUCTION, f"Made by ({versions}):\n\n{COMMANDS}"]
    for group in dict.fromkeys(row["group"] for row in rows):
        parts.append(f"## {group.capitalize()}\n\n{table([row for row in rows if row['group'] == group])}")
    if refused := dict.fromkeys(reason(row) for row in rows if row["reason"]):
        parts.append("## Refused\n\n" + "\n".join(refused))
    target.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each operation, a column for each chip."""
    chips = list(dict.fromkeys(row["chip"] for row in rows))
    cells = {(row["operation"], row["dtype"], row["chip"]): cell(row) for row in rows}
    lines = [["operation", "type", "page", *chips], ["---", "---", "---", *["---:"] * len(chips)]]
    for name, dtype, page in dict.fromkeys((row["operation"], row["dtype"], row["page"] or "") for row in rows):
        # A bar inside a code span still ends a cell.
        code = name.replace("|", "\\|")
        lines.append([f"`{code}`", dtype, page, *(cells[name, dtype, chip] for chip in chips)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(row: Mapping[str, Any]) -> str:
    """Cycles, and instructions of each unit."""
    if row["cycles"] is None:
        return row["status"]
    counts = {letter: row[unit] for unit, letter in LETTERS.items()}
    issued = " ".join(f"{count:g}{letter}" for letter, count in counts.items() if count)
    return f"{row['cycles']:.2f}" + (f" ({issued})" if issued else "")


def reason(row: Mapping[str, Any]) -> str:
    """Why the compiler refuses an operation."""
    return f"- `{row['operation']}` {row['dtype']}: {row['reason']}"


if __name__ == "__main__":
    main()
