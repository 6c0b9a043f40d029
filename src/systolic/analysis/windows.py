"""Which blocks a pipeline brings anew from step to step, and which lie in VMEM once for the whole grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from systolic.analysis.calls import KernelCall, Operand
from systolic.compiler import inner_jaxprs


def block_mapping_of(call: KernelCall, operand: Operand) -> Any:
    """Pallas' own record of how an input or output is cut."""
    cut = call.of("input", "output")
    return call.equation.params["grid_mapping"].block_mappings[cut.index(operand)]


def is_whole(call: KernelCall, operand: Operand) -> bool:
    """Whether the block is the array and the index map says nothing but zeros: Pallas takes that for no window."""
    if operand.block != operand.shape:
        return False
    outputs = block_mapping_of(call, operand).index_map_jaxpr.jaxpr.outvars
    return all(hasattr(atom, "val") and atom.val == 0 for atom in outputs)


def stands_still(call: KernelCall, operand: Operand) -> bool:
    """Whether the compiler sees that every step has the same block, and keeps one copy of it instead of two.

    It folds constants and axes of one step, and sees through `i * 0` and `i - i`, not through `i // size` or
    `minimum`: so it was in 24 index maps compiled for v4, v5e and v7x, whatever `pl.Buffered` asked for.
    """
    index_map = block_mapping_of(call, operand).index_map_jaxpr.jaxpr
    # After the indices of the grid come the prefetched scalars, whose contents the compiler does not know.
    varies = [size != 1 for size in call.grid]
    varies += [True] * (len(index_map.invars) - len(varies))
    return not any(_varying(index_map, varies))


def copies(call: KernelCall, operand: Operand) -> int:
    """Blocks of an operand that lie in VMEM at a time."""
    if not operand.is_cut or stands_still(call, operand):
        return 1
    return operand.buffers or 2


def index_divisors(call: KernelCall, operand: Operand) -> tuple[int, ...]:
    """Of what the compiler sees that each index of an operand's index map is a multiple; 0 for an index of zero.

    It multiplies, chooses and believes `pl.multiple_of`, but does not add: `(i + 1) * 8` is a multiple of 8 to it and
    `i * 8 + 8` is not. So it was in 20 index maps compiled for v5e.
    """
    index_map = block_mapping_of(call, operand).index_map_jaxpr.jaxpr
    return tuple(_divisors(index_map, [1] * len(index_map.invars)))


def _divisors(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def divisor(atom: Any) -> int:
        if not hasattr(atom, "val"):
            return known.get(atom, 1)
        return abs(int(atom.val)) if isinstance(atom.val, int) or getattr(atom.val, "ndim", 1) == 0 else 1

    for equation in jaxpr.eqns:
        ingoing = [divisor(atom) for atom in equation.invars]
        inner = list(inner_jaxprs(equation.params))
        if len(inner) == 1 and len(inner[0].jaxpr.invars) == len(ingoing) and equation.primitive.name != "scan":
            outgoing = _divisors(inner[0].jaxpr, ingoing)
        else:
            outgoing = [_divisor_of(equation, ingoing)] * len(equation.outvars)
        known.update(zip(equation.outvars, outgoing, strict=True))
    return [divisor(atom) for atom in jaxpr.outvars]


def _divisor_of(equation: Any, ingoing: Sequence[int]) -> int:
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


def _varying(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """Which results of a jaxpr change where these of its inputs do."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def varies(atom: Any) -> bool:
        return not hasattr(atom, "val") and known.get(atom, False)

    for equation in jaxpr.eqns:
        ingoing = [varies(atom) for atom in equation.invars]
        inner = list(inner_jaxprs(equation.params))
        if len(inner) == 1 and len(inner[0].jaxpr.invars) == len(ingoing) and equation.primitive.name != "scan":
            outgoing = _varying(inner[0].jaxpr, ingoing)
        else:
            outgoing = [any(ingoing) and not _is_constant(equation)] * len(equation.outvars)
        known.update(zip(equation.outvars, outgoing, strict=True))
    return [varies(atom) for atom in jaxpr.outvars]


def _is_constant(equation: Any) -> bool:
    """Whether an operation has one result whatever its operands are."""
    operands = equation.invars
    if equation.primitive.name == "mul":
        return any(getattr(atom, "val", None) == 0 for atom in operands)
    return equation.primitive.name == "sub" and operands[0] is operands[1]
