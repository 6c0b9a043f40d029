"""Which blocks a pipeline brings anew from step to step, and which lie in VMEM once for the whole grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from systolic.checking.calls import KernelCall, Operand
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

    It folds constants and axes of one step, and sees through `i * 0`, `i - i` and `i % 1`, not through `i // size` or
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
    name, operands = equation.primitive.name, equation.invars
    literals = [getattr(atom, "val", None) for atom in operands]
    if name == "mul":
        return 0 in literals
    if name == "sub":
        return operands[0] is operands[1]
    return name == "rem" and literals[-1] == 1
