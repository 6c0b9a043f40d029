"""Follow one step of a kernel through its body without running it.

Scalars that depend only on the step's position in the grid are known. For all other values, only their origin is known,
and whether that memory was written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.analysis.body import elementwise_results
from systolic.analysis.calls import KernelCall
from systolic.compat.jaxpr_values import evaluate, scan_parts, unknown, while_parts
from systolic.compat.jaxprs import called_function, functions_inside


@dataclass(slots=True)
class Memory:
    """One of a kernel's buffers."""

    operand: int  # its number among the parameters
    written: bool  # True if something was written to it
    overwritten: bool | None = None  # True if its first use overwrites all of it; None: it has not been used


@dataclass(frozen=True, slots=True)
class Known:
    """A scalar, or an array filled with one number."""

    value: Any


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A value that was computed from memory that nothing has written, and the equation that read it."""

    operand: int
    equation: Any


# Knowledge of a kernel's variable; None: nothing is known.
Value = Known | Unwritten | Memory | None

_READS = ("get", "masked_load")
_WRITES = ("swap", "masked_swap")
_SHAPING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "stop_gradient", "multiple_of", "copy")


def scalar_result(equation: Any, operands: Sequence[Any]) -> Any:
    """Apply an operation to known scalars, or to arrays filled with one number; None if that fails."""
    if equation.primitive.name in _SHAPING:
        return operands[0]
    results = elementwise_results(equation, operands) or ()
    return results[0][()] if len(results) == 1 else None


def _literal(atom: Any) -> Value:
    """Read a literal scalar in its own dtype."""
    return Known(np.asarray(atom.val, atom.aval.dtype)[()]) if np.ndim(atom.val) == 0 else None


@dataclass(slots=True)
class StepWalk:
    """A walk through the body of a kernel at one position of its grid."""

    step: Sequence[int | None]  # the position along each axis; None: any
    grid: Sequence[int | None]  # the axes' lengths; None for a traced value
    # Uses of unwritten memory that certainly happen.
    unwritten_uses: list[Unwritten] = field(default_factory=list)
    _certain: bool = True
    _in_loop: bool = False

    def run(self, function: Any, arguments: Sequence[Value]) -> list[Value]:
        """Walk through a jaxpr, and return the known facts about its results."""
        return evaluate(function, arguments, self._equation, literal=_literal, constant=unknown)

    def _equation(self, equation: Any, inputs: list[Value]) -> Sequence[Value]:
        name, params = equation.primitive.name, equation.params
        if name in ("program_id", "num_programs"):
            return [self._place(name, params["axis"])]
        if name in _READS or name in _WRITES or name == "addupdate":
            return self._access(equation, name, inputs)
        if name == "cond":
            return self._cond(functions_inside(equation), inputs)
        if name in ("scan", "while", "run_scoped"):
            outside, self._in_loop = self._in_loop, True
            if name == "run_scoped":
                # Its own buffers are ignored: many belong to a pipeline, and copies fill them.
                results = self.run(functions_inside(equation)[0], inputs)
            else:
                results = self._scan(equation, inputs) if name == "scan" else self._while(equation, inputs)
            self._in_loop = outside
            return results
        function = called_function(equation)
        if function is not None:
            return self.run(function, inputs)
        for value in inputs:
            if isinstance(value, Memory):  # a copy, or an unknown operation
                value.written = True
                value.overwritten = bool(value.overwritten)
        return [self._computed(equation, inputs)] * len(equation.outvars)

    def _place(self, name: str, axis: int) -> Value:
        if axis >= len(self.step):
            return None
        size = self.step[axis] if name == "program_id" else self.grid[axis]
        return None if size is None else Known(np.int32(size))

    def _computed(self, equation: Any, inputs: Sequence[Value]) -> Value:
        name = equation.primitive.name
        if name == "select_n":
            return self._selected(inputs)
        numbers = [value.value for value in inputs if isinstance(value, Known)]
        if name in ("and", "or"):
            # One operand may decide the result alone.
            decisive = next((number for number in numbers if _is_bool(number) and bool(number) == (name == "or")), None)
            if decisive is not None:
                return Known(decisive)
        unwritten = next((value for value in inputs if isinstance(value, Unwritten)), None)
        if unwritten is not None:
            return unwritten
        if len(numbers) != len(inputs) or not numbers:
            return None
        result = scalar_result(equation, numbers)
        return None if result is None else Known(result)

    def _selected(self, inputs: Sequence[Value]) -> Value:
        which, *cases = inputs
        if isinstance(which, Known):
            return cases[int(which.value)]
        return which if isinstance(which, Unwritten) else None  # a mask may exclude the read values from the result

    def _access(self, equation: Any, name: str, inputs: Sequence[Value]) -> Sequence[Value]:
        memory, *rest = inputs
        for value in rest:
            if name not in _READS and isinstance(value, Unwritten):
                self._use(value)
        if not isinstance(memory, Memory):
            return [None] * len(equation.outvars)
        if memory.overwritten is None:
            # A swap without indices overwrites everything, even if its old value is used.
            is_whole = name == "swap" and len(equation.invars) == 2
            memory.overwritten = is_whole and self._certain and not self._in_loop
        before = None if memory.written else Unwritten(memory.operand, equation)
        if name == "addupdate" and before is not None:
            self._use(before)
        if name not in _READS:
            memory.written = True  # perhaps only a part of it: parts are not tracked
        return [before] * len(equation.outvars)

    def _use(self, value: Unwritten) -> None:
        if self._certain:
            self.unwritten_uses.append(value)

    def _cond(self, branches: Sequence[Any], inputs: Sequence[Value]) -> Sequence[Value]:
        which, *operands = inputs
        if isinstance(which, Unwritten):
            self._use(which)
        if isinstance(which, Known):
            chosen = branches[min(max(int(which.value), 0), len(branches) - 1)]
            return self.run(chosen, operands)
        # Any branch may run: its writes count as written, and its reads are not certain.
        memories = [value for value in operands if isinstance(value, Memory)]
        before = [memory.written for memory in memories]
        after = list(before)
        certain, self._certain = self._certain, False
        for branch in branches:
            for memory, written in zip(memories, before, strict=True):
                memory.written = written
            self.run(branch, operands)
            after = [was_written or memory.written for was_written, memory in zip(after, memories, strict=True)]
        for memory, written in zip(memories, after, strict=True):
            memory.written = written
        self._certain = certain
        return [None] * len(branches[0].jaxpr.outvars)

    def _scan(self, equation: Any, inputs: Sequence[Value]) -> Sequence[Value]:
        """Follow the first iteration of a loop: memory that it does not write has not been written before."""
        length = equation.params["length"]
        if not length:
            return []
        body, constants, carried, _ = scan_parts(equation, inputs)
        results = self.run(body, [*constants, *carried])
        lasting = [_lasting(value) for value in results]
        return [*results[: len(carried)], *lasting[len(carried) :]] if length == 1 else lasting

    def _while(self, equation: Any, inputs: Sequence[Value]) -> Sequence[Value]:
        condition, body, condition_constants, body_constants, carried = while_parts(equation, inputs)
        (goes_on,) = self.run(condition, [*condition_constants, *carried])
        if isinstance(goes_on, Known) and not goes_on.value:
            return list(carried)
        certain = self._certain
        self._certain = certain and isinstance(goes_on, Known)
        results = self.run(body, [*body_constants, *carried])
        self._certain = certain
        return [_lasting(value) for value in results]


def _lasting(value: Value) -> Value:
    """Return the part of a value that also holds in later iterations: numbers change."""
    return None if isinstance(value, Known) else value


def _is_bool(value: Any) -> bool:
    return np.asarray(value).dtype == np.bool_


def overwritten_each_step(call: KernelCall) -> frozenset[int]:
    """Return the numbers of the kernel's parameters that every step overwrites before it reads them.

    A kernel that sums over an axis clears its sums at the first step. If the axis has only one step, every step does
    so. The compiler then keeps the sums in registers, and drops their scratch memory.
    """
    sizes = [call.grid[axis] for axis in call.own_axes]
    memories = [Memory(at, written=True) for at in range(len(call.operands))]
    StepWalk([0 if size == 1 else None for size in sizes], sizes).run(call.body, memories)
    return frozenset(memory.operand for memory in memories if memory.overwritten)
