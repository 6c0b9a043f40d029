"""Rules on the size of a step: blocks so small that the pipeline around them takes longer than their work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from systolic.analysis import GridVisits, KernelCall, dot_flops, op_count
from systolic.checking.finding import Finding, call_finding
from systolic.chips import Chip, UnsupportedDtypeError
from systolic.compat.jaxprs import equations

_MANY_STEPS = 256


def step_findings(call: KernelCall, grid_visits: GridVisits, chip: Chip) -> Iterator[Finding]:
    """Yield a warning for a kernel that multiplies in steps of less work than a step costs."""
    steps = math.prod(grid_visits.grid)
    dots = [equation for equation in equations(call.body) if equation.primitive.name == "dot_general"]
    count = op_count(call.body)
    if steps < _MANY_STEPS or not dots or not count.is_counted:
        return
    moved = grid_visits.moved_bytes / steps
    # A dot in a loop appears in the text once, and runs in each iteration.
    iterations = count.flops / max(1.0, sum(map(dot_flops, dots)))
    seconds = max(iterations * sum(_seconds(equation, chip) for equation in dots), moved / chip.hbm_bytes_per_s)
    if seconds < chip.code_costs.grid_step_s / 2:
        yield call_finding(
            call,
            "small-blocks",
            "warning",
            value=f"{steps:,} steps of {count.flops / 1e6:,.1f} Mflop and {moved / 1e3:,.0f} kB: "
            f"{seconds * 1e6:.2f} µs of work each on a {chip.name}",
            limit=f"a step of the pipeline costs about {chip.code_costs.grid_step_s * 1e6:.2f} µs more than its work",
            fix="take larger blocks: systolic explain tries some, if they are keyword arguments",
            chip=chip.name,
        )


def _seconds(equation: Any, chip: Chip) -> float:
    try:
        return dot_flops(equation) / chip.peak_ops_per_s(str(equation.invars[0].aval.dtype))
    except UnsupportedDtypeError:  # another rule says so
        return 0.0
