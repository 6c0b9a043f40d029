"""Analyze one Pallas call for `explain`: its traffic, its memory, and the orders of its grid."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from systolic.analysis import (
    CallOnGrid,
    GridVisits,
    spilled_bytes,
    vmem_estimate,
)
from systolic.chips import Chip
from systolic.explaining.accumulator import summed_over
from systolic.explaining.parts import OperandTraffic
from systolic.explaining.rewriting import can_reorder
from systolic.spec import dtype_bytes

_MAX_REORDERED_AXES = 4  # of a grid whose orders are all tried: 24 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOrder:
    """Another order of a call's grid: the old axis of each new one, and the bytes that its blocks move."""

    order: tuple[int, ...]
    moved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnalysis:
    """One Pallas call: its costs, and possible changes."""

    site: tuple[int, ...]
    name: str
    where: str
    grid: tuple[int, ...] | None
    semantics: tuple[str, ...]
    moved_bytes: int | None  # bytes of all copies of blocks; None if they depend on values
    orders: tuple[GridOrder, ...]  # other legal orders of the grid that move other amounts, the smallest first
    independent: tuple[bool, ...]  # for each axis, True if its steps write different output blocks
    vmem_bytes: int  # an estimate
    vmem_limit_bytes: int
    sets_limit: bool
    single: tuple[int, ...]  # positions of inputs and outputs that have only one buffer
    scratch: tuple[tuple[str, int], ...]  # names and bytes of its buffers in VMEM
    # Axes over which it sums in its output block, if the sum could move to scratch memory.
    sum_axes: tuple[int, ...]
    # How often the function runs it; None: that depends on values. Everything else belongs to its first execution.
    executions: int | None


def call_analysis(call_on_grid: CallOnGrid, chip: Chip) -> CallAnalysis:
    call, estimate = call_on_grid.call, vmem_estimate(call_on_grid.call, chip)
    grid_visits = call_on_grid.known_visits
    return CallAnalysis(
        site=call.site,
        name=call.name,
        where=call.where,
        grid=grid_visits.grid if grid_visits is not None else None,
        semantics=call.semantics,
        moved_bytes=grid_visits.moved_bytes if grid_visits is not None and grid_visits.visits else None,
        orders=_orders(grid_visits)
        if grid_visits is not None and can_reorder(call.equation.params["grid_mapping"])
        else (),
        independent=_independent(grid_visits) if grid_visits is not None else (),
        vmem_bytes=estimate.total_bytes + spilled_bytes(call),
        vmem_limit_bytes=estimate.limit_bytes,
        sets_limit=call.vmem_limit_bytes is not None,
        single=tuple(at for at, operand in enumerate(call.of("input", "output")) if operand.buffers == 1),
        scratch=tuple(
            (buffer.name, buffer.size_bytes)
            for buffer in estimate.buffers
            if buffer.kind == "scratch" and buffer.size_bytes
        ),
        sum_axes=summed_over(call, grid_visits) if grid_visits is not None else (),
        executions=call.executions,
    )


def _orders(grid_visits: GridVisits) -> tuple[GridOrder, ...]:
    """List orders of the grid in which no output block comes back after others, one for each amount of traffic."""
    axes = len(grid_visits.grid)
    if axes > _MAX_REORDERED_AXES or 0 in grid_visits.grid:
        return ()
    seen = {grid_visits.moved_bytes}
    orders = []
    for order in itertools.permutations(range(axes)):
        reordered = grid_visits.reordered(order)
        moved = reordered.moved_bytes
        if moved not in seen and not any(output.comes_back for output in reordered.outputs):
            seen.add(moved)
            orders.append(GridOrder(order=order, moved_bytes=moved))
    return tuple(sorted(orders, key=lambda order: order.moved_bytes))


def _independent(grid_visits: GridVisits) -> tuple[bool, ...]:
    """Return, for each axis, True if no output block is written at two of its indices."""
    shared = [visits.shared_blocks(grid_visits.grid) for visits in grid_visits.outputs]
    return tuple(not any(counts[axis] for counts in shared) for axis in range(len(grid_visits.grid)))


def operand_traffic(call_on_grid: CallOnGrid) -> list[OperandTraffic]:
    operands = []
    for at, operand in enumerate(call_on_grid.call.operands):
        if operand.role not in ("input", "output") or operand.memory != "vmem":
            continue
        visits = call_on_grid.visits_of(at)
        element = dtype_bytes(operand.dtype)
        operands.append(
            OperandTraffic(
                kernel=call_on_grid.call.name,
                operand=operand.name,
                role=operand.role,
                shape=operand.shape,
                dtype=operand.dtype,
                block=operand.block,
                block_bytes=operand.block_elements * element,
                fetches=visits.fetches if visits is not None else None,
                moved_bytes=visits.moved_bytes if visits is not None else None,
                least_bytes=visits.least_bytes if visits is not None else math.prod(operand.shape) * element,
            )
        )
    return operands
