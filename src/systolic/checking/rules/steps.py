"""Rules on the size of a step: blocks so small that the pipeline around them takes longer than their work."""

from __future__ import annotations

import math
from typing import Any

from systolic.analysis.body import body_equations, work_of
from systolic.analysis.calls import KernelCall
from systolic.analysis.visits import GridVisits
from systolic.checking.finding import Finding
from systolic.chips import Chip, UnsupportedDtypeError

# What a step costs beside its work, about: 178 µs for the 512 steps of 1024³ in tiles of 128³ on a v5e, simulated, of
# which the products take 11. It decides on a warning, and on no number that is reported.
_STEP_S = 0.35e-6
_MANY_STEPS = 256


def step_findings(call: KernelCall, found: GridVisits, chip: Chip) -> list[Finding]:
    """Kernels that multiply in steps of less work than a step costs."""
    steps = math.prod(found.grid)
    dots = [equation for equation in body_equations(call.body) if equation.primitive.name == "dot_general"]
    work = work_of(call.body)
    if steps < _MANY_STEPS or not dots or not work.is_counted:
        return []
    flops = work.flops
    moved = sum(visits.moved_bytes for visits in found.visits.values()) / steps
    # Dots of a loop stand in the text once, and run each round.
    rounds = flops / max(1.0, sum(map(dot_flops, dots)))
    seconds = max(rounds * sum(_seconds(equation, chip) for equation in dots), moved / chip.hbm_bytes_per_s)
    if seconds >= _STEP_S / 2:
        return []
    return [
        Finding(
            rule="small-blocks",
            grade="warning",
            value=f"{steps:,} steps of {flops / 1e6:,.1f} Mflop and {moved / 1e3:,.0f} kB: {seconds * 1e6:.2f} µs of "
            f"work each on a {chip.name}",
            limit=f"a step of the pipeline costs about {_STEP_S * 1e6:.2f} µs beside its work",
            fix="take larger blocks: systolic explain tries some, if they are keyword arguments",
            kernel=call.name,
            where=call.where,
            chip=chip.name,
        )
    ]


def dot_flops(equation: Any) -> float:
    """Operations of a `dot_general`: two for each product of elements."""
    (axes, _), _ = equation.params["dimension_numbers"]
    contracted = math.prod(equation.invars[0].aval.shape[axis] for axis in axes)
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * contracted


def _seconds(equation: Any, chip: Chip) -> float:
    try:
        return dot_flops(equation) / chip.peak_ops_per_s(str(equation.invars[0].aval.dtype))
    except UnsupportedDtypeError:  # another rule says so
        return 0.0
