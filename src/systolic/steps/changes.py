"""List the changes that would help a step most: upper bounds by arithmetic, each of a change that can be simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from systolic.simulator import SimulatedRun
from systolic.steps.parts import BETWEEN
from systolic.steps.records import GIB, PartRun, StepChange, StepMemory

_MAX_CHANGES = 3
_WORTH_SAYING = 0.02  # of the time


def step_changes(run: SimulatedRun, parts: Sequence[PartRun], memory: StepMemory) -> tuple[StepChange, ...]:
    """Return the changes with the largest possible savings, at most three."""
    cycles = max(1, run.later_core.cycles)
    passes: Counter[str] = Counter()
    above_floor: Counter[str] = Counter()
    for part_run in parts:
        passes[part_run.in_pass] += part_run.cycles
        if part_run.matrix_busy_cycles and part_run.part != BETWEEN:
            floor = part_run.matrix_busy_cycles / run.matrix_units
            above_floor[part_run.part] += round(part_run.cycles - part_run.exposed_cycles - floor)
    exposed = sum(part.exposed_cycles for part in parts)
    fixed = passes["update"] + exposed
    free = f"{memory.left_bytes / GIB:,.1f} GiB of HBM are left"
    changes = [
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
    worth = [change for change in changes if change.saving >= _WORTH_SAYING]
    return tuple(sorted(worth, key=lambda change: -change.saving)[:_MAX_CHANGES])
