"""A program's constants in HBM, from the compiled binary, placed as the listing says.

The runtime loads them one after the other, each at a multiple of `_SLOT_BYTES`, in the order of their allocations'
numbers, and leaves in scalar memory where they begin. The top-level program adds that to an allocation, and hands the
sum to an operation or copies from there. So the allocations that are added to that word are constants, and their sizes
give their places. These have to account for the whole segment: else none of them is known.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.memory import Words
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.listing import Instruction, Program
from systolic.simulator.slice.constant_operands import (
    ConstantOperand,
    constant_operands,
    copied_granules,
    stored_tables,
)
from systolic.simulator.slice.identity import Word
from systolic.simulator.sparse_core.launch import DESCRIPTOR_WORD, IMAGE_PLACE
from systolic.simulator.sparse_core.listing import IMAGE_GRANULES

_BASE = re.compile(r"\[#allocation(\d+)\]", re.ASCII)
_WORD = re.compile(r"\[smem:\[#(\w+)\]\]", re.ASCII)
_SPILL = re.compile(r"\[smem:\[#(\w+_spill)\]\]", re.ASCII)

_WORD_BYTES = 4
_SLOT_BYTES = 1 << 14
# Of the programs that set SparseCores up and clean them. All chips with SparseCores have such granules.
_IMAGE_BYTES = IMAGE_GRANULES * 32
# Words of four bytes are padded to whole rows, with a value that is not a number.
_ROW_WORDS = 128
_PADDING = 0x7FC07FC0


class NeighbourTableError(SimulationError):
    """The contents of a collective's constants are not known for certain; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants of a program."""

    operands: tuple[ConstantOperand, ...]  # constants that operations are handed
    contents: Mapping[int, Words]  # their words, by the number of their allocation
    places: Mapping[int, int]  # their offsets in HBM from the first constant, by the number of their allocation
    unknown: str  # why their contents are not known; "": they are

    def in_hbm(self, begin: int) -> dict[int, Words]:
        """Return the constants by the pointers to them, where constants begin there."""
        return {begin + at: self.contents[number] for number, at in self.places.items()}


def constants_of(
    top_level: Program,
    addresses: Mapping[str, int],
    values: Mapping[int, Word],
    operands: Mapping[str, Sequence[CallOperand]],
    segment: bytes,
    *,
    tables: Mapping[str, int],
    granule_bytes: int,
) -> Constants:
    """Return a program's constants.

    Args:
      addresses: of the top-level program's allocations, by name.
      values: words of scalar memory that the runtime has written, by address.
      operands: of each called operation.
      segment: HBM bytes of all constants; empty: not found.
      tables: words of the table of neighbors of each collective.
      granule_bytes: in which copies are counted.

    Raises:
      NeighbourTableError: it is not certain which allocations are constants.
    """
    offsets = {name for name, address in addresses.items() if values.get(address) == "constants"}
    allocations = constant_allocations(top_level, offsets)
    handed = tuple(constant_operands(top_level, operands, allocations))
    handed += tuple(stored_tables(top_level, tables, allocations))
    unknown = ""
    contents: Mapping[int, Words]
    try:
        copied = {name: count * granule_bytes for name, count in copied_granules(top_level, allocations).items()}
        images = dict.fromkeys(images_among(top_level, allocations), _IMAGE_BYTES)
        contents = constant_contents(segment, allocations, handed, {**copied, **images})
    except NeighbourTableError as error:
        unknown = str(error)
        contents = dict.fromkeys(allocations, (Unknown(f"a constant: {unknown}"),) * _ROW_WORDS)
    return Constants(
        operands=handed,
        contents=contents,
        places={number: addresses[name] for number in allocations if (name := f"allocation{number}") in addresses},
        unknown=unknown,
    )


def constant_allocations(top_level: Program, offsets: Set[str]) -> frozenset[int]:
    """Return the allocations that are added to the begin of the constants.

    Args:
      offsets: words of scalar memory that hold it.

    Raises:
      NeighbourTableError: it is used in another way.
    """
    instructions = top_level.instructions
    names, words, count = set[str](), set(offsets), -1
    while count < len(names) + len(words):
        count = len(names) + len(words)
        for instruction in instructions:
            if (
                instruction.traits.kind == "load"
                and (word := _WORD.fullmatch(instruction.operands[0]))
                and word.group(1) in words
            ):
                names.add(f"%{instruction.dest}")
            elif not names.isdisjoint(instruction.operands):
                if instruction.traits.kind in ("move", "phi"):
                    names.add(f"%{instruction.dest}")
                elif instruction.traits.kind == "store" and (word := _SPILL.fullmatch(instruction.operands[0])):
                    words.add(word.group(1))
    result = set[int]()
    for instruction in instructions:
        spilled = instruction.traits.kind == "store" and _SPILL.fullmatch(instruction.operands[0])
        if names.isdisjoint(instruction.operands) or instruction.traits.kind in ("move", "phi") or spilled:
            continue
        if instruction.traits.kind == "store":
            continue  # into the descriptor of a SparseCore program, whose image is among the constants
        if instruction.opcode == "sadd.s32" and _is_only_stored(f"%{instruction.dest}", instructions):
            continue
        base = _BASE.fullmatch(instruction.operands[0]) if instruction.opcode == "scalar_lea.hbm" else None
        if base is None:
            raise NeighbourTableError(f"the address of the program's constants is used in {instruction.text!r}")
        result.add(int(base.group(1)))
    return frozenset(result)


def _is_only_stored(name: str, instructions: Sequence[Instruction]) -> bool:
    """True if a register, and what is added to it, go into stores alone."""
    names, count = {name}, 0
    while count < len(names):
        count = len(names)
        for instruction in instructions:
            if names.isdisjoint(instruction.operands) or instruction.traits.kind == "store":
                continue
            if instruction.opcode != "sadd.s32":
                return False
            names.add(f"%{instruction.dest}")
    return True


def images_among(top_level: Program, allocations: Set[int]) -> Set[int]:
    """Return the constants that are programs which set SparseCores up: a descriptor says where they lie."""
    bases: dict[str, int] = {}  # by register
    result = set[int]()
    for instruction in top_level.instructions:
        if instruction.opcode == "scalar_lea.hbm" and (base := _BASE.fullmatch(instruction.operands[0])):
            bases[f"%{instruction.dest}"] = int(base.group(1))
        elif instruction.traits.kind == "store" and instruction.operands[1] in bases:
            place = DESCRIPTOR_WORD.fullmatch(instruction.operands[0])
            if place is not None and place.group(1) == IMAGE_PLACE:
                result.add(bases[instruction.operands[1]])
    return allocations & result


def constant_contents(
    segment: bytes,
    allocations: Set[int],
    operands: Sequence[ConstantOperand],
    others: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, Sequence[int]]:
    """Return the constants as words, by the number of their allocation.

    Args:
      segment: HBM bytes of all constants.
      operands: with known sizes.
      others: bytes of constants that are not operands. Any other is taken to fit into one slot.

    Raises:
      NeighbourTableError: it does not fit.
    """
    if allocations and not segment:
        raise NeighbourTableError("the program's constants were not found in its binary")
    sizes = {**others} | {operand.allocation: operand.operand.padded_words * _WORD_BYTES for operand in operands}
    slots = {allocation: -(-sizes.get(allocation, 1) // _SLOT_BYTES) for allocation in sorted(allocations)}
    end = -(-len(segment) // _SLOT_BYTES)
    # SparseCore programs, if any, come first in the segment.
    before = end - sum(slots.values())
    if before < 0 or (before and slots.keys() - sizes.keys()):
        raise NeighbourTableError(
            f"{len(slots)} constants take {sum(slots.values())} times {_SLOT_BYTES:,} bytes, and those of the compiled "
            f"program {end} times"
        )
    result: dict[int, Sequence[int]] = {}
    at = before * _SLOT_BYTES
    for allocation, count in slots.items():
        part = segment[at : at + count * _SLOT_BYTES]
        result[allocation] = array("I", part[: len(part) // _WORD_BYTES * _WORD_BYTES])
        at += count * _SLOT_BYTES
    for operand in operands:
        _check_padding(operand, result[operand.allocation])
    return result


def _check_padding(constant: ConstantOperand, words: Sequence[int]) -> None:
    """Check that only padding follows a list of words."""
    operand = constant.operand
    if len(operand.shape) == 1 and operand.dtype in ("s32", "u32", "f32"):
        end = -(-constant.words // _ROW_WORDS) * _ROW_WORDS
        if end > len(words) or any(word != _PADDING for word in words[constant.words : end]):
            raise NeighbourTableError(
                f"operand {operand.index} of {constant.operation} is a constant of {constant.words} words, which is "
                "not what the compiled program holds there"
            )
