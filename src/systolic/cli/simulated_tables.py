"""Tables of one simulated run: where its time goes."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from systolic.cli.tables import show_table
from systolic.report.columns import Column, numeric, textual
from systolic.report.run_tables import idle_units, units_table
from systolic.report.time_errors import time_text
from systolic.schedule import MIB
from systolic.simulator import CopySize, OpRun, SimulatedRun, SparseCoreRun, SparseOpRun

_MAX_OPS = 20
_MAX_COPIES = 8


def show_run(out: Console, title: str, run: SimulatedRun) -> None:
    """Print a verdict, and tables of operations, loops, units and copies."""
    time = escape(time_text(run.time_us, run.error))
    out.print(f"[bold]{run.chip}[/] {escape(title)}: [bold]{run.provenance} {time}[/]{_verdict(run)}")
    if len(run.cores) > 1:
        shares = ", ".join(f"core {core.core} {core.cycles / max(1, run.cycles):.0%}" for core in run.cores)
        out.print(f"two cores, of which the later counts: {shares} of the time")
    show_parts(out, run)


def show_parts(out: Console, run: SimulatedRun) -> None:
    """Print tables of operations, loops, units and copies, and the assumptions."""
    core = run.later_core
    longest = sorted(core.ops, key=lambda op: -op.cycles)[:_MAX_OPS]
    show_table(out, _op_columns(run), longest)
    if len(core.ops) > _MAX_OPS:
        out.print(f"and {len(core.ops) - _MAX_OPS} shorter operations")
    if loops := [op for op in longest if op.loop is not None]:
        out.print("")
        show_table(out, _loop_columns(run), loops)
    out.print("")
    units = units_table(run)
    show_table(out, units.columns, units.rows)
    if idle := idle_units(run):
        out.print(idle)
    if core.copy_sizes:
        out.print("")
        sizes = sorted(core.copy_sizes, key=lambda size: -size.size_bytes * size.count)
        show_table(out, _COPIES, sizes[:_MAX_COPIES])
        if rest := sizes[_MAX_COPIES:]:
            total = sum(size.size_bytes * size.count for size in rest)
            copies = sum(size.count for size in rest)
            out.print(f"and {len(rest)} other kinds: {copies:,} copies of {total / 1e6:,.2f} MB")
    if run.sparse_cores:
        out.print("")
        show_table(out, _sparse_columns(run), [(core, op) for core in run.sparse_cores for op in core.ops])
    for assumption in run.assumptions:
        out.print(f"assumed: {escape(assumption)}")


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


def _sparse_columns(run: SimulatedRun) -> tuple[Column[tuple[SparseCoreRun, SparseOpRun]], ...]:
    scale = 1e6 / run.clock_hz
    return (
        numeric("SparseCore", lambda row: row[0].core),
        textual("program", lambda row: row[1].name),
        numeric("from µs", lambda row: row[1].begin_cycles * scale, ",.2f"),
        numeric("to µs", lambda row: row[1].end_cycles * scale, ",.2f"),
        numeric("modelled µs", lambda row: (row[1].end_cycles - row[1].begin_cycles) * scale, ",.2f"),
    )


def _op_columns(run: SimulatedRun) -> tuple[Column[OpRun], ...]:
    def share(cycles: int, op: OpRun) -> float:
        return cycles / max(1, op.cycles)

    return (
        textual("operation", lambda op: op.name),
        textual("made by", lambda op: "Pallas" if op.is_pallas else "XLA", droppable=True),
        textual("written at", lambda op: op.scope),
        numeric("calls", lambda op: op.calls, droppable=True),
        numeric("simulated µs", lambda op: op.cycles / run.clock_hz * 1e6, ",.2f"),
        numeric("share", lambda op: op.cycles / max(1, run.later_core.cycles), ".1%"),
        numeric("copies", lambda op: share(op.copy_stall_cycles + op.overhead_cycles, op), ".0%"),
        numeric("matrix", lambda op: share(op.matrix_stall_cycles, op), ".0%"),
        numeric("semaphore", lambda op: share(op.semaphore_stall_cycles, op), ".0%", droppable=True),
        numeric("MXU busy", lambda op: share(op.matrix_busy_cycles, op) / run.matrix_units, ".0%"),
        numeric("HBM MB", lambda op: (op.hbm_read_bytes + op.hbm_written_bytes) / 1e6, ",.2f", droppable=True),
    )


def _loop_columns(run: SimulatedRun) -> tuple[Column[OpRun], ...]:
    def us(cycles: float | None) -> float | None:
        return None if cycles is None else cycles * 1e6 / run.clock_hz

    return (
        textual("outermost loop of", lambda op: op.name),
        numeric("rounds", lambda op: op.loop and op.loop.rounds, ","),
        numeric("first two µs", lambda op: us(op.loop and op.loop.first_cycles), ",.2f"),
        numeric("one steady round µs", lambda op: us(op.loop and op.loop.steady_round_cycles), ",.3f"),
        numeric("last µs", lambda op: us(op.loop and op.loop.last_cycles), ",.2f"),
    )


def _chunk(size: CopySize) -> str:
    if size.run_bytes is None:
        return "not known"
    return f"{size.run_bytes:,} B" if size.run_bytes else "one piece"


_COPIES: tuple[Column[CopySize], ...] = (
    textual("copies", lambda size: f"{size.source} → {size.destination}"),
    numeric("number", lambda size: size.count, ","),
    numeric("bytes each", lambda size: size.size_bytes, ","),
    numeric("in pieces of", _chunk, droppable=True),
    numeric("MB", lambda size: size.size_bytes * size.count / 1e6, ",.2f"),
)
