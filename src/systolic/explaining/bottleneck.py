"""Say in words what limits a simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from systolic.analysis import LineOps
from systolic.explaining.parts import OperandTraffic
from systolic.simulator import OpRun, SimulatedRun

# Above these shares a cause is called the limit of a run. They choose words, and change no reported number.
_AT_ITS_LIMIT = 0.88
_HBM_BUSY = 0.80
_SHORT_STEP_US = 1.0  # about as long as a copy from HBM takes to arrive: shorter steps do not hide it
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
    "spill": "stores of spilled registers",
    "fill": "loads of spilled registers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The limit of a run: a name, and a sentence with numbers."""

    cause: str
    words: str


def main_op(run: SimulatedRun) -> OpRun | None:
    """Find the operation with the largest share of the later core's time; None if nothing ran."""
    return max(run.later_core.ops, key=lambda op: op.cycles, default=None)


def bottleneck(
    run: SimulatedRun, lines: Sequence[LineOps], traffic: Sequence[OperandTraffic], *, steps: int = 0
) -> Bottleneck:
    """Find what limits the run's longest operation. Waits are shares of the whole time, as `SimulatedRun.stalls` are.

    Args:
      steps: steps of the grids of all kernels; 0: not known.
    """
    op = main_op(run)
    if op is None or not op.cycles:
        return Bottleneck(cause="nothing", words="nothing runs")
    cycles = op.cycles
    matrix = op.matrix_busy_cycles / (cycles * run.matrix_units)
    # All cores share HBM, but some may not use it.
    everywhere = [other for core in run.cores for other in core.ops if other.name == op.name]
    moved = sum(other.hbm_read_bytes + other.hbm_written_bytes for other in everywhere)
    crossing = moved / (run.hbm_bytes_per_cycle * cycles) if run.hbm_bytes_per_cycle else 0.0
    if matrix >= _AT_ITS_LIMIT:
        return Bottleneck(
            cause="matrix unit", words=f"limited by the matrix unit, which is busy {matrix:.0%} of the time"
        )
    stalls = run.stalls
    longest = max(("copy", "overhead", "matrix"), key=lambda cause: stalls[cause])
    if stalls[longest] < _WORTH_A_WORD or longest == "matrix":
        return _code(run, op, matrix, lines)
    if crossing >= _HBM_BUSY:
        return _bandwidth(moved, traffic)
    each_us = op.cycles / steps / run.clock_hz * 1e6 if steps and op.is_pallas else 0.0
    waits = f"waits for copies {stalls['copy']:.0%} of the time, starting them {stalls['overhead']:.0%}"
    if each_us and (longest == "overhead" or each_us < _SHORT_STEP_US):
        words = f"limited by small steps, {steps:,} of {each_us:.2g} µs: {waits}; larger blocks are needed"
        return Bottleneck(cause="small steps", words=words)
    busy = f"HBM is busy {crossing:.0%} and the matrix unit {matrix:.0%}"
    if longest == "overhead":
        return Bottleneck(
            cause="starting copies", words=f"limited by {op.copies:,} small copies: {waits}, while {busy}"
        )
    return Bottleneck(
        cause="waits for copies", words=f"limited by copies that start in bursts or too late: {waits}, while {busy}"
    )


def _bandwidth(moved: int, traffic: Sequence[OperandTraffic]) -> Bottleneck:
    worst = max(
        (operand for operand in traffic if operand.moved_bytes and operand.least_bytes),
        key=lambda operand: (operand.moved_bytes or 0) - operand.least_bytes,
        default=None,
    )
    wasted = ""
    if worst is not None and worst.moved_bytes and worst.moved_bytes > _WASTED_TRAFFIC * worst.least_bytes:
        wasted = f"; {worst.operand} is fetched {worst.moved_bytes / worst.least_bytes:.1f} times over"
    return Bottleneck(cause="HBM bandwidth", words=f"limited by HBM, over which {moved / 1e6:,.1f} MB cross{wasted}")


def _code(run: SimulatedRun, op: OpRun, matrix: float, lines: Sequence[LineOps]) -> Bottleneck:
    shares = {unit: op.issued.get(unit, 0) / (slots * op.cycles) for unit, slots in run.slots.items() if unit in _UNITS}
    unit = max(shares, key=lambda name: shares[name], default=None)
    stalled = op.matrix_stall_cycles / op.cycles
    if max(matrix, stalled, shares.get(unit or "", 0.0)) < _SEEN:
        return Bottleneck(cause="nothing", words="no unit is busy for long: there is little work")
    if unit is None or shares[unit] <= max(matrix, stalled):
        return Bottleneck(
            cause="matrix results" if stalled >= _WORTH_A_WORD else "matrix unit",
            words=f"limited by the matrix unit's pipeline: busy {matrix:.0%} of the time, and {stalled:.0%} waiting "
            "for it or its results, because products in one stretch of straight code are short",
        )
    line = _line_of(unit, lines)
    return Bottleneck(
        cause=_UNITS[unit],
        words=f"limited by {_UNITS[unit]}, {shares[unit]:.0%} of their issue slots" + (f" ({line})" if line else ""),
    )


def _line_of(unit: str, lines: Sequence[LineOps]) -> str:
    """Pick the line of source that uses a unit most, by the traced program."""
    amounts = {
        "store": lambda line: line.stored_bytes,
        "load": lambda line: line.loaded_bytes,
        "vpu": lambda line: line.vector_elements,
    }
    amount = amounts.get(unit)
    if amount is None or not lines:
        return ""
    longest = max(lines, key=lambda line: amount(line) * (line.executions or 1))
    return longest.text if amount(longest) else ""
