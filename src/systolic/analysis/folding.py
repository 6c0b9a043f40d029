"""What the compiler knows of a kernel before it runs: conditions on grid axes of one step, and what follows from them.

A kernel that adds up over an axis sets its sums to zero at the first step. Where the axis has only one step, this
happens at every step: the compiler then sees that nothing is added to, keeps the sums in registers, and drops the
scratch memory that held them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from systolic.analysis.calls import KernelCall
from systolic.analysis.step_walk import literal, scalar_result


def overwritten_each_step(call: KernelCall) -> frozenset[Any]:
    """Finds the kernel's parameters, as variables of its body, that every step overwrites before it reads them."""
    known: dict[Any, Any] = {}
    overwritten: set[Any] = set()
    read: set[Any] = set()

    def value(atom: Any) -> Any:
        return literal(atom) if hasattr(atom, "val") else known.get(atom)

    for equation in call.body.eqns:
        name = equation.primitive.name
        if name in ("program_id", "num_programs"):
            size = call.grid[call.own_axes[equation.params["axis"]]]
            if size is not None and (name == "num_programs" or size == 1):
                known[equation.outvars[0]] = np.int32(size if name == "num_programs" else 0)
        elif name == "cond" and value(equation.invars[0]) is not None:
            branch = equation.params["branches"][int(value(equation.invars[0]))].jaxpr
            outer = dict(zip(branch.invars, equation.invars[1:], strict=True))
            for inner in branch.eqns:
                _note(inner, outer, overwritten, read)
        else:
            operands = [value(atom) for atom in equation.invars]
            if operands and equation.outvars and all(each is not None for each in operands):
                known[equation.outvars[0]] = scalar_result(equation, operands)
            _note(equation, {}, overwritten, read)
    return frozenset(overwritten)


def _note(equation: Any, outer: dict[Any, Any], overwritten: set[Any], read: set[Any]) -> None:
    """Notes what an equation does to references. A swap without indices overwrites, whoever uses the old value."""
    references = [outer.get(atom, atom) for atom in equation.invars if not hasattr(atom, "val")]
    if equation.primitive.name == "swap" and len(equation.invars) == 2:
        if references and references[0] not in read:
            overwritten.add(references[0])
        return
    read.update(each for each in references if each not in overwritten)
