"""Find the blocks that a pipeline fetches step by step, and those that stay in VMEM for the whole grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from systolic.analysis.calls import KernelCall, Operand
from systolic.compat.jaxpr_values import evaluate
from systolic.compat.jaxprs import called_function, is_literal

_T = TypeVar("_T")

PREFETCHED = -1  # prefetched scalars, among the grid axes on which an index depends


def block_mapping_of(call: KernelCall, operand: Operand) -> Any:
    """Find Pallas' own record of how an input or output is cut."""
    cut = call.of("input", "output")
    return call.equation.params["grid_mapping"].block_mappings[cut.index(operand)]


def is_whole(call: KernelCall, operand: Operand) -> bool:
    """True if the block is the whole array and the index map gives only zeros: Pallas then uses no window."""
    if operand.block != operand.shape:
        return False
    outputs = _index_map(call, operand).outvars
    return all(is_literal(atom) and atom.val == 0 for atom in outputs)


def window_copies(call: KernelCall, operand: Operand) -> int:
    """Count the blocks of an operand that are in VMEM at the same time.

    If the compiler sees that every step has the same block, it keeps one, whatever `pl.Buffered` requests. It folds
    constants and axes of one step, `i * 0` and `i - i`, but not `i // size` or `minimum`: this held in 24 index maps
    compiled for v4, v5e and v7x.
    """
    moves = operand.is_cut and any(axis == PREFETCHED or call.grid[axis] != 1 for axis in index_axes(call, operand))
    return (operand.buffers or 2) if moves else 1


def index_axes(call: KernelCall, operand: Operand) -> frozenset[int]:
    """List the grid axes that an operand's block depends on, and `PREFETCHED` if it depends on prefetched scalars."""
    index_map = _index_map(call, operand)
    axes = [frozenset({axis if axis < len(call.grid) else PREFETCHED}) for axis in range(len(index_map.invars))]
    return frozenset().union(*_propagated(index_map, axes, lambda _: frozenset(), _axes_of_result))


def index_divisors(call: KernelCall, operand: Operand) -> tuple[int, ...]:
    """Find, for each index of an index map, a divisor that the compiler can see; 0 for zero.

    The compiler follows products, selections and `pl.multiple_of`, but not sums: it knows that `(i + 1) * 8` is a
    multiple of 8, and does not know it of `i * 8 + 8`. This held in 20 index maps compiled for v5e.
    """
    index_map = _index_map(call, operand)
    return tuple(_propagated(index_map, [1] * len(index_map.invars), _divisor_of_literal, _divisor_of_result))


def _index_map(call: KernelCall, operand: Operand) -> Any:
    return block_mapping_of(call, operand).index_map_jaxpr.jaxpr


def _propagated(
    jaxpr: Any, inputs: Sequence[_T], of_literal: Callable[[Any], _T], of_result: Callable[[Any, list[_T]], _T]
) -> list[_T]:
    """Carry a property of a jaxpr's inputs through its equations to its results."""
    nothing = of_literal(None)

    def through(function: Any, ingoing: Sequence[_T]) -> list[_T]:
        return evaluate(
            function,
            ingoing,
            step,
            literal=lambda atom: of_literal(atom.val),
            constant=lambda _: nothing,
            missing=nothing,
        )

    def step(equation: Any, ingoing: list[_T]) -> list[_T]:
        function = called_function(equation)
        if function is not None:
            return through(function, ingoing)
        return [of_result(equation, ingoing)] * len(equation.outvars)

    return through(jaxpr, inputs)


def _axes_of_result(equation: Any, ingoing: list[frozenset[int]]) -> frozenset[int]:
    operands = equation.invars
    if equation.primitive.name == "mul" and any(getattr(atom, "val", None) == 0 for atom in operands):
        return frozenset()
    if equation.primitive.name == "sub" and operands[0] is operands[1]:
        return frozenset()
    return frozenset().union(*ingoing)


def _divisor_of_literal(value: Any) -> int:
    return abs(int(value)) if isinstance(value, int) or getattr(value, "ndim", 1) == 0 else 1


def _divisor_of_result(equation: Any, ingoing: list[int]) -> int:
    match equation.primitive.name:
        case "mul":
            return math.prod(ingoing)
        case "select_n":
            return math.gcd(*ingoing[1:])
        case "convert_element_type":
            return ingoing[0]
        case "multiple_of":
            return math.gcd(*equation.params["values"])
    return 1
