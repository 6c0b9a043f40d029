"""The cost of an operation on a chip, and the pages of all costs, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from operations import FLOAT_GROUPS, Elementwise, Shaping

from systolic.cli.output import versions

FIRST_PAGE = """\
# What an operation costs

The numbers are cycles for one full vector register of 4 KiB: [8, 128] of float32 or int32, [16, 128] of bfloat16 or
int16, [32, 128] of int8. Each operation was compiled for each chip and executed on the chip's model.
`benchmarks/operation_costs.py` explains the method. This page has operations on float32. Other pages have
{links}.

- In parentheses: the number of instructions. **A** is arithmetic, of which four are issued in a cycle; **T**
  transcendental; **L** across lanes.
- The column *page* is the cost according to JAX's page "Writing TPU kernels with Pallas".
- A cost is that of a busy unit: 32 independent operations are under way. The latency of a single result is longer.
"""
SHAPES_PAGE = """\
# What reductions, broadcasts, transposes and reshapes cost

The units and columns are those of [What an operation costs](../{first}).

These costs include reading the block from VMEM and adding the result to a sum. Compare them with "read and add" of the
same type. A cost is divided by the registers of the block before the operation; for a broadcast, of the block after it.
"""
INTEGERS_PAGE = """\
# What integers, narrow types and casts cost

The units and columns are those of [What an operation costs](../{first}).
"""
REFUSED = """\
`refused`: the compiler does not accept the operation.
"""

UNITS = {"vpu": "A", "eup": "T", "xlu": "L"}  # arithmetic, transcendental, across lanes

Operation = Elementwise | Shaping


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one operation on one chip, per register, without the cost of its additional operation.

    `issued` are instructions by unit. If the compiler refuses the operation, `cycles` is None and `reason` says why.
    """

    operation: Operation
    chip: str
    cycles: float | None = None
    issued: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    def less(self, other: Cost) -> Cost:
        """Return this cost less the cost of another operation."""
        if self.cycles is None or other.cycles is None:
            return replace(self, cycles=None, reason=self.reason or other.reason)
        issued = {unit: count - other.issued[unit] for unit, count in self.issued.items()}
        return replace(self, cycles=self.cycles - other.cycles, issued=issued)


def pages(priced: Sequence[Cost], name: str, command: str) -> dict[str, str]:
    """Return the pages, in Markdown, by their paths: the first has this name, and the others are in a folder.

    Args:
      priced: every operation, on every chip.
      name: of the first page.
      command: that makes them, as an indented block.
    """
    folder = Path(name).stem
    shapes = [cost for cost in priced if isinstance(cost.operation, Shaping)]
    floats = [cost for cost in priced if cost not in shapes and cost.operation.group in FLOAT_GROUPS]
    integers = [cost for cost in priced if cost not in shapes and cost not in floats]
    used_versions = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    links = (
        f"[integers, narrow types and casts]({folder}/integers.md), and\n"
        f"[reductions, broadcasts, transposes and reshapes]({folder}/shapes.md)"
    )
    tree = f"```{{toctree}}\n:hidden:\n\n{folder}/integers\n{folder}/shapes\n```"
    return {
        name: _page(FIRST_PAGE.format(links=links), f"Made by ({used_versions}):\n\n{command}", *tables(floats), tree),
        f"{folder}/integers.md": _page(INTEGERS_PAGE.format(first=name), *tables(integers)),
        f"{folder}/shapes.md": _page(SHAPES_PAGE.format(first=name), *tables(shapes)),
    }


def _page(*parts: str) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def tables(priced: Sequence[Cost]) -> list[str]:
    """Return a section for each group of operations, and the compiler's reasons to refuse some."""
    parts = []
    for group in dict.fromkeys(cost.operation.group for cost in priced):
        parts.append(f"## {group.capitalize()}\n\n{table([cost for cost in priced if cost.operation.group == group])}")
    if refused := dict.fromkeys(
        f"- `{cost.operation.name}` {cost.operation.dtype}: {cost.reason}" for cost in priced if cost.reason
    ):
        parts.append(f"## Refused\n\n{REFUSED}\n" + "\n".join(refused))
    return parts


def table(found: Sequence[Cost]) -> str:
    """Return a table with a line for each operation and a column for each chip."""
    chips = list(dict.fromkeys(cost.chip for cost in found))
    cells = {(cost.operation.name, cost.operation.dtype, cost.chip): cell(cost) for cost in found}
    lines = [["operation", "type", "page", *chips], ["---", "---", "---", *["---:"] * len(chips)]]
    for name, dtype, page_name in dict.fromkeys((c.operation.name, c.operation.dtype, c.operation.page) for c in found):
        # A bar inside a code span still ends a cell.
        code = name.replace("|", "\\|")
        lines.append([f"`{code}`", dtype, page_name, *(cells[name, dtype, chip] for chip in chips)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(cost: Cost) -> str:
    """Return cycles, and instructions of each unit."""
    if cost.cycles is None:
        return "refused"
    counts = {letter: round(cost.issued.get(unit, 0.0), 1) for unit, letter in UNITS.items()}
    issued = " ".join(f"{count:g}{letter}" for letter, count in counts.items() if count)
    return f"{cost.cycles:.2f}" + (f" ({issued})" if issued else "")
