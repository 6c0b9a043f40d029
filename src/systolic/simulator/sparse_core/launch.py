"""The descriptor of 128 words with which a TensorCore queues a program for a SparseCore.

The sequencer finds it at the end of its scalar memory. Three of its words are known from listings and sizes: the number
of the program, its size in HBM, and its address there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.values import MASK, Unknown
from systolic.simulator.reading.listing import Program
from systolic.simulator.sparse_core.listing import IMAGE_GRANULES
from systolic.simulator.sparse_core.program import SparseProgram

DESCRIPTOR_GRANULES = 16
_WORDS = 128
_AT = 0x3F80
_NUMBER, _GRANULES, _CODE = 0x53, 0x5A, 0x5B
# A word of a descriptor in the TensorCore's program, by its place.
DESCRIPTOR_WORD = re.compile(r"\[smem:\[#allocation\d+ \+ \$(0x\w+)\]\]", re.ASCII)
IMAGE_PLACE = f"{_CODE:#x}"  # the program is among the constants
_NUMBER_PLACE, _SIZE_PLACE = f"{_NUMBER:#x}", f"{_GRANULES:#x}"
_TABLES = 0x7F  # where the tables that the program looks up begin in HBM: right before its code
# Sets the core up before the first program, and cleans it after the last: launched with the size of its padded image,
# and by libtpu 0.0.52 with a number like any other.
_START = "sc-start."


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    words: tuple[int | Unknown, ...]
    number: int  # of the program; MASK for setting up and cleaning
    granules: int  # of its tables and its code
    code_granules: int
    code: int  # where the program lies in HBM

    @staticmethod
    def read(words: Sequence[int | Unknown]) -> Launch:
        """Read a descriptor; raise SimulationError if it is cut, or a needed word is not known."""
        if len(words) != _WORDS:
            raise SimulationError(f"a SparseCore is launched with a descriptor of {len(words)} words")
        number, granules, code = (words[place] for place in (_NUMBER, _GRANULES, _CODE))
        if isinstance(number, Unknown) or isinstance(granules, Unknown) or isinstance(code, Unknown):
            raise SimulationError("which program a SparseCore is to run is not known")
        tables = words[_TABLES]
        table_granules = code - tables if isinstance(tables, int) and 0 < code - tables < granules else 0
        return Launch(
            words=tuple(words),
            number=number,
            granules=granules,
            code_granules=granules - table_granules,
            code=code,
        )

    def memory(self, chip: int) -> dict[int, int | Unknown]:
        """Return the sequencer's scalar memory at the program's begin. Its first word is the number of the chip."""
        return {0: chip, **{_AT + place: word for place, word in enumerate(self.words)}}


def names_by_number(top_level: Program, launches: Sequence[str]) -> Mapping[int, str]:
    """Return the names of SparseCore programs by the number that stands in their descriptors.

    How the compiler numbers them depends on its version; but the TensorCore's program has its launches in the order of
    the schedule, and each one stores its program's number. Empty if there are not as many of both.

    Args:
      launches: names of launched programs, as they are scheduled.
    """
    constants: dict[str, int] = {}  # by register
    stored: dict[str, list[int | None]] = {_NUMBER_PLACE: [], _SIZE_PLACE: []}  # by each launch; None: no constant
    for instruction in top_level.instructions:
        if instruction.opcode == "smov" and instruction.operands[0].isdecimal():
            constants[f"%{instruction.dest}"] = int(instruction.operands[0])
        elif instruction.traits.kind == "store" and (word := DESCRIPTOR_WORD.fullmatch(instruction.operands[0])):
            stored.get(word[1], []).append(constants.get(instruction.operands[1]))
    numbers = [
        number
        for number, granules in zip(*stored.values(), strict=False)
        if number not in (None, MASK) and granules not in (None, IMAGE_GRANULES)
    ]
    return dict(zip(numbers, launches, strict=True)) if len(numbers) == len(launches) else {}


def programs_by_launch(
    programs: Sequence[SparseProgram], names: Mapping[int, str]
) -> Callable[[Launch], SparseProgram]:
    """Find a launch's program: by its number, or where that has no name by its size, if only one has that size.

    A program with the number's name but another size is refused: then no name can be trusted.

    Args:
      programs: all, in the order of compilation.
      names: of launched programs, by number.
    """
    starts = [program for program in programs if program.name.startswith(_START)]
    others = [program for program in programs if not program.name.startswith(_START)]
    seen: list[int] = []

    def find(launch: Launch) -> SparseProgram:
        if launch.number == MASK or launch.granules == IMAGE_GRANULES:
            if launch.code not in seen:
                seen.append(launch.code)
            if seen.index(launch.code) < len(starts):
                return starts[seen.index(launch.code)]
            raise SimulationError("a SparseCore is set up by a program of which there is no listing")
        sized = [program for program in others if program.granules == launch.code_granules]
        if launch.number in names:
            sized = [program for program in sized if program.name == names[launch.number]]
        if len(sized) == 1:
            return sized[0]
        raise SimulationError(
            f"a SparseCore is to run program {launch.number} of {launch.granules} granules, "
            f"which is none of {', '.join(f'{other.name} ({other.granules})' for other in others) or 'no listings'}"
        )

    return find
