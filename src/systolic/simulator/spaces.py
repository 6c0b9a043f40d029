"""Where a copy goes from and to: HBM, VMEM, v4's CMEM, scalar memory or the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Instruction, Program

_DIRECTION = re.compile(r"dma\.(\w+)_to_(\w+)$")
_SPACES = ("hbm", "vmem", "cmem", "smem", "host", "sflag")
_VIRTUAL = re.compile(r"%(\w+)_s\d+")


@dataclass(frozen=True, slots=True)
class CopyEnds:
    """Memory spaces of a copy's two ends."""

    source: str
    destination: str


def copy_ends(program: Program, instruction: Instruction) -> CopyEnds:
    """The ends of a copy: in its opcode, or, for `dma.general`, from where its addresses were computed.

    Raises:
      SimulationError: an opcode or an address whose space cannot be told.
    """
    named = _DIRECTION.match(instruction.opcode)
    if named and set(named.groups()) <= {*_SPACES, "host_iova"}:
        return CopyEnds(*named.groups())
    if instruction.opcode != "dma.general":
        raise SimulationError(f"not understood: {instruction.text}")
    definitions = {
        inner.dest.rsplit("_", 1)[0]: inner
        for bundle in program.bundles
        for inner in bundle.instructions
        if inner.dest is not None and "_" in inner.dest
    }
    source, destination = instruction.operands[0], instruction.operands[2]
    return CopyEnds(_space(source, definitions, instruction), _space(destination, definitions, instruction))


def _space(register: str, definitions: dict[str, Instruction], copy: Instruction) -> str:
    pending, seen = [register], set()
    while pending:
        match = _VIRTUAL.match(pending.pop(0).removeprefix("[resolvable:$false] ").removeprefix("[resolvable:$true] "))
        if match is None or match.group(1) in seen:
            continue
        seen.add(match.group(1))
        defined = definitions.get(match.group(1))
        if defined is None:
            continue
        space = defined.opcode.rsplit(".", 1)[-1]
        if space in _SPACES:
            return space
        pending += defined.operands
    raise SimulationError(f"the memory space of {register} cannot be told: {copy.text}")
