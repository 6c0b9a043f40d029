"""Words of scalar memory by which a program knows on which device it runs: what each of them holds.

The runtime writes them. In the listing they are allocations that are loaded and never stored. A comment names the chip
and the core; the others have none, and are known by their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.listing import Instruction, Program
from systolic.simulator.slice.launch import LAUNCHED
from systolic.simulator.translating.scalar import ROUTES_WORD

Word = Literal["chip", "core", "partition", "replica", "assignment", "constants", "routes"]

_NAMED: Mapping[str, Word] = {
    **dict.fromkeys(("logical chip id", "physical chip id"), "chip"),
    "core id": "core",
    "hbm offset": "constants",
}
# Of a called operation, by rising number. "assignment" is a pointer to a table, partition → device.
_UNNAMED: tuple[Word, ...] = ("partition", "replica", "assignment")
# What a core's own number is called as well, where it is also that of the core that is meant.
_OWN_CORE = "remote-core-idx"
_ADDED = re.compile(r"\[smem:\[(%\w+) \+ (%\w+)\]\]", re.ASCII)
_WORD = re.compile(r"\[smem:\[#(allocation\d+)\]\]", re.ASCII)
_USED = re.compile(r"#(\w+)", re.ASCII)

# Where a program's constants lie in HBM, behind the allocation that names one: further than all that it writes, even
# where its temporaries fill HBM. Chips whose addresses count 512 bytes have 32 GiB at most, others up to 96 GiB.
_BEHIND_32_GIB = 34 << 30
_BEHIND_96_GIB = 102 << 30
_WIDE_ADDRESSES = 512
# And the table of the assignment: above all that a program writes, whose results would take its place.
_ASSIGNMENT_AT_BYTES = (1 << 37) - (1 << 25)


# In scalar memory, above all that a program allocates: a pointer to a chip's table of routes, and the table.
ROUTES_AT = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The words of one device's memory that say which it is, and those that are the same on all.

    Attributes:
      chip: number of its chip.
      partition: its place in the mesh.
      first_core: number of its first core on the chip.
      constants: where the program's constants begin.
      assignment: where the table of the assignment lies.
    """

    chip: int
    partition: int
    first_core: int
    constants: int
    assignment: int

    def value(self, word: Word, core: int) -> int:
        """What a word holds on one of the device's cores."""
        return {
            "chip": self.chip,
            "core": self.first_core + core,
            "partition": self.partition,
            "replica": 0,
            "assignment": self.assignment,
            "constants": self.constants,
            "routes": ROUTES_AT,
        }[word]


def constants_from(pointer_bytes: int) -> int:
    """Where a program's constants begin, on a chip whose addresses in HBM count so many bytes."""
    return (_BEHIND_32_GIB if pointer_bytes >= _WIDE_ADDRESSES else _BEHIND_96_GIB) // pointer_bytes


def assignment_at(pointer_bytes: int) -> int:
    """Where the table of the assignment lies, likewise."""
    return _ASSIGNMENT_AT_BYTES // pointer_bytes


def identity_words(program: Program, *, remote: bool, top_level: bool) -> dict[str, Word]:
    """Finds the allocations that say on which device a program runs.

    Args:
      remote: the program acts on other devices.
      top_level: it calls the others.

    Raises:
      SimulationError: there are words of which it is not known what they hold.
    """
    words: dict[str, Word] = {}
    unnamed: list[str] = []
    loads, mentioned = _loads(program)
    for allocation, comments in loads.items():
        named: set[Word] = {word for comment in comments for text, word in _NAMED.items() if text in comment}
        if len(named) == 1:
            words[allocation] = named.pop()
        elif not named and any(_OWN_CORE in comment for comment in comments):
            words[allocation] = "core"
        elif not any(comments) and allocation not in mentioned:
            unnamed.append(allocation)
    if not top_level and not remote:
        return words
    routes = _route_pointers(program)
    words |= dict.fromkeys(routes, "routes")
    unnamed = [each for each in unnamed if each not in routes]
    if top_level:
        unnamed = [each for each in unnamed if each not in _flags(program)]
    unnamed.sort(key=lambda allocation: int(allocation.removeprefix("allocation")))
    # The top-level program also reads a pointer to its results, whose number is lower.
    kinds: tuple[Word | None, ...] = (None, *_UNNAMED) if top_level else _UNNAMED
    if len(unnamed) > len(kinds):
        raise SimulationError(f"{program.name}: what the words {', '.join(unnamed)} hold is not known")
    words |= {name: kind for name, kind in zip(unnamed, kinds, strict=False) if kind is not None}
    return words


def without_route_pointers(program: Program) -> Program:
    """The top-level program without its own stores of where the table of routes is: the simulator lays it elsewhere."""
    pointers = _route_pointers(program)

    def stays(each: Instruction) -> bool:
        word = _WORD.fullmatch(each.operands[0]) if each.opcode == "sst" else None
        return word is None or word.group(1) not in pointers

    if not pointers:
        return program
    bundles = [replace(bundle, instructions=tuple(filter(stays, bundle.instructions))) for bundle in program.bundles]
    return replace(program, bundles=tuple(bundles))


def _route_pointers(program: Program) -> set[str]:
    """Words from which the program finds the table of routes: to what they hold it adds where that stands."""
    instructions = [each for bundle in program.bundles for each in bundle.instructions]
    added = {f"%{each.dest}" for each in instructions if each.opcode == "reloc" and each.operands == (ROUTES_WORD,)}
    bases = {
        found.group(1)
        for each in instructions
        if each.opcode == "sld" and (found := _ADDED.fullmatch(each.operands[0])) and found.group(2) in added
    }
    loaded = {
        each.operands[-1].split()[-1]
        for each in instructions
        if each.opcode == "int_to_ptr.smem" and f"%{each.dest}" in bases
    }
    return {
        word.group(1)
        for each in instructions
        if each.opcode == "sld" and f"%{each.dest}" in loaded and (word := _WORD.fullmatch(each.operands[0]))
    }


def _flags(program: Program) -> set[str]:
    """Words that are only compared with zero or one: whether to run at all, whether something was done before."""
    loaded: dict[str, str] = {}
    compared: set[str] = set()
    used: set[str] = set()
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            found = {loaded[text] for text in instruction.operands if text in loaded}
            if instruction.opcode.startswith("scmp.ne") and instruction.operands[1] in ("0", "1"):
                compared |= found
            else:
                used |= found
        for instruction in bundle.instructions:
            word = _WORD.fullmatch(instruction.operands[0]) if instruction.opcode == "sld" else None
            if word is not None and instruction.dest is not None:
                loaded["%" + instruction.dest] = word.group(1)
    return compared - used


def _loads(program: Program) -> tuple[dict[str, list[str]], set[str]]:
    """Comments of all loads of words, behind the barrier of the launch; and allocations mentioned in other places."""
    loads: dict[str, list[str]] = {}
    others: set[str] = set()
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            if instruction.opcode == "vtrace" and instruction.operands == (LAUNCHED,):
                loads.clear()
            operands = instruction.operands
            word = _WORD.fullmatch(operands[0]) if instruction.opcode == "sld" else None
            if word is not None:
                loads.setdefault(word.group(1), []).append(instruction.comment.strip())
                operands = operands[1:]
            others.update(_USED.findall(" ".join(operands)))
    return loads, others
