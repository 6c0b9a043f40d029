"""Choose smaller arguments for a run on the CPU, with which a kernel keeps its character.

A size S that the kernel cuts into blocks of P becomes S' = q·P + S mod P: a tail stays the same tail, and every axis of
the grid that had several steps has two or three. Equal sizes change together, because they may be the same size.
Tracing the function shows whether it accepts the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.analysis import KernelCall, first_executions, kernel_calls, op_count
from systolic.checking.inputs import are_groups_of, regrouped
from systolic.compat.jaxprs import equations
from systolic.compiler import Missing, PallasOperands
from systolic.schedule import LANES

Trace = Callable[[Sequence[Any]], Any]  # flat arguments, as shapes, to a closed jaxpr

# Steps that an axis with several steps keeps, in the order of trying; the first is the best: with three steps, the
# first, the middle and the last one differ.
_STEPS = (3, 2, 4, 8, 16)
_SHARES = (2, 4, 8, 16)  # divisors of a size, for kernels that choose their own blocks
_WHOLE = 256  # the period of a size that is not cut: the side of the largest matrix unit
_LARGEST_KEPT = 512  # smaller whole sizes stay: the depth of a head, a vocabulary of vectors
_PATIENCE = 5.0  # budgets that may be spent before an axis of the grid is dropped

# Times in interpret mode on one core of a CPU: the largest of several measurements, with products of both kinds of
# operands in blocks of 128² to 1024². Used only to choose sizes.
_STEP_S = 2e-3
_ACCESS_S = 3e-4
_ELEMENT_S = 4e-9
_FLOP_S = 4e-11


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledArguments:
    """Arguments to run with.

    Attributes:
      leaves: the flat arguments, as shapes.
      values: their values; None: only the shape is known.
      calls: the Pallas calls of the function with these arguments.
      changes: the sizes that changed: "4096 → 1024".
      seconds: estimated duration of one run.
      keeps_grid: True if every axis of the grids with several steps still has several.
    """

    leaves: tuple[Any, ...]
    values: tuple[np.ndarray | None, ...]
    calls: tuple[KernelCall, ...]
    changes: tuple[str, ...]
    seconds: float
    keeps_grid: bool = True


def scaled_arguments(
    closed_jaxpr_of: Trace,
    leaves: Sequence[Any],
    values: Sequence[np.ndarray | None] = (),
    *,
    budget_s: float = 0.8,
) -> ScaledArguments:
    """Find the smallest arguments that keep the kernels' character; the given ones if these are small enough.

    Args:
      closed_jaxpr_of: traces the function for flat arguments; may raise.
      leaves: the flat arguments, as shapes.
      values: the values of the arguments; None if only a shape is known. Integers that sum to a size are sizes of
        groups and change with it; with other integers nothing changes, because they may be indices.
      budget_s: seconds that one run may take.
    """
    jaxpr = closed_jaxpr_of(leaves)
    all_values = tuple(values) or (None,) * len(leaves)
    search = _Search(closed_jaxpr_of, tuple(leaves), all_values, tuple(kernel_calls(jaxpr)))
    unscaled = search.made(search.leaves, all_values, jaxpr, {})
    if unscaled.seconds <= budget_s:
        return unscaled
    candidates = [unscaled]
    for sizes in search.together():
        if (candidate := search.tried(sizes)) is not None:
            if candidate.keeps_grid and candidate.seconds <= budget_s:
                return candidate
            candidates.append(candidate)
    candidates += search.one_by_one(budget_s)
    cheap = [candidate for candidate in candidates if candidate.seconds <= budget_s]
    # A long run shows more than a run whose grid has lost an axis, up to a limit.
    with_whole_grid = [
        candidate for candidate in candidates if candidate.keeps_grid and candidate.seconds <= _PATIENCE * budget_s
    ]
    return min(with_whole_grid or cheap or candidates, key=lambda candidate: candidate.seconds)


@dataclass(frozen=True, slots=True)
class _Search:
    trace: Trace
    leaves: tuple[Any, ...]
    values: tuple[np.ndarray | None, ...]
    calls: tuple[KernelCall, ...]

    def together(self) -> Iterator[dict[int, int]]:
        """Yield smaller sizes, all at once; the best first."""
        sizes = self._sizes()
        for steps in _STEPS:
            yield {size: self._shrunk(size, steps) for size in sizes}
        for share in _SHARES:
            yield {size: _share(size, share) for size in sizes}

    def one_by_one(self, budget_s: float) -> list[ScaledArguments]:
        """Shrink sizes one after the other, the largest first, if not all of them can change."""
        results: list[ScaledArguments] = []
        chosen: dict[int, int] = {}
        for size in sorted(self._sizes(), reverse=True):
            for smaller in (
                *(self._shrunk(size, steps) for steps in _STEPS),
                *(_share(size, share) for share in _SHARES),
            ):
                result = self.tried({**chosen, size: smaller}) if smaller < size else None
                if result is not None and result.keeps_grid:
                    results.append(result)
                    chosen[size] = smaller
                    break
            if results and results[-1].seconds <= budget_s:
                break
        return results

    def tried(self, sizes: Mapping[int, int]) -> ScaledArguments | None:
        """Make arguments with other sizes; None if the function does not accept them."""
        import jax

        changes = {size: smaller for size, smaller in sizes.items() if smaller != size and self._may(size, smaller)}
        if not changes:
            return None
        leaves = tuple(
            leaf
            if value is not None
            else jax.ShapeDtypeStruct(tuple(changes.get(size, size) for size in leaf.shape), leaf.dtype)
            for leaf, value in zip(self.leaves, self.values, strict=True)
        )
        values = tuple(regrouped(value, changes) for value in self.values)
        try:
            jaxpr = self.trace(leaves)
        except Exception:  # noqa: BLE001 -- the user's function may refuse a size with any exception
            return None
        return self.made(leaves, values, jaxpr, changes)

    def made(
        self,
        leaves: tuple[Any, ...],
        values: tuple[np.ndarray | None, ...],
        jaxpr: Any,
        changes: Mapping[int, int],
    ) -> ScaledArguments:
        """Make the record for these arguments."""
        calls = tuple(kernel_calls(jaxpr))
        grids = _grids(jaxpr, values, calls)
        return ScaledArguments(
            leaves=leaves,
            values=values,
            calls=calls,
            changes=tuple(f"{size} → {smaller}" for size, smaller in sorted(changes.items(), reverse=True)),
            seconds=sum(run_seconds(call, grid) for call, grid in zip(calls, grids, strict=True)),
            keeps_grid=_same_character(self.calls, calls),
        )

    def _sizes(self) -> list[int]:
        shapes = [leaf.shape for leaf, value in zip(self.leaves, self.values, strict=True) if value is None]
        sizes = {size for shape in shapes for size in shape if size > 1}
        integers = [value for value in self.values if value is not None and value.dtype.kind in "iu" and value.any()]
        if not all(any(are_groups_of(value, size) for size in sizes) for value in integers):
            return []  # lengths, or numbers of rows, blocks or pages: they would have to change as well
        return sorted(sizes, reverse=True)

    def _may(self, size: int, smaller: int) -> bool:
        """True if no array with values keeps a size from changing."""
        for value in self.values:
            if value is None:
                continue
            if size in value.shape or (are_groups_of(value, size) and smaller < np.count_nonzero(value)):
                return False
        return True

    def _blocks(self, size: int) -> set[int]:
        """List the blocks into which operands are cut along dimensions of a size."""
        return {
            block
            for call in self.calls
            for operand in call.of("input", "output")
            for length, block in zip(operand.shape, operand.block, strict=True)
            if length == size and operand.is_cut and block < size
        }

    def _shrunk(self, size: int, steps: int) -> int:
        period = self._period(size)
        if period is None:
            return size
        rest = size % period
        periods = min(-(-size // period), steps) - bool(rest)
        return min(max(periods, 1) * period + rest, size)

    def _period(self, size: int) -> int | None:
        """Find a common multiple of the blocks along a size; None: the size stays."""
        cut = self._blocks(size)
        seen = [operand for call in self.calls for operand in call.of("input", "output") if size in operand.shape]
        if any(operand.memory == "hbm" for operand in seen):
            # The kernel makes its own copies: the buffers that it copies to show the sizes of the pieces.
            cut |= {length for call in self.calls for length in _buffer_sizes(call) if LANES <= length < size}
        if cut:
            together = math.lcm(*cut)
            return together if together <= size else max(cut)
        if seen:
            return _WHOLE if size > _LARGEST_KEPT else None
        # No operand has it: the function reshapes, or computes something around the kernel.
        power = min(size & -size, LANES)
        return power if size >= 2 * power else None


def run_seconds(call: KernelCall, grid: Sequence[int]) -> float:
    """Estimate how long one run of a call in interpret mode takes."""
    arrays = call.of("input", "output")
    blocks = sum(operand.block_elements for operand in arrays if operand.is_cut)
    count = op_count(call.body)
    a_step = _STEP_S + count.accesses * _ACCESS_S + blocks * _ELEMENT_S + count.flops * _FLOP_S
    return math.prod(grid) * a_step + sum(math.prod(operand.shape) for operand in arrays) * _ELEMENT_S


def _grids(jaxpr: Any, values: Sequence[np.ndarray | None], calls: Sequence[KernelCall]) -> list[list[int]]:
    """List the grids; an axis whose length depends on unknown values has one step for each block of something."""
    if all(call.steps is not None for call in calls):
        return [[size for size in call.grid if size is not None] for call in calls]
    executions = first_executions(jaxpr, values)
    return [_grid(call, executions.get(call.site)) for call in calls]


def _grid(call: KernelCall, execution: PallasOperands | None) -> list[int]:
    ratios = [
        -(-length // block)
        for operand in call.of("input", "output")
        if operand.is_cut
        for length, block in zip(operand.shape, operand.block, strict=True)
    ]
    lengths = iter(execution.operands if execution is not None else ())  # lengths of the grid come first
    grid = []
    for size in call.grid:
        length = next(lengths).get() if size is None and execution is not None else size
        grid.append(max([1, *ratios]) if length is None or isinstance(length, Missing) else int(length))
    return grid


def _same_character(before: Sequence[KernelCall], after: Sequence[KernelCall]) -> bool:
    return [_character(call) for call in before] == [_character(call) for call in after]


def _character(call: KernelCall) -> tuple[Any, ...]:
    """Return the facts that must not change: axes with several steps, dimensions with several blocks, and tails."""
    axes = [None if size is None else min(size, 2) for size in call.grid]
    dimensions = [
        (min(-(-length // block), 2), length % block != 0) if block else (0, False)
        for operand in call.of("input", "output")
        for length, block in zip(operand.shape, operand.block, strict=True)
    ]
    return axes, dimensions


def _buffer_sizes(call: KernelCall) -> Iterator[int]:
    for operand in call.of("scratch"):
        yield from operand.shape
    for equation in equations(call.body):
        if equation.primitive.name == "run_scoped":
            for variable in equation.params["jaxpr"].invars:
                yield from getattr(variable.aval, "shape", ())


def _share(size: int, share: int) -> int:
    """Shrink a size to about a share of it, which fills its last register, or not, as the size does."""
    if size <= _LARGEST_KEPT:
        return size
    return max(size // share // LANES, 1) * LANES + size % LANES
