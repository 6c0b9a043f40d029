"""The operands that an operand is computed from, by the program's scalar instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from systolic.simulator.reading.listing import Instruction, Program

Definitions = Mapping[str, Sequence[Instruction]]


def definitions_of(program: Program) -> Definitions:
    """Return the instructions that write each virtual register."""
    result: dict[str, list[Instruction]] = {}
    for instruction in program.instructions:
        if instruction.dest is not None:
            result.setdefault(instruction.dest.rsplit("_", 1)[0], []).append(instruction)
    return result


def sources(text: str, definitions: Definitions, register: re.Pattern[str]) -> Iterator[str]:
    """Yield an operand, and the operands that it is computed from. A load tells nothing about the loaded word.

    Args:
      register: matches the registers that are followed, with their virtual name as its group.
    """
    pending, seen = [text], set[str]()
    while pending:
        text = pending.pop()
        yield text
        for name in register.findall(text):
            if name not in seen:
                seen.add(name)
                pending += (
                    operand
                    for instruction in definitions.get(name, ())
                    if instruction.traits.kind != "load"
                    for operand in instruction.operands
                )
