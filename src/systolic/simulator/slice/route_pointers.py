"""Where a program looks for its chip's table of routes; what is in that is said in `route_tables.py`.

A word of scalar memory points to the table, at an offset that the runtime fills in. The top-level program stores the
pointer of its own launch there, which the simulator leaves out, for it lays the table elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import replace

from systolic.simulator.reading.listing import Instruction, Program
from systolic.simulator.translating.scalar import ROUTES_WORD

# In scalar memory, above all that a program allocates: a pointer to a chip's table of routes, and the table.
ROUTES_AT = 1 << 30

_ADDED = re.compile(r"\[smem:\[(%\w+) \+ (%\w+)\]\]", re.ASCII)
_WORD = re.compile(r"\[smem:\[#(allocation\d+)\]\]", re.ASCII)


def without_route_pointers(program: Program) -> Program:
    """Leaves the top-level program's own stores of such pointers out."""
    pointers = route_pointers(program)

    def stays(each: Instruction) -> bool:
        word = _WORD.fullmatch(each.operands[0]) if each.traits.kind == "store" else None
        return word is None or word.group(1) not in pointers

    if not pointers:
        return program
    bundles = [replace(bundle, instructions=tuple(filter(stays, bundle.instructions))) for bundle in program.bundles]
    return replace(program, bundles=tuple(bundles))


def route_pointers(program: Program) -> set[str]:
    """Finds the allocations that hold such pointers: the program adds the offset to what it loads from them."""
    instructions = [each for bundle in program.bundles for each in bundle.instructions]
    added = {f"%{each.dest}" for each in instructions if each.opcode == "reloc" and each.operands == (ROUTES_WORD,)}
    bases = {
        found.group(1)
        for each in instructions
        if each.traits.kind == "load" and (found := _ADDED.fullmatch(each.operands[0])) and found.group(2) in added
    }
    loaded = {
        each.operands[-1].split()[-1]
        for each in instructions
        if each.opcode == "int_to_ptr.smem" and f"%{each.dest}" in bases
    }
    return {
        word.group(1)
        for each in instructions
        if each.traits.kind == "load" and f"%{each.dest}" in loaded and (word := _WORD.fullmatch(each.operands[0]))
    }
