"""About how much VMEM the compiler will add to a kernel that has not been compiled, for registers that do not fit.

A core has 64 vector registers. Where the result of a dot is added to something, its sums live in them, and all but
about 51 are kept in VMEM ("spilled"); elsewhere other registers are, of which there is no simple law. `explain` needs
this only to offer enough VMEM to tiles that it is about to try, so it supposes as much of every dot.
"""

from __future__ import annotations

import math

from systolic.analysis.body import body_equations
from systolic.analysis.calls import KernelCall
from systolic.checking.layout import REGISTER_BYTES, SUBLANES
from systolic.schedule.legality import LANES

_SUMS_IN_REGISTERS = 51  # of 64: the others hold operands


def spilled_bytes(call: KernelCall) -> int:
    """Bytes of VMEM for the result of the largest two-dimensional dot, less what registers hold of it."""
    results = [each.outvars[0].aval for each in body_equations(call.body) if each.primitive.name == "dot_general"]
    registers = [
        math.ceil(each.shape[0] / SUBLANES) * math.ceil(each.shape[1] / LANES)
        for each in results
        if len(each.shape) == 2
    ]
    return max(0, max(registers, default=0) - _SUMS_IN_REGISTERS) * REGISTER_BYTES
