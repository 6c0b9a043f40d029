"""Pointers of a program to its chip's table of routes, which `route_tables.py` describes.

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
    """Remove the top-level program's own stores of such pointers."""
    pointers = route_pointers(program)

    def stays(instruction: Instruction) -> bool:
        word = _WORD.fullmatch(instruction.operands[0]) if instruction.traits.kind == "store" else None
        return word is None or word.group(1) not in pointers

    if not pointers:
        return program
    bundles = [replace(bundle, instructions=tuple(filter(stays, bundle.instructions))) for bundle in program.bundles]
    return replace(program, bundles=tuple(bundles))


def route_pointers(program: Program) -> set[str]:
    """Return the allocations with such pointers: the program adds the offset to a word loaded from them."""
    instructions = program.instructions
    added = {
        f"%{instruction.dest}"
        for instruction in instructions
        if instruction.opcode == "reloc" and instruction.operands == (ROUTES_WORD,)
    }
    bases = {
        match.group(1)
        for instruction in instructions
        if instruction.traits.kind == "load"
        and (match := _ADDED.fullmatch(instruction.operands[0]))
        and match.group(2) in added
    }
    loaded = {
        instruction.operands[-1].split()[-1]
        for instruction in instructions
        if instruction.opcode == "int_to_ptr.smem" and f"%{instruction.dest}" in bases
    }
    return {
        word.group(1)
        for instruction in instructions
        if instruction.traits.kind == "load"
        and f"%{instruction.dest}" in loaded
        and (word := _WORD.fullmatch(instruction.operands[0]))
    }
