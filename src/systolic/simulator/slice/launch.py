"""The barrier by which all devices begin a program together: it is not executed, since no time of a program holds it.

Device 0 collects a message of every other, compares on the vector side which launch they belong to, and answers each.
Trace marks enclose it. The agreement on the outcome between the two cores of a device belongs to it too.
"""

from __future__ import annotations

from dataclasses import replace

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.listing import Bundle, Instruction, Program

LAUNCHING, LAUNCHED = "2952790016", "3221225472"  # of `vtrace`
# In comments where cores agree on the outcome: at the wait for it, and at the check after that.
_AGREED_WAIT = "sync-program-descriptor-states-wait"
_AGREED_CHECK = "SynchronizeProgramDescriptorStates"


def without_launch(program: Program) -> Program:
    """Return the top-level program with the launch's bundles emptied; raise SimulationError if it has no marks."""
    begin, end = _marked(program, LAUNCHING), _marked(program, LAUNCHED)
    if begin is None or end is None or end < begin:
        raise SimulationError(f"{program.name}: the barrier at the program's launch has no marks around it")
    # Behind the wait its flag is set back, in the bundle that follows.
    waits = (number + 2 for number, bundle in enumerate(program.bundles) if _says(bundle, _AGREED_WAIT))
    checks = (number + 1 for number, bundle in enumerate(program.bundles) if _says(bundle, _AGREED_CHECK))
    last = max((end, *waits, *checks))
    bundles = [
        replace(bundle, instructions=_marks(bundle), vector_count=1) if begin < number < last else bundle
        for number, bundle in enumerate(program.bundles)
    ]
    return replace(program, bundles=tuple(bundles))


def _marked(program: Program, mark: str) -> int | None:
    for number, bundle in enumerate(program.bundles):
        if any(
            instruction.opcode == "vtrace" and instruction.operands == (mark,) for instruction in bundle.instructions
        ):
            return number
    return None


def _says(bundle: Bundle, text: str) -> bool:
    return any(text in instruction.comment for instruction in bundle.instructions)


def _marks(bundle: Bundle) -> tuple[Instruction, ...]:
    return tuple(instruction for instruction in bundle.instructions if instruction.opcode == "vtrace")
