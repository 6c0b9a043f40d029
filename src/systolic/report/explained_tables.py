"""Tables of an explanation, as text for both the page and the terminal."""

from __future__ import annotations

from collections.abc import Callable

from systolic.analysis import LineOps
from systolic.compiler import short_place
from systolic.explaining import (
    Explanation,
    LineTime,
    OperandTraffic,
    Program,
    Region,
    Saving,
    VmemPart,
)
from systolic.report.columns import Column, numeric, textual
from systolic.report.explained_table import ExplainedTable, explained_table
from systolic.report.run_tables import UNITS
from systolic.report.time_errors import error_column
from systolic.report.written import megabytes, mib, percent, us

NO_LINE = "the pipeline around the kernel, and what the compiler adds"
HOW_SHARED = "the time of each stretch of straight code, divided among its bundles, without waits for copies"
_WORTH_SAYING = 0.005  # smaller savings, as a share of the time, are noise
_MAX_LINES = 60
_MAX_PARTS = 40


def program(explanation: Explanation, role: str) -> Program | None:
    """Return the first program of that role."""
    return next((program for program in explanation.programs if program.role == role), None)


def rate_tflops(program: Program) -> float | None:
    """Return the rate in Tflop/s; None if there is no time, or the operations are not known."""
    return program.flops / program.time_us / 1e6 if program.time_us and program.flops else None


def programs_table(explanation: Explanation) -> ExplainedTable[Program]:
    """List this kernel, XLA's, and the changes that were tried, without those that save nothing."""
    worth = [
        program
        for program in explanation.programs
        if program.role != "change" or not _saves_nothing(program, explanation)
    ]
    peak = explanation.roofline.peak_flops_per_s / 1e12

    def of_peak(program: Program) -> float | None:
        rate = rate_tflops(program)
        return None if rate is None or not peak else rate / peak

    return explained_table(
        (
            textual("program", lambda row: row.label),
            numeric("simulated µs", lambda row: us(row.time_us)),
            error_column(lambda row: row.error),
            numeric(
                "relative speed",
                lambda row: f"{explanation.time_us / row.time_us:.2f} ×" if row.time_us else None,
            ),
            numeric("Tflop/s", rate_tflops, ",.1f"),
            numeric("of peak", lambda row: percent(of_peak(row)), share=of_peak),
            numeric("HBM MB", lambda row: megabytes(row.hbm_bytes) if row.time_us else None, droppable=True),
            numeric(
                "flop/byte",
                lambda row: row.flops / row.hbm_bytes if row.flops and row.hbm_bytes else None,
                ",.0f",
                droppable=True,
            ),
            numeric(
                "exposed µs",
                lambda row: us(row.communication.exposed_us) if row.communication is not None else None,
                optional=True,
            ),
            textual("no time because", lambda row: row.reason, optional=True),
        ),
        worth,
        omitted=len(explanation.programs) - len(worth),
    )


def _saves_nothing(change: Program, explanation: Explanation) -> bool:
    return change.time_us is not None and change.time_us > explanation.time_us * (1 - _WORTH_SAYING)


def vmem_table(explanation: Explanation) -> ExplainedTable[VmemPart] | None:
    if explanation.vmem is None or not explanation.vmem.parts:
        return None
    limit = max(1, explanation.vmem.limit_bytes)
    return explained_table(
        (
            textual("operation", lambda part: part.op, kind="code", optional=True),
            textual("buffer", lambda part: part.name, optional=True),
            textual("kind", lambda part: part.kind, optional=True),
            numeric("copies", lambda part: part.copies),
            numeric("MiB", lambda part: mib(part.size_bytes)),
            numeric(
                "of the limit",
                lambda part: percent(part.size_bytes / limit),
                share=lambda part: part.size_bytes / limit,
            ),
        ),
        sorted(explanation.vmem.parts, key=lambda part: (part.op, -part.size_bytes)),
        max_rows=_MAX_PARTS,
    )


def regions_table(explanation: Explanation) -> ExplainedTable[Region] | None:
    """List stretches of straight code, in the order of the program."""
    if not explanation.regions:
        return None
    total = max(1, sum(region.cycles for region in explanation.regions))
    return explained_table(
        (
            textual("region", lambda region: region.name),
            textual("operation", lambda region: region.op, kind="code", droppable=True),
            textual("mostly of", lambda region: short_place(region.where), kind="code", optional=True),
            numeric("executions", lambda region: region.executions, ",", droppable=True),
            numeric("bundles", lambda region: region.bundles, ",", droppable=True),
            numeric("cycles", lambda region: region.cycles, ","),
            numeric("share", lambda region: percent(region.cycles / total), share=lambda region: region.cycles / total),
            numeric("matrix stalls", lambda region: region.matrix_stall_cycles or "", ",", optional=True),
            *(
                numeric(
                    unit, lambda region, unit=unit: region.issued.get(unit) or "", ",", droppable=True, optional=True
                )
                for unit in UNITS
            ),
        ),
        explanation.regions,
        max_rows=_MAX_LINES,
    )


def line_times_table(explanation: Explanation) -> ExplainedTable[LineTime] | None:
    """List the time of each line of the kernel, the longest first."""
    if not explanation.line_times:
        return None
    clock_hz = explanation.run.clock_hz
    return explained_table(
        (
            textual("where", lambda line: short_place(line.where) or "no line", kind="code"),
            textual("source", lambda line: line.text if line.where else NO_LINE, kind="code"),
            numeric("µs", lambda line: us(line.cycles / clock_hz * 1e6)),
            numeric("share", lambda line: percent(line.share), share=lambda line: line.share),
            numeric("bundles", lambda line: line.bundles, ",.0f"),
        ),
        explanation.line_times,
        max_rows=_MAX_LINES,
    )


def lines_table(explanation: Explanation) -> ExplainedTable[LineOps] | None:
    """List the work of each line of the kernels' sources in one execution. Bars: share of the largest."""
    if not explanation.lines:
        return None

    def amount(title: str, of: Callable[[LineOps], float], scale: float) -> Column[LineOps]:
        longest = max(1.0, *(float(of(line)) for line in explanation.lines))

        def scaled(line: LineOps) -> str:
            value = float(of(line))
            if not value:
                return ""
            return f"{value / scale:,.3g}" if value < 100 * scale else f"{value / scale:,.0f}"

        return numeric(
            title, scaled, share=lambda line: of(line) / longest if of(line) else None, droppable=True, optional=True
        )

    return explained_table(
        (
            textual("where", lambda line: short_place(line.where), kind="code"),
            textual("source", lambda line: line.text, kind="code", optional=True),
            textual("operations", lambda line: line.operations, droppable=True, optional=True),
            numeric("executions", lambda line: line.executions, ","),
            amount("matrix Mflop", lambda line: line.matrix_flops, 1e6),
            amount("thousand vector elements", lambda line: line.vector_elements, 1e3),
            amount("KiB loaded", lambda line: line.loaded_bytes, 1024),
            amount("KiB stored", lambda line: line.stored_bytes, 1024),
        ),
        explanation.lines,
        max_rows=_MAX_LINES,
    )


def traffic_table(explanation: Explanation) -> ExplainedTable[OperandTraffic] | None:
    """List the HBM traffic of each operand of each kernel."""
    if not explanation.traffic:
        return None
    return explained_table(
        (
            textual("operand", lambda operand: operand.operand, kind="code"),
            textual("kernel", lambda operand: operand.kernel, kind="code", droppable=True),
            textual("role", lambda operand: operand.role, droppable=True, optional=True),
            textual("shape", lambda operand: f"{operand.dtype}[{','.join(map(str, operand.shape))}]", kind="code"),
            textual("block", lambda operand: f"[{','.join(map(str, operand.block))}]", kind="code"),
            numeric("copies", lambda operand: operand.fetches, ","),
            numeric("MB moved", lambda operand: megabytes(operand.moved_bytes)),
            numeric("MB at least", lambda operand: megabytes(operand.least_bytes), droppable=True),
            numeric("times", times_least),
        ),
        explanation.traffic,
    )


def times_least(operand: OperandTraffic) -> str:
    """Return how often each byte moves, in words."""
    if operand.moved_bytes is None or not operand.least_bytes:
        return "–"
    return f"{operand.moved_bytes / operand.least_bytes:.2f} ×"


def savings_table(explanation: Explanation) -> ExplainedTable[Saving] | None:
    if not explanation.savings:
        return None
    return explained_table(
        (
            textual("finding", _title),
            textual("why", lambda saving: saving.why),
            textual("change", lambda saving: saving.change, kind="code", optional=True),
            numeric("µs after", lambda saving: us(saving.time_us)),
            numeric(
                "saves",
                lambda saving: percent(saving.saving),
                share=lambda saving: None if saving.saving is None else max(0.0, saving.saving),
            ),
            textual("how it is known", lambda saving: saving.provenance),
        ),
        explanation.savings,
    )


def _title(saving: Saving) -> str:
    return f"{saving.title} ({short_place(saving.where)})" if saving.where else saving.title
