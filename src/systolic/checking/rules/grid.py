"""Rules on the blocks that the grid visits: inside the array, all of the output, each block in one go, none shared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from systolic.analysis import GridVisits, KernelCall, Operand, Visits
from systolic.checking.finding import Finding, call_finding
from systolic.chips import Chip


def grid_findings(call: KernelCall, grid_visits: GridVisits, chip: Chip) -> Iterator[Finding]:
    """Yield the findings on one execution of a call. A grid without steps is not judged here."""
    if 0 in grid_visits.grid:
        return
    outputs = [at for at, operand in enumerate(call.operands) if operand.role == "output"]
    aliased = {outputs[out] for _, out in call.aliases}
    # Memory that a launcher requests as an output and then discards: each core may have its own.
    unused = {outputs[at] for at in call.unused}
    for at, visits in grid_visits.visits.items():
        if 0 in visits.operand.shape:  # no block can be outside
            continue
        yield from _outside(call, visits)
        if visits.operand.role == "input":
            yield from _unread(call, visits)
            continue
        if at not in aliased and at not in unused:
            yield from _unwritten(call, visits)
        yield from _revisited(call, visits)
        if at not in unused:
            yield from _shared(call, grid_visits.grid, visits, chip)


def _outside(call: KernelCall, visits: Visits) -> Iterator[Finding]:
    """Yield blocks that begin outside the array, and blocks that only end there."""
    operand = visits.operand
    shape, block = np.array(operand.shape), np.array(operand.block)
    begins = np.any((visits.starts < 0) | (visits.starts >= shape), axis=1)
    over = (visits.starts + block > shape).any(axis=0)
    if begins.any():
        step = int(begins.argmax())
        start = tuple(int(start) for start in visits.starts[step])
        yield call_finding(
            call,
            "block-outside",
            value=f"{operand.name}: the block of step {step} begins at element {start} of {operand.described}; "
            f"{int(begins.sum()):,} of {len(begins):,} steps have such blocks",
            limit="a block must begin inside its array, or other memory is read or overwritten",
            fix="mend the index map, or make the grid smaller (an index map gives blocks, not elements)",
        )
    elif over.any():
        dimension = int(over.argmax())
        size, tile = operand.shape[dimension], operand.block[dimension]
        yield call_finding(
            call,
            "edge-block",
            "note",
            value=f"{operand.name}: the last block along dimension {dimension} holds {size % tile or tile} of {tile} "
            f"elements ({size} in blocks of {tile})",
            limit="writes past the end are dropped"
            if operand.role == "output"
            else "the rest is garbage, NaN included",
            fix="mask it where it is summed over: along k both operands; rows and columns of the output need no mask"
            if operand.role == "input"
            else "nothing, if what lands there comes from no sum over garbage",
        )


def _unread(call: KernelCall, visits: Visits) -> Iterator[Finding]:
    """Yield ends of an input that no block reaches: sizes that the block does not divide, rounded down."""
    operand = visits.operand
    ends = visits.starts.max(axis=0) + np.array(operand.block)
    for dimension, (end, size, block) in enumerate(zip(ends, operand.shape, operand.block, strict=True)):
        rest = int(size - end)
        if 0 < rest < block and not int(end) % block:
            yield call_finding(
                call,
                "dropped-tail",
                value=f"{operand.name}: the last {rest} of {size} elements along dimension {dimension} are read by no "
                f"step: blocks of {block} end at {int(end)}",
                limit="every element counts: a grid of size // block steps drops the rest silently",
                fix=f"use a block that divides {size}, pad it to {int(end) + block}, or take pl.cdiv({size}, {block}) "
                "steps and mask the last",
            )


def _unwritten(call: KernelCall, visits: Visits) -> Iterator[Finding]:
    operand = visits.operand
    covered = int(visits.elements(visits.distinct).sum())
    total = int(np.prod(operand.shape, dtype=np.int64))
    if covered < total:
        yield call_finding(
            call,
            "unwritten-output",
            value=f"{operand.name}: {total - covered:,} of {total:,} elements of {operand.described} "
            f"({(total - covered) / total:.1%}) are written by no step; {_first_missing(visits)}",
            limit="elements that no step writes hold whatever was in memory",
            fix="make the grid cover the output (pl.cdiv(size, block) steps), or pass it in with input_output_aliases",
        )


def _first_missing(visits: Visits) -> str:
    """Return the position of the first block that is not visited, in elements."""
    operand: Operand = visits.operand
    if operand.by_element:
        return "its blocks are given by element"
    counts = [-(-size // block) for size, block in zip(operand.shape, operand.block, strict=True)]
    seen = np.zeros(counts, dtype=bool)
    inside = visits.distinct // np.array(operand.block)
    seen[tuple(np.clip(inside, 0, np.array(counts) - 1).T)] = True
    if seen.all():
        return "the edges of its blocks"
    missing = np.argwhere(~seen)[0] * np.array(operand.block)
    return f"the first is {tuple(int(index) for index in missing)}"


def _revisited(call: KernelCall, visits: Visits) -> Iterator[Finding]:
    if not visits.comes_back:
        return
    numbers = visits.numbered()
    seen: set[int] = set()
    changed = np.flatnonzero(visits.changes)
    again = next(int(step) for step in changed if numbers[step] in seen or seen.add(int(numbers[step])))
    first = int(np.flatnonzero(numbers == numbers[again])[0])
    yield call_finding(
        call,
        "revisited-output",
        value=f"{visits.operand.name}: its {len(visits.distinct):,} blocks are written {visits.fetches:,} times; the "
        f"block of step {first} comes back at step {again}, after others",
        limit="all steps that write one output block must follow each other: a block that comes back is not read "
        "in again, so its earlier sums are lost",
        fix="put the axis that is summed over last in the grid",
    )


def _shared(call: KernelCall, grid: tuple[int, ...], visits: Visits, chip: Chip) -> Iterator[Finding]:
    """Yield output blocks that several steps of a parallel axis write: two cores would overwrite each other's sums."""
    parallel = [
        axis
        for axis, axis_semantics in enumerate(call.semantics[: len(grid)])
        if axis_semantics in ("parallel", "core_parallel")
    ]
    if not parallel:
        return
    blocks, shared = len(visits.distinct), visits.shared_blocks(grid)
    for axis in parallel:
        if shared[axis]:
            yield call_finding(
                call,
                "parallel-revisit",
                "error" if chip.cores_per_device > 1 else "warning",
                value=f"{visits.operand.name}: grid axis {axis} is {call.semantics[axis]}, and {shared[axis]:,} of "
                f"{blocks:,} output blocks are written at several of its {grid[axis]} places",
                limit=f"steps of a parallel axis go to different cores ({chip.name} has {chip.cores_per_device} a "
                "device): each would write its own part of the sum over the other's",
                fix=f'make axis {axis} "arbitrary" in dimension_semantics',
                chip=chip.name,
            )
