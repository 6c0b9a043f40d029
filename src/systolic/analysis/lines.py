"""Count the work of each line of a kernel's source: products, elementwise operations, loads, stores, executions.

The counts come from the traced kernel. A branch (`pl.when`) counts for the steps that take it: predicates that depend
only on grid indices are evaluated for all steps at once; the counts of other branches are unknown.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.analysis.body import dot_flops, elementwise_results, times_inside
from systolic.analysis.calls import KernelCall, executions
from systolic.compat.jaxpr_values import calls_inside, evaluate
from systolic.compat.jaxprs import CALLS, equation_sites, functions_inside, outside_of_kernels
from systolic.compiler import written_at
from systolic.spec import dtype_bytes
from systolic.support.ranges import Amount, Count

# Operations that move or rename values, and compute nothing.
_FREE = {"get", "swap", "addupdate", "broadcast_in_dim", "reshape", "squeeze", "program_id", "num_programs", "iota"}
_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
_MAX_STEPS = 1_000_000

Taken = np.ndarray | None  # bool[steps]: which steps run something; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOps:
    """The work of one line of the kernel's source in one execution, read from the traced program."""

    kernel: str
    where: str  # "file.py:12 in kernel"
    text: str  # the line; "" if the file is missing
    operations: str  # "dot_general, add"
    executions: Count | None  # over the whole grid; None if it depends on values
    matrix_flops: Amount  # of one execution
    vector_elements: Count  # elements that elementwise operations compute in one execution
    loaded_bytes: Count  # from VMEM, in one execution
    stored_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOps:
    """The source lines of a kernel, and its matrix operations over the whole grid; None if unknown."""

    lines: tuple[LineOps, ...]
    flops: float | None


@dataclass(slots=True)
class _Line:
    operations: dict[str, None] = field(default_factory=dict)
    executions: int | None = 0
    flops: float = 0.0
    elements: int = 0
    loaded: int = 0
    stored: int = 0
    total_flops: float = 0.0


def kernel_ops(call: KernelCall, grid: Sequence[int] | None) -> KernelOps:
    """Count the work of a call's body, line by line; `grid` has the steps along each axis, None if unknown."""
    steps = math.prod(grid) if grid is not None else None
    is_followed = grid is not None and steps is not None and steps <= _MAX_STEPS
    walk = _Walk(call, grid if is_followed else None)
    everywhere = np.ones(steps, dtype=bool) if is_followed and steps is not None else None
    walk.run(call.body, [], everywhere, 1)
    lines = tuple(
        LineOps(
            kernel=call.name,
            where=where,
            text=_source(where),
            operations=", ".join(line.operations),
            executions=line.executions,
            matrix_flops=line.flops,
            vector_elements=line.elements,
            loaded_bytes=line.loaded,
            stored_bytes=line.stored,
        )
        for where, line in walk.lines.items()
        if line.flops or line.elements or line.loaded or line.stored
    )
    flops = sum(line.total_flops for line in walk.lines.values())
    return KernelOps(lines=lines, flops=None if walk.uncounted else flops)


def flops_outside_kernels(jaxpr: Any) -> float | None:
    """Count the operations of a traced function's products outside its kernels, on all devices together.

    Returns:
      The operations, counted for each iteration of loops; None if a product runs an unknown number of times or is a
      convolution.
    """
    total = 0.0
    for site in equation_sites(jaxpr, outside_of_kernels):
        name = site.equation.primitive.name
        if name not in _PRODUCTS:
            continue
        times = executions(site)
        if times is None or name != "dot_general":
            return None
        total += times * math.prod(map(_devices, site.callers)) * dot_flops(site.equation)
    return total


def _devices(caller: Any) -> int:
    """Count the devices that each run the body of a `shard_map`, with their parts of its operands."""
    if caller.primitive.name != "shard_map":
        return 1
    return math.prod(caller.params["mesh"].shape[axis] for axis in caller.params["newly_manual_axes"])


class _Walk:
    def __init__(self, call: KernelCall, grid: Sequence[int] | None) -> None:
        self.lines: dict[str, _Line] = {}
        self.uncounted = False  # a product runs an unknown number of times
        self._call = call
        self._grid = grid
        self._ids = None if grid is None else np.indices(grid, dtype=np.int32).reshape(len(grid), math.prod(grid))

    def run(self, function: Any, inputs: Sequence[Any], taken: Taken, times: int | None) -> list[Any]:
        """Walk a jaxpr that each step of `taken` executes `times` times; return the results that are known."""

        def step(equation: Any, operands: list[Any]) -> Sequence[Any]:
            return self._equation(equation, operands, taken, times)

        return evaluate(function, inputs, step)

    def _equation(self, equation: Any, operands: list[Any], taken: Taken, times: int | None) -> Sequence[Any]:
        name = equation.primitive.name
        functions = functions_inside(equation)
        if not functions:
            self._count(equation, taken, times)
            return self._scalars(equation, operands)
        if name in ("scan", "while"):  # carried values change
            for function in functions:
                self.run(function, [], taken, times_inside(equation, times))
            return ()
        results: list[Any] = []
        for number, (function, inputs) in enumerate(calls_inside(equation, operands)):
            here = _of_branch(taken, operands[0], number) if name == "cond" else taken
            results = self.run(function, inputs, here, times)
        return results if name in CALLS else ()

    def _scalars(self, equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        """Compute results that are scalars, for all steps at once."""
        is_scalar = equation.outvars and getattr(equation.outvars[0].aval, "shape", None) == ()
        if self._ids is None or self._grid is None or not is_scalar:
            return ()
        name, steps = equation.primitive.name, self._ids.shape[1]
        if name in ("program_id", "num_programs"):
            axis = self._call.own_axes[equation.params["axis"]]
            return [self._ids[axis] if name == "program_id" else np.full(steps, self._grid[axis], np.int32)]
        avals = [atom.aval for atom in equation.invars]
        if any(value is None for value in operands) or any(getattr(aval, "shape", None) != () for aval in avals):
            return ()
        typed = zip(operands, avals, strict=True)
        spread = [np.broadcast_to(np.asarray(value, aval.dtype), steps) for value, aval in typed]
        return elementwise_results(equation, spread) or ()

    def _count(self, equation: Any, taken: Taken, times: int | None) -> None:
        made = getattr(equation.outvars[0].aval, "shape", ()) if equation.outvars else ()
        name = equation.primitive.name
        size = math.prod(made)
        if not made and name not in ("swap", "addupdate"):
            return
        line = self.lines.setdefault(written_at(equation) or self._call.where, _Line())
        runs = None if taken is None or times is None else int(taken.sum()) * times
        line.operations[name] = None
        line.executions = None if runs is None or line.executions is None else max(line.executions, runs)
        if name == "dot_general":
            flops = dot_flops(equation)
            line.flops += flops
            line.total_flops += flops * (runs or 0)
            self.uncounted |= runs is None
        elif name == "get":
            line.loaded += size * dtype_bytes(str(equation.outvars[0].aval.dtype))
        elif name in ("swap", "addupdate"):
            value = equation.invars[1].aval
            line.stored += math.prod(value.shape) * dtype_bytes(str(value.dtype))
        elif name not in _FREE:
            line.elements += size


def _of_branch(taken: Taken, index: Any, number: int) -> Taken:
    return None if taken is None or index is None else taken & (np.asarray(index) == number)


def _source(where: str) -> str:
    place, _, _ = where.partition(" in ")
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdecimal() else ""
