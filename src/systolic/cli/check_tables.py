"""A check's report in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from systolic.checking import GRADES, CheckReport, Finding, KernelUse, OperandUse
from systolic.cli.output import heading
from systolic.cli.tables import show_table
from systolic.compiler import short_place
from systolic.report.columns import Column, numeric, textual
from systolic.schedule import MIB

_OPERANDS: tuple[Column[OperandUse], ...] = (
    textual("operand", lambda operand: operand.name),
    textual(
        "role", lambda operand: operand.role if operand.memory == "vmem" else f"{operand.role} in {operand.memory}"
    ),
    textual("array", lambda operand: f"{operand.dtype}[{','.join(map(str, operand.shape))}]"),
    textual("block", lambda operand: "×".join(map(str, operand.block))),
    numeric("copies", lambda operand: operand.fetches, ","),
    numeric("MB moved", lambda operand: None if operand.moved_bytes is None else operand.moved_bytes / 1e6, ",.2f"),
    numeric(
        "× least",
        lambda operand: (
            operand.moved_bytes / operand.least_bytes
            if operand.moved_bytes is not None and operand.least_bytes
            else None
        ),
        ".2f",
        droppable=True,
    ),
    numeric(
        "VMEM MiB", lambda operand: operand.vmem_bytes / MIB if operand.vmem_bytes else None, ".2f", droppable=True
    ),
)
_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def show_check(out: Console, report: CheckReport) -> None:
    """Print a verdict, each kernel's traffic and memory, the results of the compiler and the run, and the findings."""
    how = "rules on the traced program, the TPU compiler's verdict, a run in TPU interpret mode on the CPU"
    heading(out, report.chips, how, made_with=report.versions, flags=report.flags)
    out.print(f"[bold]{escape(report.function)}[/]({escape(', '.join(report.arguments))}): {_verdict(report)}")
    for kernel in _each_once(report.kernels):
        out.print("")
        _show_kernel(out, kernel)
    out.print("")
    for line in _verdicts(report):
        out.print(line, markup=False)
    out.print(_run(report), markup=False)
    for finding in report.findings:
        out.print("")
        _show_finding(out, finding)


def _verdict(report: CheckReport) -> str:
    counts = [f"{report.count(grade)} {grade}{'s' * (report.count(grade) != 1)}" for grade in GRADES]
    style = "bold red" if not report.ok else "bold green" if report.compared else "bold"
    return f"[{style}]{report.conclusion}[/], {', '.join(counts)}"


def _each_once(kernels: tuple[KernelUse, ...]) -> list[KernelUse]:
    """Return the kernels of the first chip, and kernels of other chips whose blocks differ."""
    seen: dict[tuple[object, ...], KernelUse] = {}
    for kernel in kernels:
        seen.setdefault((kernel.name, kernel.where, kernel.grid, kernel.operands), kernel)
    return list(seen.values())


def _show_kernel(out: Console, kernel: KernelUse) -> None:
    grid = " × ".join("?" if size is None else f"{size:,}" for size in kernel.grid) or "none"
    semantics = f" ({', '.join(kernel.semantics)})" if kernel.semantics else ""
    out.print(f"[bold]{escape(kernel.name)}[/] · grid {grid}{semantics} · {escape(short_place(kernel.where))}")
    show_table(out, _OPERANDS, kernel.operands)
    share = kernel.vmem_bytes / kernel.vmem_limit_bytes
    out.print(
        f"VMEM: blocks and scratch take {kernel.vmem_bytes / MIB:.2f} MiB of {kernel.vmem_limit_bytes / MIB:.2f} MiB "
        f"({share:.0%}) on {kernel.chip}"
    )


def _verdicts(report: CheckReport) -> list[str]:
    lines = []
    for verdict in report.verdicts:
        if verdict.accepted:
            spills = f", {verdict.spill_bytes / MIB:.2f} MiB of it spilled registers" if verdict.spill_bytes else ""
            vmem = (verdict.vmem_bytes or 0) / MIB
            lines.append(f"{verdict.chip}: the compiler accepts it ({vmem:.2f} MiB of VMEM{spills})")
        elif verdict.accepted is None:
            lines.append(f"{verdict.chip}: no answer of the compiler: {verdict.text.splitlines()[0]}")
        else:
            lines.append(f"{verdict.chip}: the compiler refuses it")
    return lines


def _run(report: CheckReport) -> str:
    run = report.run
    if not run.ran:
        return "not run"
    text = f"ran with seeds {', '.join(map(str, run.seeds))} on {', '.join(run.sizes)} in {run.seconds:.1f} s"
    if len(run.data) > 1:
        text += f", also on inputs that are {', '.join(run.data[1:])}"
    if run.error is None or run.tolerance is None:
        return f"{text}; not compared with a reference"
    lost = f", and {run.lost:,} elements NaN or infinite" if run.lost else ""
    return (
        f"{text}; error {run.error:.3g} where {run.tolerance:.3g} is allowed{lost}, against {run.compared} in float64"
    )


def _show_finding(out: Console, finding: Finding) -> None:
    place = f" · {escape(short_place(finding.where))}" if finding.where else ""
    on = f" on {finding.chip}" if finding.chip else ""
    out.print(f"[{_STYLES[finding.grade]}]{finding.grade}[/] [bold]{finding.rule}[/]{on}{place}")
    out.print(f"  {escape(finding.value)}")
    out.print(f"  [dim]rule[/] {escape(finding.limit)}")
    out.print(f"  [dim]fix[/]  {escape(finding.fix)}")
    lines = finding.detail.strip().splitlines()
    for line in lines[:12]:
        out.print(f"  [dim]│[/] {escape(line)}")
    if len(lines) > 12:
        out.print(f"  [dim]│[/] … {len(lines) - 12} more lines; --json has them")
