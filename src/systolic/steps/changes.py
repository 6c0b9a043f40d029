"""What would help a step most: upper bounds by arithmetic, each of a change that can be simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from systolic.simulator import SimulatedRun
from systolic.steps.parts import BETWEEN
from systolic.steps.records import GIB, PartRun, StepChange, StepMemory

_MOST = 3
_WORTH_SAYING = 0.02  # of the time


def step_changes(run: SimulatedRun, parts: Sequence[PartRun], memory: StepMemory) -> tuple[StepChange, ...]:
    """The changes that save most at the most, at most three."""
    cycles = max(1, run.later_core.cycles)
    passes: Counter[str] = Counter()
    above_floor: Counter[str] = Counter()
    for each in parts:
        passes[each.in_pass] += each.cycles
        if each.matrix_busy_cycles and each.part != BETWEEN:
            floor = each.matrix_busy_cycles / run.matrix_units
            above_floor[each.part] += round(each.cycles - each.exposed_cycles - floor)
    exposed = sum(each.exposed_cycles for each in parts)
    fixed = passes["update"] + exposed
    free = f"{memory.left_bytes / GIB:,.1f} GiB of HBM are left"
    found = [
        StepChange(
            title="nothing computed again",
            change=f"keep more for the backward pass, as remat=minimal does; {free}",
            saving=passes["recompute"] / cycles,
        ),
        StepChange(
            title="no exposed communication",
            change="another mesh, or flags by which collectives run beside products",
            saving=exposed / cycles,
        ),
        StepChange(
            title="twice the batch",
            change=f"the update and exposed communication are then paid half as often a token; {free}",
            saving=fixed / 2 / cycles,
        ),
        *(
            StepChange(
                title=f"{part} at the rate of the matrix units",
                change="another kernel, or other sizes of its blocks",
                saving=above / cycles,
            )
            for part, above in above_floor.most_common(1)
        ),
    ]
    worth = [each for each in found if each.saving >= _WORTH_SAYING]
    return tuple(sorted(worth, key=lambda each: -each.saving)[:_MOST])
