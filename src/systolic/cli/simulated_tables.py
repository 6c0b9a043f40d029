"""Tables of one simulated run: where its time goes."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from systolic.cli.output import table
from systolic.schedule import MIB
from systolic.simulator import CoreRun, OpRun, SimulatedRun

_MOST_OPS = 20
_MOST_COPIES = 8


def show_run(out: Console, title: str, run: SimulatedRun) -> None:
    """Prints a verdict, and tables of operations, loops, units and copies."""
    core = run.later_core
    out.print(f"[bold]{run.chip}[/] {_plain(title)}: [bold]simulated {run.time_us:,.1f} µs[/]{_verdict(run)}")
    if len(run.cores) > 1:
        shares = ", ".join(f"core {each.core} {each.cycles / max(1, run.cycles):.0%}" for each in run.cores)
        out.print(f"two cores, of which the later counts: {shares} of the time")
    out.print(_ops(run, core))
    if len(core.ops) > _MOST_OPS:
        out.print(f"and {len(core.ops) - _MOST_OPS} shorter operations")
    if any(op.loop is not None for op in core.ops):
        out.print("")
        out.print(_loops(run, core))
    out.print("")
    out.print(_units(run))
    if core.copy_sizes:
        out.print("")
        out.print(_copies(core))
    for assumption in run.assumptions:
        out.print(f"assumed: {_plain(assumption)}")


def _plain(text: str) -> str:
    return escape(text)


def _verdict(run: SimulatedRun) -> str:
    waits = [f"{cause} {share:.0%}" for cause, share in run.stalls.items() if share >= 0.005]
    moved = run.hbm_read_bytes + run.hbm_written_bytes
    parts = [
        f", {run.cycles:,} cycles at {run.clock_hz / 1e9:.2f} GHz; matrix units {run.matrix_busy_share:.0%} busy, HBM "
        f"{run.copy_busy_share:.0%}",
        f"waits: {', '.join(waits) or 'none'}",
        f"{run.hbm_read_bytes / 1e6:,.1f} MB read, {run.hbm_written_bytes / 1e6:,.1f} MB written"
        + (f" ({moved / run.time_us / 1e6:.2f} TB/s)" if run.time_us else ""),
        f"VMEM {run.vmem_bytes / MIB:.2f} MiB"
        + (f", spills {run.spill_bytes / MIB:.2f} MiB" if run.spill_bytes else ""),
    ]
    if run.prefetch_cycles:
        parts.append(f"a first call takes {run.prefetch_us:,.1f} µs longer (prefetch of an argument)")
    return "; ".join(parts)


def _ops(run: SimulatedRun, core: CoreRun):
    columns = (
        "operation",
        "written at",
        "calls",
        "simulated µs",
        "share",
        "copies",
        "matrix",
        "semaphore",
        "MXU busy",
        "HBM MB",
    )
    ops = sorted(core.ops, key=lambda op: -op.cycles)[:_MOST_OPS]
    return table(columns, [_op_line(run, core, op) for op in ops], left=("operation", "written at"))


def _op_line(run: SimulatedRun, core: CoreRun, op: OpRun) -> tuple[str, ...]:
    cycles = max(1, op.cycles)
    return (
        op.name,
        op.scope,
        str(op.calls),
        f"{op.cycles / run.clock_hz * 1e6:,.2f}",
        f"{op.cycles / max(1, core.cycles):.1%}",
        f"{(op.copy_stall_cycles + op.overhead_cycles) / cycles:.0%}",
        f"{op.matrix_stall_cycles / cycles:.0%}",
        f"{op.semaphore_stall_cycles / cycles:.0%}",
        f"{op.matrix_busy_cycles / (cycles * run.matrix_units):.0%}",
        f"{(op.hbm_read_bytes + op.hbm_written_bytes) / 1e6:,.2f}",
    )


def _loops(run: SimulatedRun, core: CoreRun):
    columns = ("outermost loop of", "rounds", "first two µs", "one steady round µs", "last µs")
    scale = 1e6 / run.clock_hz
    lines = []
    for op in sorted(core.ops, key=lambda op: -op.cycles)[:_MOST_OPS]:
        if op.loop is None:
            continue
        steady = op.loop.steady_round_cycles
        lines.append(
            (
                op.name,
                f"{op.loop.rounds:,}",
                f"{op.loop.first_cycles * scale:,.2f}",
                "–" if steady is None else f"{steady * scale:,.3f}",
                f"{op.loop.last_cycles * scale:,.2f}",
            )
        )
    return table(columns, lines, left=("outermost loop of",))


def _units(run: SimulatedRun):
    issued: dict[str, int] = {}
    for core in run.cores:
        for unit, count in core.issued.items():
            issued[unit] = issued.get(unit, 0) + count
    lines = [
        (
            unit,
            f"{share:.1%}",
            str(run.slots[unit]) if unit in run.slots else "–",
            f"{issued[unit]:,}" if unit in issued else "–",
        )
        for unit, share in run.busy.items()
    ]
    return table(("unit", "busy", "issue slots a cycle", "issued"), lines, left=("unit",))


def _copies(core: CoreRun):
    sizes = sorted(core.copy_sizes, key=lambda size: -size.size_bytes * size.count)
    lines = [
        (
            f"{size.source} → {size.destination}",
            f"{size.count:,}",
            f"{size.size_bytes:,}",
            {None: "not known", 0: "one piece"}.get(size.run_bytes, f"{size.run_bytes:,} B" if size.run_bytes else ""),
            f"{size.size_bytes * size.count / 1e6:,.2f}",
        )
        for size in sizes[:_MOST_COPIES]
    ]
    if len(sizes) > _MOST_COPIES:
        rest = sizes[_MOST_COPIES:]
        total = sum(size.size_bytes * size.count for size in rest)
        lines.append((f"{len(rest)} other kinds", f"{sum(s.count for s in rest):,}", "", "", f"{total / 1e6:,.2f}"))
    return table(("copies", "number", "bytes each", "in pieces of", "MB"), lines, left=("copies",))
