"""A simulated run as tables of text: its units and its operations."""

from __future__ import annotations

from collections import Counter

from systolic.report.columns import numeric, textual
from systolic.report.explained_table import ExplainedTable, explained_table
from systolic.report.written import percent, us
from systolic.simulator import OpRun, SimulatedRun

_MAX_OPS = 20
# Meanings of the simulator's names of units.
UNITS = {
    "mxu": "matrix units: rows going through",
    "push": "weights into matrix units",
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


def units_table(run: SimulatedRun) -> ExplainedTable[tuple[str, float]]:
    """List how busy each unit was that did anything, the busiest first."""
    issued = Counter[str]()
    for core in run.cores:
        issued.update(core.issued)
    return explained_table(
        (
            textual("unit", lambda unit: unit[0], kind="code"),
            textual("does", lambda unit: UNITS.get(unit[0], ""), optional=True),
            numeric("busy", lambda unit: percent(unit[1]), share=lambda unit: unit[1]),
            numeric("issue slots a cycle", lambda unit: run.slots.get(unit[0])),
            numeric("issued", lambda unit: issued.get(unit[0]), ","),
        ),
        sorted((unit for unit in run.busy.items() if unit[1]), key=lambda unit: -unit[1]),
    )


def idle_units(run: SimulatedRun) -> str:
    """Name the units that did nothing, "idle: xlu, eup"; "" where all did something."""
    idle = [unit for unit, busy in run.busy.items() if not busy]
    return f"idle: {', '.join(idle)}" if idle else ""


def ops_table(run: SimulatedRun) -> ExplainedTable[OpRun]:
    """List the operations of the later core, the longest first."""
    core = run.later_core

    def share(op: OpRun) -> float:
        return op.cycles / max(1, core.cycles)

    return explained_table(
        (
            textual("operation", lambda op: op.name, kind="code"),
            textual("made by", lambda op: "Pallas" if op.is_pallas else "XLA"),
            textual("written at", lambda op: op.scope, kind="code", optional=True),
            numeric("simulated µs", lambda op: us(op.cycles / run.clock_hz * 1e6)),
            numeric("share", lambda op: percent(share(op)), share=share),
            textual("waits for", _waits, optional=True),
        ),
        sorted(core.ops, key=lambda op: -op.cycles),
        max_rows=_MAX_OPS,
    )


def _waits(op: OpRun) -> str:
    waits = {
        "copies": op.copy_stall_cycles + op.overhead_cycles,
        "matrix units": op.matrix_stall_cycles,
        "semaphore": op.semaphore_stall_cycles,
    }
    return ", ".join(f"{cause} {percent(spent / max(1, op.cycles))}" for cause, spent in waits.items() if spent)
