"""Rules on a kernel's body: memory that is read before anything has written it.

A step of the grid is gone through without numbers: scalars that follow from the step's place are known, of everything
else only where it comes from. What is read from memory that nothing has written becomes a fault where it is used to
make something that is stored: `where(first, 0, acc[...])` is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from systolic.analysis.calls import KernelCall, Operand
from systolic.checking.finding import Finding
from systolic.checking.rules.walking import Memory, StepWalk, Unwritten
from systolic.compiler import written_at


def body_findings(call: KernelCall) -> list[Finding]:
    """Every finding on the body of a call."""
    found: dict[int, tuple[Unwritten, tuple[int, ...]]] = {}
    for step in _first_steps(call):
        for each in _unwritten(call, step):
            found.setdefault(each.operand, (each, step))
    return [_finding(call, each, step) for each, step in found.values()]


def _unwritten(call: KernelCall, step: tuple[int, ...]) -> list[Unwritten]:
    memories = [
        None if operand.memory in ("hbm", "semaphore", "other") else Memory(at, written=_is_written(call, at, step))
        for at, operand in enumerate(call.operands)
    ]
    walk = StepWalk(tuple(step[axis] for axis in call.own_axes), tuple(call.grid[axis] for axis in call.own_axes))
    walk.run(call.body, memories)
    return walk.found


def _is_written(call: KernelCall, at: int, step: tuple[int, ...]) -> bool:
    """Whether an operand's memory holds something when a step begins."""
    operand = call.operands[at]
    if operand.role == "scratch":
        return any(step)  # it stays from step to step, and another step came before
    if operand.role != "output":
        return True
    number = [each for each, one in enumerate(call.operands) if one.role == "output"].index(at)
    if any(out == number for _, out in call.aliases):
        return True
    moving = _moving_axes(call, operand)
    # Its block is a new one where the axes stand at their beginning on which it does not depend.
    return moving is None or any(place for axis, place in enumerate(step) if axis not in moving)


def _first_steps(call: KernelCall) -> Iterator[tuple[int, ...]]:
    """The first step, and others at which an output's block is visited for the first time."""
    start = (0,) * len(call.grid)
    yield start
    axes = {axis for operand in call.of("output") for axis in _moving_axes(call, operand) or ()}
    for axis in sorted(axes):
        length = call.grid[axis]
        if length is None or length > 1:
            yield tuple(1 if each == axis else 0 for each in range(len(call.grid)))


def _moving_axes(call: KernelCall, operand: Operand) -> set[int] | None:
    """The grid axes on which an output's block depends; None where it depends on something else as well."""
    mapping = call.equation.params["grid_mapping"]
    number = call.of("output").index(operand)
    closed = mapping.block_mappings[mapping.num_inputs + number].index_map_jaxpr
    axes: dict[Any, set[int]] = {}
    unknown = len(call.grid)  # stands for what is prefetched
    for at, variable in enumerate(closed.jaxpr.invars):
        axes[variable] = {min(at, unknown)}
    for equation in closed.jaxpr.eqns:
        of = [axes.get(atom, set()) for atom in equation.invars if not hasattr(atom, "val")]
        axes.update(dict.fromkeys(equation.outvars, set[int]().union(*of)))
    results = [axes.get(atom, set()) for atom in closed.jaxpr.outvars if not hasattr(atom, "val")]
    moving = set[int]().union(*results)
    return None if unknown in moving else moving


def _finding(call: KernelCall, found: Unwritten, step: Sequence[int]) -> Finding:
    operand = call.operands[found.operand]
    is_scratch = operand.role == "scratch"
    moving = None if is_scratch else _moving_axes(call, operand)
    own = call.own_axes
    still = [at for at, axis in enumerate(own) if call.grid[axis] != 1 and axis not in (moving or ())]
    axis = still[-1] if still else len(own) - 1
    first = f"under @pl.when(pl.program_id({axis}) == 0)" if own else "at the beginning"
    return Finding(
        rule="uninitialised",
        grade="error",
        value=f"{operand.name}: read at step {tuple(step)} before anything is written to it",
        limit="scratch memory starts with anything, NaN included"
        if is_scratch
        else "an output block starts with anything, NaN included: it is not copied in",
        fix=f"clear it first: {operand.name}[...] = jnp.zeros_like({operand.name}) {first}",
        kernel=call.name,
        where=written_at(found.equation) or call.where,
    )
