"""The MXUs and cross-lane units of a core: when work pushed into them is done, and when the core stalls on it.

A `vmatmul` sends the rows of one vector register through a unit. Its results come out a latency after it began, through
a queue (`mrf`) or into numbered places (`mrb`), from which `vpop` takes them. The core stalls when a unit already has
`matmul_queue_depth` such operations before it, and when a result is popped before it is there. A `vmatpush` brings a
register of weights; on chips where that takes `weight_push_cycles`, rows wait as long.

A cross-lane unit transposes, permutes, broadcasts or reduces a vector register in `lane_move_cycles`. The compiler
issues these at shorter intervals; the core stalls when a unit's queue, which is as deep as an MXU's, is full.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.chips import MachineModel
from systolic.simulator.errors import SimulationError, check_most
from systolic.simulator.hardware.segment_memo import Relative, SegmentMemo, SegmentRun
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.reading.listing import Instruction

_UNIT = re.compile(r"mxu(\d)")
_LANE_UNIT = re.compile(r"\.xlu([0-2])")
_PLACE = re.compile(r"\[(\d+)\]\.mxu(\d)")
_OPERAND_TYPE = re.compile(r"\.(f32|bf16|s8|u8|f8\w*|s4|u4)\b")
_BITS = {"f32": 32, "bf16": 16, "s8": 8, "u8": 8, "f8": 8, "s4": 4, "u4": 4}
_MAX_RESULTS = 1 << 14  # that wait in the queue of a unit; the chips' queues hold a few dozen
_REGISTER_ROWS = 8  # of 32-bit elements in a vector register; narrower elements are packed
_REGISTER_ELEMENTS = 1024  # results of 32 bits in a vector register
_LANES = "lanes"
_LANE_UNITS = 3  # at most, by the names in listings


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see `Instruction`
class MatrixOp:
    """One `vmatmul` (with rows and results), `vmatpush` (with neither) or `vpop` (with a result), at its cycle.

    A move across lanes has neither and the operand type "lanes"; its unit counts after the last MXU.
    """

    offset: int
    unit: int
    operand_type: str  # the key of the rate in `MachineModel.mxu_rows_per_cycle`; "": no product
    rows: int
    place: int | None  # in the result buffer; None where results queue
    results: int  # vector registers of results
    condition: int | None  # the number of the segment's condition that has to hold; None: always

    def at(self, offset: int, condition: int | None) -> MatrixOp:
        """Return the same operation at another cycle, under a condition."""
        return MatrixOp(offset, self.unit, self.operand_type, self.rows, self.place, self.results, condition)

    @property
    def is_pop(self) -> bool:
        return self.rows == 0 and self.results > 0

    @property
    def is_push(self) -> bool:
        return self.results == 0


class MatrixReader:
    """Reads the work of instructions of the matrix and cross-lane units."""

    def __init__(self, machine: MachineModel) -> None:
        self._machine = machine
        self._known: dict[tuple[str, str], list[MatrixOp]] = {}  # a program repeats a few opcodes and places

    def ops(self, instruction: Instruction, offset: int, condition: int | None) -> list[MatrixOp]:
        """Read the work of a `vmatmul`, `vmatpush` or `vpop`; nothing for other instructions.

        Raises:
          SimulationError: the instruction names no unit, or a type whose rate the machine model does not have.
        """
        first = instruction.operands[0] if instruction.operands else ""
        key = instruction.opcode, first if first.startswith("[") else ""
        ops = self._known.get(key)
        if ops is None:
            ops = self._known[key] = _matrix_ops(instruction, self._machine)
        return [op.at(offset, condition) for op in ops]


def _matrix_ops(instruction: Instruction, machine: MachineModel) -> list[MatrixOp]:
    opcode, kind = instruction.opcode, instruction.traits.kind
    if kind == "matmul":
        return [_matmul(instruction, machine)]
    if kind == "weight push":
        return [MatrixOp(0, int(unit), "", 0, None, 0, None) for unit in _UNIT.findall(opcode)]
    if kind == "result pop" and "mr" in opcode:
        place = _PLACE.match(instruction.operands[0]) if instruction.operands else None
        if place:
            return [MatrixOp(0, int(place.group(2)), "", 0, int(place.group(1)), 1, None)]
        units = _UNIT.findall(opcode)  # one, or two whose results are added on the way out
        if not units:
            raise SimulationError(f"a result is popped without naming a matrix unit: {instruction.text}")
        return [MatrixOp(0, int(unit), "", 0, None, 1, None) for unit in units]
    if kind == "lane move" and (lane_unit := _LANE_UNIT.search(opcode)):
        return [MatrixOp(0, machine.mxu_count + int(lane_unit[1]), _LANES, 0, None, 0, None)]
    return []


def _matmul(instruction: Instruction, machine: MachineModel) -> MatrixOp:
    operand_type = _OPERAND_TYPE.search(instruction.opcode)
    kind = operand_type.group(1)[:4] if operand_type else "f32"
    kind = "f8" if kind.startswith("f8") else kind
    if kind not in machine.mxu_rows_per_cycle:
        raise SimulationError(f"the machine model has no rate for this operand type: {instruction.text}")
    # `lmr` sends rows again that the unit has kept. In programs with f32 products it gives one register of results,
    # eight rows, whatever its type.
    rows = _REGISTER_ROWS if ".lmr." in instruction.opcode else _REGISTER_ROWS * 32 // _BITS[kind]
    place = _PLACE.match(instruction.operands[0]) if instruction.operands else None
    unit = place.group(2) if place else (_UNIT.findall(instruction.opcode) or [None])[0]
    if unit is None:
        raise SimulationError(f"a product names no matrix unit: {instruction.text}")
    return MatrixOp(
        offset=0,
        unit=int(unit),
        operand_type=kind,
        rows=rows,
        place=int(place.group(1)) if place else None,
        results=max(1, rows * _columns(kind, machine) // _REGISTER_ELEMENTS),
        condition=None,
    )


def _columns(kind: str, machine: MachineModel) -> int:
    """Return the columns of a unit. With int4 it is twice as deep and half as wide, as the results in listings show."""
    return machine.mxu_columns // 2 if kind in ("s4", "u4") else machine.mxu_columns


@dataclass(frozen=True, slots=True)
class Segment:
    """Straight code between two events: its length and its operations of the matrix units."""

    cycles: int
    ops: tuple[MatrixOp, ...]
    block: int = 0  # the basic block that it is part of


class Mxus:
    """The MXUs and cross-lane units of one core.

    A segment's cost depends only on the units' state when it begins, so each (segment, state) is computed once and
    looked up afterwards: this makes long loops quick, and slices of many devices, and changes no result. With
    `remember=False` everything is computed again; a test compares the two.

    Args:
      program: whose segments they are.
      memo: of runs of segments, by these units and by the units of other cores and programs.
    """

    def __init__(
        self,
        machine: MachineModel,
        segments: Sequence[Segment],
        *,
        remember: bool = True,
        timeline: Timeline | None = None,
        program: str = "",
        memo: SegmentMemo | None = None,
    ) -> None:
        self._latency = machine.result_latency_cycles
        self._depth = machine.matmul_queue_depth
        self._units = machine.mxu_count + _LANE_UNITS
        self._push = machine.weight_push_cycles
        self._lane_move = machine.lane_move_cycles
        self._busy_for = functools.cache(functools.partial(_busy_for, machine))  # most programs have one or two kinds
        self._segments = segments
        self._remember = remember
        self._timeline = timeline
        self._program = program
        self._memo = SegmentMemo() if memo is None else memo
        self._at = 0  # the time to which `_state` is relative
        self._state: Relative = ((0,) * self._units, ((),) * self._units, ((),) * self._units)
        self.stalls = [0] * len(segments)  # cycles, by segment
        self._lane_stalls = [0] * len(segments)  # the part of `stalls` on cross-lane units
        self.stall_cycles = 0  # in which the core waited for the MXUs or their results
        self.busy_cycles = 0

    def stalls_by_block(self) -> dict[int, tuple[int, int]]:
        """Add up the stall cycles of each basic block: all of them, and those on MXUs."""
        result: dict[int, tuple[int, int]] = {}
        for segment, stall, on_lanes in zip(self._segments, self.stalls, self._lane_stalls, strict=True):
            total, on_mxus = result.get(segment.block, (0, 0))
            result[segment.block] = (total + stall, on_mxus + stall - on_lanes)
        return result

    def state_at(self, time: int) -> Relative:
        """Return the units' state, relative to a time."""
        return _shifted(self._state, time - self._at)

    def is_idle(self, time: int) -> bool:
        free, queued, placed = self.state_at(time)
        return not any(free) and not any(queued) and not any(placed)

    def repeat(self, time: int, alone: Mxus) -> None:
        """Add counts of other units for the same segments at a time; see `repeated_calls`."""
        for mine, theirs in ((self.stalls, alone.stalls), (self._lane_stalls, alone._lane_stalls)):
            if any(theirs):
                mine[:] = map(operator.add, mine, theirs)
        self.stall_cycles += alone.stall_cycles
        self.busy_cycles += alone.busy_cycles
        self._at, self._state = time + alone._at, alone._state

    def advance(self, segment: int, time: int, conditions: tuple[bool, ...] = ()) -> int:
        """Run a segment from `time`; return when it ends."""
        state = _shifted(self._state, time - self._at)
        key = (self._program, segment, conditions, state)
        segment_run = self._memo.get(key) if self._remember else None
        if segment_run is None:
            segment_run = self._run(self._segments[segment], conditions, state)
            self._memo.add(key, segment_run)
        cycles, self._state, busy, on_lanes = segment_run
        self._at = time + cycles
        stall = cycles - self._segments[segment].cycles
        self.stalls[segment] += stall
        self._lane_stalls[segment] += on_lanes
        self.stall_cycles += stall - on_lanes
        self.busy_cycles += busy
        if self._timeline is not None:
            self._timeline.add("matrix", time, self._at, f"{stall} cycles stalled" if stall else "", busy)
        return self._at

    def _run(self, segment: Segment, conditions: tuple[bool, ...], state: Relative) -> SegmentRun:
        free: list[float] = list(state[0])
        queued = [deque(results) for results in state[1]]
        placed = [dict(results) for results in state[2]]
        stall = busy = on_lanes = 0
        for op in segment.ops:
            if op.condition is not None and not conditions[op.condition]:
                continue
            now = op.offset + stall
            unit = op.unit
            if op.operand_type == _LANES:
                held = max(0, math.ceil(free[unit]) - now - self._depth * self._lane_move)
                stall, on_lanes = stall + held, on_lanes + held
                free[unit] = max(now + held, free[unit]) + self._lane_move
                continue
            if op.is_push:
                if self._push:
                    free[unit] = max(now, free[unit]) + self._push
                continue
            if op.is_pop:
                ready = placed[unit].get(op.place, 0) if op.place is not None else _next(queued[unit], op)
                stall += max(0, ready - now)
                continue
            taken = self._busy_for(op.operand_type, op.rows)
            stall += max(0, math.ceil(free[unit]) - now - self._depth * taken)
            begin = max(op.offset + stall, math.ceil(free[unit]))
            free[unit] = begin + taken
            busy += taken
            ready = begin + self._latency
            if op.place is None:
                queued[unit].extend([ready] * op.results)
                check_most(len(queued[unit]), _MAX_RESULTS, f"results of matrix unit {unit} that no instruction takes")
            else:
                placed[unit].update((op.place + i, ready) for i in range(op.results))
        cycles = segment.cycles + stall
        places = tuple(tuple(sorted(results.items())) for results in placed)
        end: Relative = (tuple(free), tuple(map(tuple, queued)), places)
        return cycles, _shifted(end, cycles), busy, on_lanes


def _busy_for(machine: MachineModel, operand_type: str, rows: int) -> int:
    """Return the cycles that a unit is busy with the rows of a `vmatmul`."""
    return max(1, round(rows / machine.mxu_rows_per_cycle[operand_type]))


def _next(queue: deque[int], op: MatrixOp) -> int:
    if not queue:
        raise SimulationError(f"a result is popped from matrix unit {op.unit}, which has none")
    return queue.popleft()


def _shifted(state: Relative, cycles: int) -> Relative:
    """Shift a state `cycles` into the future. Past times are equivalent to now."""
    free, queued, placed = state
    free = tuple([left - cycles if left > cycles else 0 for left in free])
    if any(queued):
        queued = tuple([tuple([left - cycles if left > cycles else 0 for left in results]) for results in queued])
    if any(placed):
        placed = tuple([tuple([(i, left - cycles) for i, left in results if left > cycles]) for results in placed])
    return free, queued, placed
