"""Sync flags that others signal by number and that the program itself calls by name: flags of barriers.

A barrier's signals go to a fixed number, while the wait for them names an allocation. It is the one for which the
program waits and which no copy ever names, nor another signal unless there is no other. With several barriers, the
first wait after a signal is the one for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.sync_flags import FLAG_MASK, NUMBERED_FLAGS
from systolic.simulator.reading.listing import Instruction, Program

_CORE_VALID = 1 << 15  # set in the address of every remote signal
_NAMED = re.compile(r"#(\w+)", re.ASCII)
_VIRTUAL = re.compile(r"%(\w+)_(?:s|p)\d+", re.ASCII)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]+", re.ASCII)


def barrier_flags(program: Program) -> dict[str, int]:
    """Return the allocations that are signalled by number, with it; raise SimulationError if one is not certain."""
    definitions: dict[str, list[Instruction]] = {}
    for instruction in _instructions(program):
        if instruction.dest is not None:
            definitions.setdefault(instruction.dest.rsplit("_", 1)[0], []).append(instruction)
    numbers: dict[int, str] = {}  # and the allocation for which the program waits first after the signal
    signalled: set[str] = set()
    copied: set[str] = set()
    waited: set[str] = set()
    for instruction in _instructions(program):
        if instruction.traits.kind == "signal":
            allocations, constants = _traced(instruction.operands[0], definitions)
            signalled |= allocations
            if not allocations:
                flags = (
                    constant & FLAG_MASK for constant in constants if constant & _CORE_VALID and constant >> 16 == 0
                )
                numbers = dict.fromkeys(flags, "") | numbers
        elif instruction.traits.kind == "copy":
            for text in instruction.operands[instruction.traits.flags]:
                copied |= _traced(text, definitions)[0]
        elif instruction.traits.is_wait and instruction.traits.kind != "wait for copy":
            flags = _traced(instruction.operands[0], definitions)[0]
            waited |= flags
            numbers |= {number: flag for flag in flags for number, number_of in numbers.items() if not number_of}
    left = waited - copied - signalled or waited - copied
    if not numbers:
        return {}
    if len(numbers) == len(left) == 1:
        numbers = dict.fromkeys(numbers, min(left))
    if set(numbers.values()) != left or len(numbers) != len(left) or max(numbers) >= NUMBERED_FLAGS:
        raise SimulationError(
            f"{program.name}: which of the flags {', '.join(sorted(left)) or 'none'} has the number "
            f"{', '.join(map(str, sorted(numbers)))} is not known"
        )
    return {allocation: number for number, allocation in numbers.items()}


def _instructions(program: Program) -> Iterator[Instruction]:
    for bundle in program.bundles:
        yield from bundle.instructions


def _traced(text: str, definitions: Mapping[str, list[Instruction]]) -> tuple[set[str], set[int]]:
    """Return the allocations and constants that make an operand; a load tells nothing about the loaded word."""
    allocations: set[str] = set()
    constants: set[int] = set()
    pending, seen = [text], set()
    while pending:
        text = pending.pop()
        allocations.update(_NAMED.findall(text))
        if _NUMBER.fullmatch(text):
            constants.add(int(text, 0))
        for name in _VIRTUAL.findall(text):
            if name not in seen:
                seen.add(name)
                pending += (
                    operand
                    for instruction in definitions.get(name, ())
                    if instruction.traits.kind != "load"
                    for operand in instruction.operands
                )
    return allocations, constants
