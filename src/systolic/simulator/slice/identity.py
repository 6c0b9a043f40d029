"""Find the words of scalar memory by which a program knows on which device it runs.

The runtime writes them. In the listing they are allocations that are loaded and never stored. A comment names the chip
and the core; the others have none, and are known by their order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from systolic.simulator.errors import UnknownWordsError
from systolic.simulator.reading.listing import Instruction, Program
from systolic.simulator.slice.launch import LAUNCHED
from systolic.simulator.slice.route_pointers import ROUTES_AT, route_pointers
from systolic.simulator.sparse_core.launch import DESCRIPTOR_WORD, IMAGE_PLACE

Word = Literal["chip", "core", "partition", "replica", "assignment", "constants", "routes"]

_NAMED: Mapping[str, Word] = {
    **dict.fromkeys(("logical chip id", "physical chip id"), "chip"),
    "core id": "core",
    "hbm offset": "constants",
}
# Of a called operation, by rising number. "assignment" is a pointer to a table, partition → device.
_UNNAMED: tuple[Word, ...] = ("partition", "replica", "assignment")
# Another name of a core's own number, if it is also the target core's.
_OWN_CORE = "remote-core-idx"
_WORD = re.compile(r"\[smem:\[#(allocation\d+)\]\]", re.ASCII)
_THROUGH = re.compile(r"\[smem:\[(%\w+)\]\]", re.ASCII)  # an address that was selected before
_REGISTER = re.compile(r"%\w+", re.ASCII)
_USED = re.compile(r"#(\w+)", re.ASCII)

# Where a program's constants lie in HBM, after the allocation that names one: further than all that it writes, even
# where its temporaries fill HBM. Chips whose addresses count 512 bytes have 32 GiB at most, others up to 96 GiB.
_BEHIND_32_GIB = 34 << 30
_BEHIND_96_GIB = 102 << 30
_WIDE_ADDRESSES = 512
# And the table of the assignment: above all that a program writes, whose results would take its place.
_ASSIGNMENT_AT_BYTES = (1 << 37) - (1 << 25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The words of one device's memory that identify it, and words that are the same on all."""

    chip: int  # number of its chip
    partition: int  # its place in the mesh
    first_core: int  # number of its first core on the chip
    constants: int  # where the program's constants begin
    assignment: int  # where the table of the assignment lies

    def value(self, word: Word, core: int) -> int:
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
    """Return the begin of a program's constants, on a chip with such addresses in HBM."""
    return (_BEHIND_32_GIB if pointer_bytes >= _WIDE_ADDRESSES else _BEHIND_96_GIB) // pointer_bytes


def assignment_at(pointer_bytes: int) -> int:
    """Return the begin of the table of the assignment, on such a chip."""
    return _ASSIGNMENT_AT_BYTES // pointer_bytes


def identity_words(program: Program, *, remote: bool, top_level: bool) -> dict[str, Word]:
    """Return the allocations that tell a program on which device it runs.

    Args:
      remote: the program acts on other devices.
      top_level: it calls the others.

    Raises:
      UnknownWordsError: more words than the runtime is known to write.
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
    routes = route_pointers(program)
    words |= dict.fromkeys(routes, "routes")
    unnamed = [name for name in unnamed if name not in routes]
    if top_level:
        places, handed_on = _descriptor_places(program)
        images: dict[str, Word] = {name: "constants" for name, place in places.items() if place == IMAGE_PLACE}
        words |= images
        named_elsewhere = {*images, *handed_on, *_flags(program)}
        unnamed = [name for name in unnamed if name not in named_elsewhere]
    unnamed.sort(key=lambda allocation: int(allocation.removeprefix("allocation")))
    # The top-level program also reads a pointer to its results, whose number is lower.
    kinds: tuple[Word | None, ...] = (None, *_UNNAMED) if top_level else _UNNAMED
    if len(unnamed) > len(kinds):
        unnamed = _before_placeholders(program, unnamed)
    if len(unnamed) > len(kinds):
        raise UnknownWordsError(
            f"{program.name}: reads {len(unnamed)} words of scalar memory that it never writes, where the runtime "
            f"writes {len(kinds)}: {', '.join(unnamed)}"
        )
    words |= {name: kind for name, kind in zip(unnamed, kinds, strict=False) if kind is not None}
    return words


def row_words(program: Program, words: Mapping[str, Word]) -> frozenset[str]:
    """Return allocations of the chip's number that only choose rows of a table: the core is added, then multiplied."""
    users: dict[str, list[Instruction]] = {}
    for instruction in program.instructions:
        for name in {name for text in instruction.operands for name in _REGISTER.findall(text)}:
            users.setdefault(name, []).append(instruction)

    def only(opcode: str, loaded: Instruction) -> list[Instruction]:
        result = users.get(f"%{loaded.dest}", [])
        return result if all(user.opcode.startswith(opcode) for user in result) else []

    chooses: dict[str, bool] = {}
    for instruction in program.instructions:
        word = _WORD.fullmatch(instruction.operands[0]) if instruction.traits.kind == "load" else None
        if word is not None and words.get(word[1]) == "chip":
            sums = only("sadd.", instruction)
            chooses[word[1]] = chooses.get(word[1], True) and any(sums) and all(only("smul.", one) for one in sums)
    return frozenset(allocation for allocation, alone in chooses.items() if alone)


def _before_placeholders(program: Program, words: list[str]) -> list[str]:
    """Return words with a lower number than the words that loads read in place of others which they must not read.

    The compiler lets a load that is not due read a word of its own, by a selected address. Where it never is due, the
    load names that word. The runtime's words come before all of these.
    """
    selected: set[str] = set()
    used: set[str] = set()
    for instruction in program.instructions:
        if "#" in instruction.text:
            names = selected if instruction.opcode == "scalar_select" else used
            names.update(_USED.findall(" ".join(instruction.operands)))
    numbers = [int(name.removeprefix("allocation")) for name in selected - used if name.startswith("allocation")]
    first = min(numbers, default=math.inf)
    return [word for word in words if int(word.removeprefix("allocation")) < first]


def _flags(program: Program) -> set[str]:
    """Return words that are only compared with zero or one: whether to run at all, whether a step was done before."""
    loaded: dict[str, str] = {}
    compared: set[str] = set()
    used: set[str] = set()
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            result = {loaded[text] for text in instruction.operands if text in loaded}
            if instruction.opcode.startswith("scmp.ne") and instruction.operands[1] in ("0", "1"):
                compared |= result
            else:
                used |= result
        for instruction in bundle.instructions:
            word = _WORD.fullmatch(instruction.operands[0]) if instruction.traits.kind == "load" else None
            if word is not None and instruction.dest is not None:
                loaded["%" + instruction.dest] = word.group(1)
    return compared - used


def _descriptor_places(program: Program) -> tuple[dict[str, str], set[str]]:
    """Return words that go into descriptors of SparseCore programs, with the first offset there; and if only there."""
    holds: dict[str, str] = {}  # register → word that is in it, or that a number was added to
    places: dict[str, str] = {}
    others: set[str] = set()
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            if instruction.opcode == "vtrace" and instruction.operands == (LAUNCHED,):
                others.clear()
            kind, operands = instruction.traits.kind, instruction.operands
            for text in {text for text in operands if text in holds}:
                stored = DESCRIPTOR_WORD.fullmatch(operands[0]) if kind == "store" and text == operands[1] else None
                if stored is not None:
                    places.setdefault(holds[text], stored[1])
                elif instruction.opcode == "sadd.s32" and instruction.dest is not None:
                    holds["%" + instruction.dest] = holds[text]
                elif kind != "ignored" and not (instruction.opcode.startswith("scmp.ne") and operands[1] in ("0", "1")):
                    others.add(holds[text])
        for instruction in bundle.instructions:
            word = _WORD.fullmatch(instruction.operands[0]) if instruction.traits.kind == "load" else None
            if word is not None and instruction.dest is not None:
                holds["%" + instruction.dest] = word.group(1)
        for instruction in bundle.instructions:
            if instruction.opcode == "int_to_ptr.hbm":  # of "[resolvable:$false] %s4", which this bundle may load
                others.update(holds[text] for text in instruction.operands[0].split() if text in holds)
    return places, places.keys() - others


def _loads(program: Program) -> tuple[dict[str, list[str]], set[str]]:
    """Return comments of all loads of words after the launch barrier, and allocations mentioned elsewhere."""
    loads: dict[str, list[str]] = {}
    others: set[str] = set()
    selected: dict[str, list[str]] = {}  # a register that holds one of some addresses
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            if instruction.opcode == "vtrace" and instruction.operands == (LAUNCHED,):
                loads.clear()
            operands = instruction.operands
            if instruction.traits.kind in ("select", "move"):
                text = " ".join(operands)
                before = (instruction for name in _REGISTER.findall(text) for instruction in selected.get(name, ()))
                selected[f"%{instruction.dest}"] = [*_USED.findall(text), *before]
            elif instruction.traits.kind == "load" and instruction.comment and (at := _THROUGH.fullmatch(operands[0])):
                for selecting in selected.get(at.group(1), ()):
                    loads.setdefault(selecting, []).append(instruction.comment.strip())
            word = _WORD.fullmatch(operands[0]) if instruction.traits.kind == "load" else None
            if word is not None:
                loads.setdefault(word.group(1), []).append(instruction.comment.strip())
                operands = operands[1:]
            if "#" in instruction.text:
                others.update(_USED.findall(" ".join(operands)))
    return loads, others
