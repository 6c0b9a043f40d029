"""The constants that operations are handed, and how large they are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.listing import Instruction, Program, physical
from systolic.simulator.slice.definitions import Definitions, definitions_of, sources

_CALLED = re.compile(r"%([\w.\-]+) = ", re.ASCII)
_ALLOCATION = re.compile(r"#allocation(\d+)", re.ASCII)
_ARGUMENT = re.compile(r"call-argument-store #(\d+)", re.ASCII)
_VIRTUAL = re.compile(r"%(\w+)_s\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantOperand:
    """An operand of a called operation that is a constant."""

    operation: str  # the called operation
    operand: CallOperand  # as the operation declares it
    allocation: int  # its number

    @property
    def words(self) -> int:
        """Its size, if its elements are words."""
        return math.prod(self.operand.shape)


def constant_operands(
    top_level: Program, operands: Mapping[str, Sequence[CallOperand]], allocations: Set[int]
) -> Iterator[ConstantOperand]:
    """Return all operands that are constants, each once for every operation.

    Args:
      operands: of each called operation.
      allocations: of the constants.
    """
    definitions = definitions_of(top_level)
    calls: dict[str, Instruction] = {}
    for instruction in top_level.instructions:
        if instruction.traits.kind == "call" and (called := _CALLED.search(instruction.comment)):
            calls.setdefault(called.group(1), instruction)
    for name, call in calls.items():
        passed = {physical(text): text for text in call.operands if text[0] == "%"}
        for operand in operands.get(name, ()):
            if operand.space == "hbm" and operand.is_input and operand.register in passed:
                allocation = _allocation(passed[operand.register], definitions)
                if allocation is not None and allocation in allocations:
                    yield ConstantOperand(operation=name, operand=operand, allocation=allocation)


def stored_tables(top_level: Program, tables: Mapping[str, int], allocations: Set[int]) -> Iterator[ConstantOperand]:
    """Yield tables of collectives with so many operands that the call finds pointers to them in scalar memory."""
    definitions = definitions_of(top_level)
    stored: list[tuple[int, int]] = []  # operand, allocation
    for instruction in top_level.instructions:
        if (argument := _ARGUMENT.search(instruction.comment)) is not None and instruction.traits.kind == "store":
            allocation = _allocation(instruction.operands[1], definitions)
            stored += [(int(argument[1]), allocation)] if allocation in allocations and allocation is not None else []
        elif instruction.traits.kind == "call":
            called = _CALLED.search(instruction.comment)
            name = called[1] if called is not None else ""
            for index, allocation in stored if name in tables else ():
                operand = CallOperand(
                    register="",
                    space="hbm",
                    index=index,
                    is_input=True,
                    is_constant=True,
                    dtype="s32",
                    shape=(tables[name],),
                )
                yield ConstantOperand(operation=name, operand=operand, allocation=allocation)
            stored = []


def copied_granules(top_level: Program, allocations: Set[int]) -> dict[int, int]:
    """Return the size of what the program itself copies from each constant, in granules."""
    definitions = definitions_of(top_level)
    result: dict[int, int] = {}
    for instruction in top_level.instructions:
        if instruction.traits.kind == "copy" and instruction.opcode.startswith("dma.hbm_to"):
            source, size = instruction.operands[:2]
            allocation = _allocation(source, definitions) if size.isdecimal() else None
            if allocation is not None and allocation in allocations:
                result[allocation] = max(result.get(allocation, 0), int(size))
    return result


def _allocation(text: str, definitions: Definitions) -> int | None:
    """Return the number of the allocation from which an address is made."""
    matches = map(_ALLOCATION.search, sources(text, definitions, _VIRTUAL))
    return next((int(named.group(1)) for named in matches if named is not None), None)
