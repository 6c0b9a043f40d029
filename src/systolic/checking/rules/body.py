"""Rules on a kernel's body: memory that is read before anything has written it.

A step of the grid is followed without numbers; see `analysis.StepWalk`. A read of unwritten memory is a fault only if a
stored value depends on it: `where(first, 0, acc[...])` is not a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from systolic.analysis import PREFETCHED, KernelCall, Memory, StepWalk, Unwritten, index_axes
from systolic.checking.finding import Finding, call_finding
from systolic.compiler import written_at


def body_findings(call: KernelCall) -> list[Finding]:
    """Return the findings on the body of a call."""
    first_uses: dict[int, tuple[Unwritten, tuple[int, ...]]] = {}
    for step in _first_steps(call):
        for use in _unwritten(call, step):
            first_uses.setdefault(use.operand, (use, step))
    return [_finding(call, use, step) for use, step in first_uses.values()]


def _unwritten(call: KernelCall, step: tuple[int, ...]) -> list[Unwritten]:
    memories = [
        None if operand.memory in ("hbm", "semaphore", "other") else Memory(at, written=_is_written(call, at, step))
        for at, operand in enumerate(call.operands)
    ]
    walk = StepWalk(tuple(step[axis] for axis in call.own_axes), tuple(call.grid[axis] for axis in call.own_axes))
    walk.run(call.body, memories)
    return walk.unwritten_uses


def _is_written(call: KernelCall, at: int, step: tuple[int, ...]) -> bool:
    """True if an operand's memory has been written when a step begins."""
    operand = call.operands[at]
    if operand.role == "scratch":
        return any(step)  # it stays from step to step, and another step came before
    if operand.role != "output":
        return True
    number = [number for number, operand in enumerate(call.operands) if operand.role == "output"].index(at)
    if any(out == number for _, out in call.aliases):
        return True
    moving = index_axes(call, operand)
    # The block is new while the axes that do not move it are at their first step.
    return PREFETCHED in moving or any(place for axis, place in enumerate(step) if axis not in moving)


def _first_steps(call: KernelCall) -> Iterator[tuple[int, ...]]:
    """Yield the first step, and steps at which a block of an output is visited for the first time."""
    yield (0,) * len(call.grid)
    outputs = (index_axes(call, operand) for operand in call.of("output"))
    for axis in sorted({axis for axes in outputs if PREFETCHED not in axes for axis in axes}):
        length = call.grid[axis]
        if length is None or length > 1:
            yield tuple(1 if other == axis else 0 for other in range(len(call.grid)))


def _finding(call: KernelCall, use: Unwritten, step: Sequence[int]) -> Finding:
    operand = call.operands[use.operand]
    is_scratch = operand.role == "scratch"
    moving = () if is_scratch else index_axes(call, operand)
    axes = call.own_axes
    still = [at for at, axis in enumerate(axes) if call.grid[axis] != 1 and axis not in moving]
    axis = still[-1] if still else len(axes) - 1
    first = f"under @pl.when(pl.program_id({axis}) == 0)" if axes else "at the beginning"
    return call_finding(
        call,
        "uninitialised",
        value=f"{operand.name}: read at step {tuple(step)} before anything is written to it",
        limit="scratch memory starts with anything, NaN included"
        if is_scratch
        else "an output block starts with anything, NaN included: it is not copied in",
        fix=f"clear it first: {operand.name}[...] = jnp.zeros_like({operand.name}) {first}",
        where=written_at(use.equation),
    )
