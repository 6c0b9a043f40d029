"""What each line of a kernel's source asks for: products, elementwise work, loads and stores, and how often it runs.

The counts come from the traced kernel. A branch (`pl.when`) counts for the steps that take it: predicates that follow
from grid indices are evaluated for every step at once; how often other branches are taken is not known.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.analysis.body import dot_flops, elementwise_results, loop_iterations
from systolic.analysis.calls import KernelCall
from systolic.compiler import inner_jaxprs, written_at
from systolic.spec import dtype_bytes
from systolic.support.ranges import Amount, Count

# Operations that move or rename values, and compute none.
_FREE = {"get", "swap", "addupdate", "broadcast_in_dim", "reshape", "squeeze", "program_id", "num_programs", "iota"}
_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
_MOST_STEPS = 1_000_000

Taken = np.ndarray | None  # bool[steps]: which steps run something; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOps:
    """What one line of the kernel's source asks for in one execution, by the traced program."""

    kernel: str
    where: str  # "file.py:12 in kernel"
    text: str  # the line itself; "" where the file is not there
    operations: str  # "dot_general, add"
    executions: Count | None  # over the whole grid; None where it depends on values
    matrix_flops: Amount  # of one execution
    vector_elements: Count  # elements that elementwise operations compute in one execution
    loaded_bytes: Count  # from VMEM, in one execution
    stored_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOps:
    """The lines of a kernel, and its matrix operations over the whole grid; None where they are not known."""

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
    """Counts what the body of a call asks for, line by line.

    Args:
      call: the call.
      grid: its steps along each axis; None if they are not known.
    """
    steps = math.prod(grid) if grid is not None else None
    known = grid is not None and steps is not None and steps <= _MOST_STEPS
    walk = _Walk(call, grid if known else None)
    everywhere = np.ones(steps, dtype=bool) if known and steps is not None else None
    walk.run(call.body, {}, everywhere, 1)
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


def flops_outside_kernels(jaxpr: Any, iterations: int | None = 1) -> float | None:
    """Counts the operations of a traced function's products outside its kernels, on all devices together.

    Returns:
      The operations, in loops as often as these run; None where a product runs an unknown number of times, or is a
      convolution.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "pallas_call":
            continue
        if name in _PRODUCTS:
            if iterations is None or name != "dot_general":
                return None
            total += iterations * dot_flops(equation)
            continue
        inside = None if name == "cond" else loop_iterations(equation, iterations)
        if name == "shard_map" and inside is not None:  # its body is what each device does with its parts
            mesh = equation.params["mesh"]
            inside *= math.prod(mesh.shape[axis] for axis in equation.params["newly_manual_axes"])
        for inner in inner_jaxprs(equation.params):
            found = flops_outside_kernels(inner.jaxpr, inside)
            if found is None:
                return None
            total += found
    return total


class _Walk:
    def __init__(self, call: KernelCall, grid: Sequence[int] | None) -> None:
        self.lines: dict[str, _Line] = {}
        self.uncounted = False  # a product runs an unknown number of times
        self._call = call
        self._grid = grid
        self._ids = None if grid is None else np.indices(grid, dtype=np.int32).reshape(len(grid), math.prod(grid))

    def run(self, jaxpr: Any, values: dict[Any, np.ndarray], taken: Taken, iterations: int | None) -> list[Any]:
        """Goes through a jaxpr that the steps in `taken` execute `iterations` times each; returns its known results."""
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if name == "cond":
                self._cond(equation, values, taken, iterations)
            elif name in ("scan", "while"):
                for inner in inner_jaxprs(equation.params):
                    self.run(inner.jaxpr, {}, taken, loop_iterations(equation, iterations))
            elif name == "run_scoped":  # its buffers are its arguments, and what it uses from outside its constants
                inside = equation.params["jaxpr"]
                handed = zip(inside.constvars, (self._read(atom, values) for atom in equation.invars), strict=True)
                self.run(inside, {name: value for name, value in handed if value is not None}, taken, iterations)
            elif inner := list(inner_jaxprs(equation.params)):
                self._called(equation, inner[0], values, taken, iterations)
            else:
                self._count(equation, taken, iterations)
                self._evaluate(equation, values)
        return [self._read(atom, values) for atom in jaxpr.outvars]

    # ---- scalars, for all steps at once ----

    def _read(self, atom: Any, values: dict[Any, np.ndarray]) -> Any:
        return atom.val if hasattr(atom, "val") else values.get(atom)

    def _evaluate(self, equation: Any, values: dict[Any, np.ndarray]) -> None:
        scalar = equation.outvars and getattr(equation.outvars[0].aval, "shape", None) == ()
        if self._ids is None or self._grid is None or not scalar:
            return
        name, steps = equation.primitive.name, self._ids.shape[1]
        if name == "program_id":
            values[equation.outvars[0]] = self._ids[self._call.own_axes[equation.params["axis"]]]
            return
        if name == "num_programs":
            size = self._grid[self._call.own_axes[equation.params["axis"]]]
            values[equation.outvars[0]] = np.full(steps, size, np.int32)
            return
        inputs = [self._read(atom, values) for atom in equation.invars]
        if any(value is None for value in inputs):
            return
        if any(getattr(atom.aval, "shape", None) != () for atom in equation.invars):
            return
        typed = zip(inputs, equation.invars, strict=True)
        spread = [np.broadcast_to(np.asarray(value, atom.aval.dtype), steps) for value, atom in typed]
        values.update(zip(equation.outvars, elementwise_results(equation, spread) or (), strict=False))

    # ---- control flow ----

    def _cond(self, equation: Any, values: dict[Any, np.ndarray], taken: Taken, iterations: int | None) -> None:
        index = self._read(equation.invars[0], values)
        for number, branch in enumerate(equation.params["branches"]):
            known = taken is not None and index is not None
            here = taken & (np.asarray(index) == number) if known and taken is not None else None
            self.run(branch.jaxpr, self._arguments(branch, equation.invars[1:], values), here, iterations)

    def _called(
        self, equation: Any, inner: Any, values: dict[Any, np.ndarray], taken: Taken, iterations: int | None
    ) -> None:
        results = self.run(inner.jaxpr, self._arguments(inner, equation.invars, values), taken, iterations)
        if len(results) == len(equation.outvars):
            pairs = zip(equation.outvars, results, strict=True)
            values.update((variable, value) for variable, value in pairs if value is not None)

    def _arguments(self, closed: Any, atoms: Sequence[Any], values: dict[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        if len(closed.jaxpr.invars) != len(atoms):
            return {}
        found = zip(closed.jaxpr.invars, (self._read(atom, values) for atom in atoms), strict=True)
        return {variable: value for variable, value in found if value is not None}

    # ---- counting ----

    def _count(self, equation: Any, taken: Taken, iterations: int | None) -> None:
        made = getattr(equation.outvars[0].aval, "shape", ()) if equation.outvars else ()
        name = equation.primitive.name
        size = math.prod(made)
        if not made and name not in ("swap", "addupdate"):
            return
        line = self.lines.setdefault(written_at(equation) or self._call.where, _Line())
        times = None if taken is None or iterations is None else int(taken.sum()) * iterations
        line.operations[name] = None
        line.executions = None if times is None or line.executions is None else max(line.executions, times)
        if name == "dot_general":
            flops = dot_flops(equation)
            line.flops += flops
            line.total_flops += flops * (times or 0)
            self.uncounted |= times is None
        elif name == "get":
            line.loaded += size * dtype_bytes(str(equation.outvars[0].aval.dtype))
        elif name in ("swap", "addupdate"):
            value = equation.invars[1].aval
            line.stored += math.prod(value.shape) * dtype_bytes(str(value.dtype))
        elif name not in _FREE:
            line.elements += size


def _source(where: str) -> str:
    place, _, _ = where.partition(" in ")
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdecimal() else ""
