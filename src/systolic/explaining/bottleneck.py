"""What limits a simulated run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from systolic.analysis import LineOps
from systolic.explaining.explanation import OperandTraffic
from systolic.simulator import OpRun, SimulatedRun

# Above these shares a cause is said to be what limits a run. They choose words, and no number that is reported.
_AT_ITS_LIMIT = 0.88
_WORTH_A_WORD = 0.10
_SEEN = 0.005
_WASTED_TRAFFIC = 1.15

_UNITS = {
    "store": "vector stores",
    "load": "vector loads",
    "vpu": "elementwise vector work",
    "xlu": "moves across lanes",
    "eup": "transcendental functions",
    "pop": "fetching results of the matrix and other units",
    "scalar": "scalar code",
    "spill": "stores of registers that did not fit",
    "fill": "loads of registers that did not fit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What limits a run: a name, and a sentence with numbers."""

    cause: str
    words: str


def main_op(run: SimulatedRun) -> OpRun | None:
    """Finds the operation with the largest share of the later core's time; None where nothing ran."""
    return max(run.later_core.ops, key=lambda op: op.cycles, default=None)


def bottleneck(run: SimulatedRun, lines: Sequence[LineOps], traffic: Sequence[OperandTraffic]) -> Bottleneck:
    """Finds what limits the run's longest operation."""
    op = main_op(run)
    if op is None or not op.cycles:
        return Bottleneck(cause="nothing", words="nothing runs")
    cycles = op.cycles
    matrix = op.matrix_busy_cycles / (cycles * run.matrix_units)
    waiting = op.copy_stall_cycles / cycles
    # HBM is one for all cores, of which some may have no part in it.
    everywhere = [each for core in run.cores for each in core.ops if each.name == op.name]
    moved = sum(each.hbm_read_bytes + each.hbm_written_bytes for each in everywhere)
    crossing = moved / (run.hbm_bytes_per_cycle * cycles) if run.hbm_bytes_per_cycle else 0.0
    if matrix >= _AT_ITS_LIMIT:
        return Bottleneck(
            cause="matrix unit", words=f"limited by the matrix unit, which is busy {matrix:.0%} of the time"
        )
    if waiting >= _WORTH_A_WORD and waiting >= op.matrix_stall_cycles / cycles:
        return _copies(waiting, crossing, matrix, moved, traffic)
    if op.overhead_cycles / cycles >= 2 * _WORTH_A_WORD:
        share = op.overhead_cycles / cycles
        return Bottleneck(
            cause="starting copies",
            words=f"limited by starting and awaiting copies one by one, {share:.0%} of the time: {op.copies:,} of them",
        )
    return _code(run, op, matrix, lines)


def _copies(
    waiting: float, crossing: float, matrix: float, moved: int, traffic: Sequence[OperandTraffic]
) -> Bottleneck:
    if crossing >= _AT_ITS_LIMIT - 0.08:
        worst = max(
            (each for each in traffic if each.moved_bytes and each.least_bytes),
            key=lambda each: (each.moved_bytes or 0) - each.least_bytes,
            default=None,
        )
        wasted = ""
        if worst is not None and worst.moved_bytes and worst.moved_bytes > _WASTED_TRAFFIC * worst.least_bytes:
            wasted = f"; {worst.operand} is fetched {worst.moved_bytes / worst.least_bytes:.1f} times over"
        return Bottleneck(
            cause="HBM bandwidth",
            words=f"limited by HBM, over which {moved / 1e6:,.1f} MB cross{wasted}",
        )
    return Bottleneck(
        cause="waits for copies",
        words=f"limited by waits for copies, {waiting:.0%} of the time, while HBM is busy {crossing:.0%} and the "
        f"matrix unit {matrix:.0%}: blocks come in bursts, or too late",
    )


def _code(run: SimulatedRun, op: OpRun, matrix: float, lines: Sequence[LineOps]) -> Bottleneck:
    shares = {unit: op.issued.get(unit, 0) / (slots * op.cycles) for unit, slots in run.slots.items() if unit in _UNITS}
    unit = max(shares, key=lambda name: shares[name], default=None)
    stalled = op.matrix_stall_cycles / op.cycles
    if max(matrix, stalled, shares.get(unit or "", 0.0)) < _SEEN:
        return Bottleneck(cause="nothing", words="no unit is busy for long: hardly anything runs")
    if unit is None or shares[unit] <= max(matrix, stalled):
        return Bottleneck(
            cause="matrix results" if stalled >= _WORTH_A_WORD else "matrix unit",
            words=f"limited by the matrix unit's pipeline: busy {matrix:.0%} of the time, and {stalled:.0%} waiting "
            "for it or its results, since products in one piece of straight code are short",
        )
    line = _line_of(unit, lines)
    return Bottleneck(
        cause=_UNITS[unit],
        words=f"limited by {_UNITS[unit]}, {shares[unit]:.0%} of their issue slots" + (f" ({line})" if line else ""),
    )


def _line_of(unit: str, lines: Sequence[LineOps]) -> str:
    """Picks the line of source that asks most of a unit, by the traced program."""
    amounts = {
        "store": lambda line: line.stored_bytes,
        "load": lambda line: line.loaded_bytes,
        "vpu": lambda line: line.vector_elements,
    }
    amount = amounts.get(unit)
    if amount is None or not lines:
        return ""
    most = max(lines, key=lambda line: amount(line) * (line.executions or 1))
    return most.text if amount(most) else ""
