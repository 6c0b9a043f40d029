"""An explanation as tables of text, which the page and the terminal both show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from systolic.compiler import short_place
from systolic.explaining import Explanation, OperandTraffic, Program
from systolic.report.written import megabytes, mib, percent, us
from systolic.simulator import OpRun, SimulatedRun

_T = TypeVar("_T")

_MOST_OPS = 20
_MOST_LINES = 60
_MOST_PARTS = 40
# What the simulator's names of units mean.
UNITS = {
    "mxu": "matrix units: rows going through",
    "xlu": "across lanes: transposes, reductions, rotations",
    "vpu": "elementwise arithmetic",
    "pop": "results taken from other units",
    "eup": "transcendental functions",
    "load": "loads from VMEM",
    "fill": "loads of spilled registers",
    "store": "stores to VMEM",
    "spill": "stores of spilled registers",
    "scalar": "scalar arithmetic and addresses",
    "dma": "bytes crossing HBM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading, and how its cells are set."""

    title: str
    kind: Literal["text", "code", "number"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, and a share that may be drawn behind it as a bar."""

    text: str
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTable:
    """A table. `left_out` rows were too many to show."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0


def program(explanation: Explanation, role: str) -> Program | None:
    """Finds the first program of that role."""
    return next((found for found in explanation.programs if found.role == role), None)


def rate_tflops(found: Program) -> float | None:
    """Computes the rate in Tflop/s; None where there is no time, or the operations are not known."""
    return found.flops / found.time_us / 1e6 if found.time_us and found.flops else None


def programs_table(explanation: Explanation) -> ExplainedTable:
    """Lists every program: this kernel, XLA's, and what was tried."""
    peak = explanation.roofline.peak_flops_per_s / 1e12
    rows = []
    for found in explanation.programs:
        rate = rate_tflops(found)
        rows.append(
            (
                Cell(found.label),
                Cell(us(found.time_us)),
                Cell("–" if not found.time_us else f"{explanation.time_us / found.time_us:.2f} ×"),
                Cell("–" if rate is None else f"{rate:,.1f}"),
                Cell("–") if rate is None or not peak else Cell(percent(rate / peak), rate / peak),
                Cell(megabytes(found.hbm_bytes) if found.time_us else "–"),
                Cell(f"{found.flops / found.hbm_bytes:,.0f}" if found.flops and found.hbm_bytes else "–"),
                Cell(found.reason),
            )
        )
    numbers = _numbers("simulated µs", "relative speed", "Tflop/s", "of peak", "HBM MB", "flop/byte")
    columns = (*_texts("program"), *numbers, *_texts("no time because"))
    if not any(found.reason for found in explanation.programs):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return ExplainedTable(columns=columns, rows=tuple(rows))


def vmem_table(explanation: Explanation) -> ExplainedTable | None:
    """Lists every buffer in VMEM."""
    if explanation.vmem is None or not explanation.vmem.parts:
        return None
    limit = max(1, explanation.vmem.limit_bytes)
    parts = sorted(explanation.vmem.parts, key=lambda part: (part.op, -part.size_bytes))
    return _table(
        (*_codes("operation"), *_texts("buffer", "kind"), *_numbers("copies", "MiB", "of the limit")),
        parts,
        lambda part: (
            Cell(part.op),
            Cell(part.name),
            Cell(part.kind),
            Cell(str(part.copies)),
            Cell(mib(part.size_bytes)),
            Cell(percent(part.size_bytes / limit), part.size_bytes / limit),
        ),
        most=_MOST_PARTS,
    )


def units_table(run: SimulatedRun) -> ExplainedTable:
    """Lists how busy each unit was, the busiest first."""
    issued: dict[str, int] = {}
    for core in run.cores:
        for unit, count in core.issued.items():
            issued[unit] = issued.get(unit, 0) + count
    return _table(
        (*_codes("unit"), *_texts("does"), *_numbers("busy", "issue slots a cycle", "issued")),
        sorted(run.busy.items(), key=lambda item: -item[1]),
        lambda item: (
            Cell(item[0]),
            Cell(UNITS.get(item[0], "")),
            Cell(percent(item[1]), item[1]),
            Cell(str(run.slots.get(item[0], "–"))),
            Cell(f"{issued[item[0]]:,}" if item[0] in issued else "–"),
        ),
    )


def regions_table(explanation: Explanation) -> ExplainedTable | None:
    """Lists stretches of straight code, in the order of the program."""
    regions = explanation.regions
    if not regions:
        return None
    total = max(1, sum(region.cycles for region in regions))
    units = [unit for unit in UNITS if any(region.issued.get(unit) for region in regions)]
    return _table(
        (
            *_codes("operation"),
            *_texts("region"),
            *_numbers("executions", "bundles", "cycles", "share", "matrix stalls", *units),
        ),
        regions,
        lambda region: (
            Cell(region.op),
            Cell(region.name),
            Cell(f"{region.executions:,}"),
            Cell(f"{region.bundles:,}"),
            Cell(f"{region.cycles:,}"),
            Cell(percent(region.cycles / total), region.cycles / total),
            Cell(f"{region.matrix_stall_cycles:,}" if region.matrix_stall_cycles else ""),
            *(Cell(f"{region.issued[unit]:,}" if region.issued.get(unit) else "") for unit in units),
        ),
        most=_MOST_LINES,
    )


def lines_table(explanation: Explanation) -> ExplainedTable | None:
    """Lists what each line of the kernels' sources asks for in one execution. Bars: share of the largest."""
    lines = explanation.lines
    if not lines:
        return None
    most = {
        field: max(1.0, *(float(getattr(line, field)) for line in lines))
        for field in ("matrix_flops", "vector_elements", "loaded_bytes", "stored_bytes")
    }

    def amount(line: object, field: str, scale: float) -> Cell:
        value = float(getattr(line, field))
        if not value:
            return Cell("")
        return Cell(f"{value / scale:,.3g}" if value < 100 * scale else f"{value / scale:,.0f}", value / most[field])

    return _table(
        (
            *_codes("where", "source"),
            *_texts("operations"),
            *_numbers("executions", "matrix Mflop", "thousand vector elements", "KiB loaded", "KiB stored"),
        ),
        lines,
        lambda line: (
            Cell(short_place(line.where)),
            Cell(line.text),
            Cell(line.operations),
            Cell("–" if line.executions is None else f"{line.executions:,}"),
            amount(line, "matrix_flops", 1e6),
            amount(line, "vector_elements", 1e3),
            amount(line, "loaded_bytes", 1024),
            amount(line, "stored_bytes", 1024),
        ),
        most=_MOST_LINES,
    )


def traffic_table(explanation: Explanation) -> ExplainedTable | None:
    """Lists what each operand of each kernel costs in HBM traffic."""
    if not explanation.traffic:
        return None
    return _table(
        (
            *_codes("kernel", "operand"),
            *_texts("role"),
            *_codes("shape", "block"),
            *_numbers("copies", "MB moved", "MB at least", "times"),
        ),
        explanation.traffic,
        lambda operand: (
            Cell(operand.kernel),
            Cell(operand.operand),
            Cell(operand.role),
            Cell(f"{operand.dtype}[{','.join(map(str, operand.shape))}]"),
            Cell(f"[{','.join(map(str, operand.block))}]"),
            Cell("–" if operand.fetches is None else f"{operand.fetches:,}"),
            Cell(megabytes(operand.moved_bytes)),
            Cell(megabytes(operand.least_bytes)),
            Cell(times_least(operand)),
        ),
    )


def times_least(operand: OperandTraffic) -> str:
    """Says how often each byte moves."""
    if operand.moved_bytes is None or not operand.least_bytes:
        return "–"
    return f"{operand.moved_bytes / operand.least_bytes:.2f} ×"


def savings_table(explanation: Explanation) -> ExplainedTable | None:
    """Lists the findings."""
    if not explanation.savings:
        return None
    return _table(
        (
            *_texts("finding", "why"),
            *_codes("change"),
            *_numbers("µs after", "saves"),
            *_texts("how it is known"),
        ),
        explanation.savings,
        lambda saving: (
            Cell(saving.title + (f" ({short_place(saving.where)})" if saving.where else "")),
            Cell(saving.why),
            Cell(saving.change),
            Cell(us(saving.time_us)),
            Cell(percent(saving.saving), None if saving.saving is None else max(0.0, saving.saving)),
            Cell(saving.provenance),
        ),
    )


def ops_table(run: SimulatedRun) -> ExplainedTable:
    """Lists the operations of the later core, the longest first."""
    core = run.later_core

    def line(op: OpRun) -> tuple[Cell, ...]:
        waits = {
            "copies": op.copy_stall_cycles + op.overhead_cycles,
            "matrix units": op.matrix_stall_cycles,
            "semaphore": op.semaphore_stall_cycles,
        }
        share = op.cycles / max(1, core.cycles)
        return (
            Cell(op.name),
            Cell(op.scope),
            Cell(us(op.cycles / run.clock_hz * 1e6)),
            Cell(percent(share), share),
            Cell(", ".join(f"{cause} {percent(spent / max(1, op.cycles))}" for cause, spent in waits.items() if spent)),
        )

    columns = (*_codes("operation", "written at"), *_numbers("simulated µs", "share"), *_texts("waits for"))
    return _table(columns, sorted(core.ops, key=lambda op: -op.cycles), line, most=_MOST_OPS)


def _texts(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title=title, kind="text") for title in titles)


def _codes(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title=title, kind="code") for title in titles)


def _numbers(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title=title, kind="number") for title in titles)


def _table(
    columns: tuple[Column, ...], items: Iterable[_T], line: Callable[[_T], Sequence[Cell]], *, most: int | None = None
) -> ExplainedTable:
    found = list(items)
    shown = found if most is None else found[:most]
    rows = tuple(tuple(line(item)) for item in shown)
    return ExplainedTable(columns=columns, rows=rows, left_out=len(found) - len(shown))
