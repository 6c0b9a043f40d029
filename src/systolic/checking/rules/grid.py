"""Rules on what the grid visits: nothing outside, all of the output, each output block in one go, no shared ones."""

from __future__ import annotations

import math

import numpy as np

from systolic.analysis.calls import KernelCall, Operand
from systolic.analysis.visits import GridVisits, Visits
from systolic.checking.finding import Finding, Grade
from systolic.chips import Chip


def grid_findings(call: KernelCall, found: GridVisits, chip: Chip) -> list[Finding]:
    """Every finding of one execution of a call. A grid of no steps is not judged here."""
    if 0 in found.grid:
        return []
    findings = []
    outputs = [at for at, operand in enumerate(call.operands) if operand.role == "output"]
    aliased = {outputs[out] for _, out in call.aliases}
    for at, visits in found.visits.items():
        if 0 in visits.operand.shape:  # there is nothing to be outside of
            continue
        findings += _outside(call, visits)
        if visits.operand.role == "input":
            findings += _unread(call, visits)
            continue
        if at not in aliased:
            findings += _unwritten(call, visits)
        findings += _revisited(call, visits)
        findings += _shared(call, found.grid, visits, chip)
    return findings


def _finding(call: KernelCall, rule: str, grade: Grade, *, value: str, limit: str, fix: str, chip: str = "") -> Finding:
    return Finding(
        rule=rule, grade=grade, value=value, limit=limit, fix=fix, kernel=call.name, where=call.where, chip=chip
    )


def _outside(call: KernelCall, visits: Visits) -> list[Finding]:
    """Blocks that begin outside of the array, and blocks that only end there."""
    operand = visits.operand
    shape, block = np.array(operand.shape), np.array(operand.block)
    begins = np.any((visits.starts < 0) | (visits.starts >= shape), axis=1)
    if begins.any():
        step = int(begins.argmax())
        start = tuple(int(each) for each in visits.starts[step])
        return [
            _finding(
                call,
                "block-outside",
                "error",
                value=f"{operand.name}: the block of step {step} begins at element {start} of {_shape(operand)}, as "
                f"those of {int(begins.sum()):,} of {len(begins):,} steps do",
                limit="a block must begin inside of its array: what is there is read or overwritten otherwise",
                fix="mend the index map, or make the grid smaller (an index map gives blocks, not elements)",
            )
        ]
    over = (visits.starts + block > shape).any(axis=0)
    if not over.any():
        return []
    dimension = int(over.argmax())
    size, tile = operand.shape[dimension], operand.block[dimension]
    does = "writes past the end are dropped" if operand.role == "output" else "the rest is garbage, NaN included"
    return [
        _finding(
            call,
            "edge-block",
            "note",
            value=f"{operand.name}: the last block along dimension {dimension} holds {size % tile or tile} of {tile} "
            f"elements ({size} in blocks of {tile})",
            limit=does,
            fix="mask it where it is summed over: along k both operands; rows and columns of the output need no mask"
            if operand.role == "input"
            else "nothing, if what lands there comes from no sum over garbage",
        )
    ]


def _unread(call: KernelCall, visits: Visits) -> list[Finding]:
    """The end of an input that no block reaches: a size that the block does not divide, rounded down."""
    operand = visits.operand
    ends = visits.starts.max(axis=0) + np.array(operand.block)
    findings = []
    for dimension, (end, size, block) in enumerate(zip(ends, operand.shape, operand.block, strict=True)):
        rest = int(size - end)
        if not 0 < rest < block or int(end) % block:
            continue
        findings.append(
            _finding(
                call,
                "dropped-tail",
                "error",
                value=f"{operand.name}: the last {rest} of {size} elements along dimension {dimension} are read by no "
                f"step: blocks of {block} end at {int(end)}",
                limit="every element counts: a grid of size // block steps drops the rest silently",
                fix=f"use a block that divides {size}, pad it to {int(end) + block}, or take pl.cdiv({size}, {block}) "
                "steps and mask the last",
            )
        )
    return findings


def _unwritten(call: KernelCall, visits: Visits) -> list[Finding]:
    operand = visits.operand
    covered = int(visits.elements(visits.distinct).sum())
    total = int(np.prod(operand.shape, dtype=np.int64))
    if covered >= total:
        return []
    return [
        _finding(
            call,
            "unwritten-output",
            "error",
            value=f"{operand.name}: {total - covered:,} of {total:,} elements of {_shape(operand)} "
            f"({(total - covered) / total:.1%}) are written by no step; {_first_missing(visits)}",
            limit="what no step writes is whatever was in memory",
            fix="make the grid cover the output (pl.cdiv(size, block) steps), or pass it in with input_output_aliases",
        )
    ]


def _first_missing(visits: Visits) -> str:
    """Where the first block lies that is not visited, in elements."""
    operand = visits.operand
    if operand.by_element:
        return "its blocks are given by element"
    counts = [-(-size // block) for size, block in zip(operand.shape, operand.block, strict=True)]
    seen = np.zeros(counts, dtype=bool)
    inside = visits.distinct // np.array(operand.block)
    seen[tuple(np.clip(inside, 0, np.array(counts) - 1).T)] = True
    if seen.all():
        return "the edges of its blocks"
    missing = np.argwhere(~seen)[0] * np.array(operand.block)
    return f"the first is {tuple(int(each) for each in missing)}"


def _revisited(call: KernelCall, visits: Visits) -> list[Finding]:
    fetches, distinct = visits.fetches, len(visits.distinct)
    if fetches == distinct:
        return []
    numbers = visits.numbered()
    changed = np.flatnonzero(visits.changes)
    seen: set[int] = set()
    again = next(int(step) for step in changed if numbers[step] in seen or seen.add(int(numbers[step])))
    first = int(np.flatnonzero(numbers == numbers[again])[0])
    return [
        _finding(
            call,
            "revisited-output",
            "error",
            value=f"{visits.operand.name}: its {distinct:,} blocks are written {fetches:,} times; the block of step "
            f"{first} comes back at step {again}, after others",
            limit="all steps that write one output block must follow each other: a block that comes back is not read "
            "in again, so what was summed up is lost",
            fix="put the axis that is summed over last in the grid",
        )
    ]


def _shared(call: KernelCall, grid: tuple[int, ...], visits: Visits, chip: Chip) -> list[Finding]:
    """Output blocks that several steps of a parallel axis write: two cores would, each its own part of the sum."""
    findings = []
    numbers = visits.numbered()
    blocks = int(numbers.max()) + 1
    ids = np.indices(grid).reshape(len(grid), math.prod(grid))
    for axis, semantics in enumerate(call.semantics[: len(grid)]):
        if semantics not in ("parallel", "core_parallel") or grid[axis] < 2:
            continue
        least, most = np.full(blocks, grid[axis]), np.full(blocks, -1)
        np.minimum.at(least, numbers, ids[axis])
        np.maximum.at(most, numbers, ids[axis])
        shared = int((least != most).sum())
        if not shared:
            continue
        several = chip.cores_per_device > 1
        findings.append(
            _finding(
                call,
                "parallel-revisit",
                "error" if several else "warning",
                value=f"{visits.operand.name}: grid axis {axis} is {semantics}, and {shared:,} of {blocks:,} output "
                f"blocks are written at several of its {grid[axis]} places",
                limit=f"steps of a parallel axis go to different cores ({chip.name} has {chip.cores_per_device} a "
                "device): each would write its own part of the sum over the other's",
                fix=f'make axis {axis} "arbitrary" in dimension_semantics',
                chip=chip.name,
            )
        )
    return findings


def _shape(operand: Operand) -> str:
    return f"{operand.dtype}[{','.join(map(str, operand.shape))}]"
