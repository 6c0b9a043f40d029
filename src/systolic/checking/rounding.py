"""Count the terms of a kernel's sums and their roundings, and find its narrow types."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from systolic.analysis import KernelCall, op_count
from systolic.compat.jaxprs import equations
from systolic.schedule import LANES


def sums(call: KernelCall) -> tuple[int, int]:
    """Count the terms that an element of an output sums, and the roundings of its running sum."""
    count = op_count(call.body)
    cut = [operand for operand in call.of("input", "output") if operand.is_cut]
    parts = [[-(-size // block) for size, block in zip(operand.shape, operand.block, strict=True)] for operand in cut]
    longest = max((size for operand in call.of("input", "output") for size in operand.shape), default=1)
    blocks = max(
        (math.prod(counts) for counts, operand in zip(parts, cut, strict=True) if operand.role == "output"), default=1
    )
    if call.steps is None:
        visits = max((count for counts in parts for count in counts), default=1)
    else:
        visits = max(1, call.steps // blocks)
    terms, roundings = count.terms * visits, count.roundings * visits
    if count.terms == 1 or not count.is_counted:
        terms, roundings = max(terms, longest), max(roundings, longest // LANES)
    return terms, roundings


def most_sums(arrays: Sequence[np.ndarray]) -> tuple[int, int]:
    """Assume a sum over the longest axis, where no call says more, as for a kernel on a mesh (`pl.kernel`)."""
    longest = max((size for array in arrays for size in array.shape), default=1)
    return longest, max(1, longest // LANES)


def has_narrow(call: KernelCall) -> bool:
    """True if anything in a call is of a narrow type, or approximate."""
    if any(is_narrow(operand.dtype) for operand in call.operands):
        return True
    return any(
        is_narrow(str(getattr(variable.aval, "dtype", ""))) or equation.params.get("approx", False)
        for equation in equations(call.body)
        for variable in equation.outvars
    )


def is_narrow(dtype: str) -> bool:
    """True for floats of 16 bits and fewer."""
    return dtype in ("bfloat16", "float16") or dtype.startswith("float8")
