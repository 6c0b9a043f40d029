"""Read a tile's streams, as far as the listing names them: their memories and numbers of words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.sparse_core.listing import SparseInstruction

_SPACE = re.compile(r"\[([a-z]+)(?:4b)?:", re.ASCII)
_KIND = re.compile(r"stream\.(linear|strided|indirect|indirect_vreg)\.(gather|scatter)(?:\.\w+)*", re.ASCII)
_WRITES = "DstOpCode:WRITE"
_MASK_STEPS = 4  # a `vcmask` counts four to a lane
LANES_BELOW = "vgt.u32"  # of a value in all lanes and the lanes' numbers: a mask of that many lanes
SPACES = ("hbm", "tilespmem", "spmem", "smem", "simem", "timem", "vmem")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream. `words` is the operand with the number of words, for each index if it has a list."""

    source: str
    destination: str
    words: str
    count: str | None  # operand that says how many indices the list has; None: it has none
    mask: str | None  # mask register of the lanes whose indices count; None: all
    flag: str


def read_stream(instruction: SparseInstruction) -> Stream:
    """Read a stream; raise `SimulationError` for an unknown form."""
    kind = _KIND.fullmatch(instruction.opcode)
    others = [text for text in instruction.operands if not text.startswith("[")]
    places = [text for text in (*instruction.dests, *instruction.operands) if text.startswith("[")]
    flags = [text for text in places if text.startswith("[sflag:")]
    ends = [text for text in places if not text.startswith("[sflag:")]
    if kind is None or len(flags) != 1 or len(ends) != 2 or not others:
        raise SimulationError(f"a stream that is not understood: {instruction.text}")
    count = mask = None
    if kind[1] == "indirect":  # words of a row, where the list is, how long it is
        count = others[2]
    elif kind[1] == "indirect_vreg":  # words of a row, the vector register with the list, the mask
        mask = others[2]
    return Stream(
        source=space_of(ends[1], instruction),
        destination=space_of(ends[0], instruction),
        words=others[0],
        count=count,
        mask=mask,
        flag=flags[0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralCopy:
    """A copy to this device or another. Fields without a type of their own are operands."""

    source: str
    destination: str
    flag: str  # that it signals where it lands
    source_flag: str
    granules: str
    target: str  # names the device


def read_general_copy(instruction: SparseInstruction) -> GeneralCopy:
    """Read a `dma.general`; raise `SimulationError` for an unknown form."""
    named = dict(text.split(":", 1) for text in instruction.operands if text[0] != "[")
    (to, flag), sources = instruction.dests, [text for text in instruction.operands if text[0] == "["]
    if not {"length", "ici_dest"} <= named.keys() or len(sources) < 2 or named.get("dma_misc") != _WRITES:
        raise SimulationError(f"a copy that is not understood: {instruction.text}")
    return GeneralCopy(
        source=space_of(sources[0], instruction),
        destination=space_of(to, instruction),
        flag=flag,
        source_flag=sources[1],
        granules=named["length"],
        target=named["ici_dest"],
    )


def space_of(place: str, instruction: SparseInstruction) -> str:
    """Return the memory of a place such as `[hbm4b:s2+s3]`; raise `SimulationError` for an unknown one."""
    match = _SPACE.match(place)
    if match is None or match[1] not in SPACES:
        raise SimulationError(f"a memory that is not known: {instruction.text}")
    return match[1]


def mask_lanes(instruction: SparseInstruction) -> int | None:
    """Return the lanes of a mask with immediate bits, a bit for each; None for other masks."""
    bits = instruction.operands[-1]
    if not bits.startswith("$"):
        return None
    if instruction.opcode == "vmmov":
        return int(bits[1:], 0)
    if instruction.opcode == "vcmask":  # from the low byte's lane on, up to the high byte's
        last, first = divmod(int(bits[1:], 0), 256)
        return (1 << (last + 1) // _MASK_STEPS) - (1 << first // _MASK_STEPS)
    return None
