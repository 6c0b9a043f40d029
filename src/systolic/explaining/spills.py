"""About how much VMEM the compiler will add to a kernel that has not been compiled, for registers that do not fit.

A core has 64 vector registers. Where the result of a dot is added to something, its sums live in them, and all but
about 51 are kept in VMEM ("spilled"). The compiler keeps more there in other cases; `explain` needs this only to offer
enough VMEM to tiles that it is about to try.
"""

from __future__ import annotations

import math
from typing import Any

from systolic.checking.body import body_equations
from systolic.checking.calls import KernelCall
from systolic.checking.folding import set_each_step
from systolic.checking.layout import REGISTER_BYTES, SUBLANES
from systolic.tiling.legality import LANES

_SUMS_IN_REGISTERS = 51  # of 64: the others hold operands


def spilled_sums_bytes(call: KernelCall) -> int:
    """Bytes of VMEM for the sums of the largest two-dimensional dot whose result is added to something."""
    equations = list(body_equations(call.body))
    fresh = set_each_step(call)
    zeros = {each.outvars[0] for each in equations if each.primitive.name == "get" and each.invars[0] in fresh}
    readers: dict[Any, list[Any]] = {}
    for equation in equations:
        for atom in _variables(equation):
            readers.setdefault(atom, []).append(equation)
    results = [each.outvars[0] for each in equations if each.primitive.name == "dot_general"]
    matrices = [each for each in results if len(each.aval.shape) == 2]
    sums = [_registers(*each.aval.shape) for each in matrices if _is_added(each, readers, zeros)]
    return max(0, max(sums, default=0) - _SUMS_IN_REGISTERS) * REGISTER_BYTES


def _registers(rows: int, columns: int) -> int:
    return math.ceil(rows / SUBLANES) * math.ceil(columns / LANES)


def _is_added(result: Any, readers: dict[Any, list[Any]], zeros: set[Any]) -> bool:
    """Whether a result, itself or converted, is added to something but zeros."""
    for equation in readers.get(result, []):
        name = equation.primitive.name
        if name in ("add", "add_any", "addupdate") and zeros.isdisjoint(_variables(equation)):
            return True
        if name == "convert_element_type" and _is_added(equation.outvars[0], readers, zeros):
            return True
    return False


def _variables(equation: Any) -> list[Any]:
    return [atom for atom in equation.invars if not hasattr(atom, "val")]
