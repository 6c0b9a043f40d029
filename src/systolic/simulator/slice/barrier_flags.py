"""Sync flags that others signal by number and that the program itself calls by name: flags of barriers.

A barrier's signals go to a fixed number, while the wait for them names an allocation. It is the one for which the
program waits and which no copy ever names, nor another signal unless there is no other. With several barriers, the
first wait after a signal is the one for it.
"""

from __future__ import annotations

import re

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.sync_flags import FLAG_MASK, NUMBERED_FLAGS
from systolic.simulator.reading.listing import Program
from systolic.simulator.slice.definitions import Definitions, definitions_of, sources

_CORE_VALID = 1 << 15  # set in the address of every remote signal
_NAMED = re.compile(r"#(\w+)", re.ASCII)
_VIRTUAL = re.compile(r"%(\w+)_(?:s|p)\d+", re.ASCII)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]+", re.ASCII)


def barrier_flags(program: Program) -> dict[str, int]:
    """Return the allocations that are signalled by number, with it; raise SimulationError if one is not certain."""
    if not any(instruction.traits.kind == "signal" for instruction in program.instructions):
        return {}
    definitions = definitions_of(program)
    numbers: dict[int, str] = {}  # and the allocation for which the program waits first after the signal
    signalled: set[str] = set()
    copied: set[str] = set()
    waited: set[str] = set()
    for instruction in program.instructions:
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


def _traced(text: str, definitions: Definitions) -> tuple[set[str], set[int]]:
    """Return the allocations and constants that make an operand."""
    allocations: set[str] = set()
    constants: set[int] = set()
    for source in sources(text, definitions, _VIRTUAL):
        allocations.update(_NAMED.findall(source))
        if _NUMBER.fullmatch(source):
            constants.add(int(source, 0))
    return allocations, constants
