"""The descriptor of 128 words with which a TensorCore queues a program for a SparseCore.

The sequencer finds it at the end of its scalar memory. Three of its words are known from listings and sizes: the number
of the program, its size in HBM, and its address there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.hardware.values import MASK, Unknown
from systolic.simulator.sparse_core.listing import IMAGE_GRANULES
from systolic.simulator.sparse_core.program import SparseProgram

DESCRIPTOR_GRANULES = 16
_WORDS = 128
_AT = 0x3F80
_NUMBER, _GRANULES, _CODE = 0x53, 0x5A, 0x5B
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


def programs_by_launch(
    programs: Sequence[SparseProgram], orders: Sequence[Sequence[str]]
) -> Callable[[Launch], SparseProgram]:
    """Find a launch's program: by its size, and by its number if several have that size.

    Args:
      programs: all, in the order of compilation.
      orders: names of launched programs by number, for each way of numbering them. Sizes tell which one it is.
    """
    starts = [program for program in programs if program.name.startswith(_START)]
    others = [program for program in programs if not program.name.startswith(_START)]
    seen: list[int] = []
    possible = list(orders)

    def find(launch: Launch) -> SparseProgram:
        if launch.number == MASK or launch.granules == IMAGE_GRANULES:
            if launch.code not in seen:
                seen.append(launch.code)
            if seen.index(launch.code) < len(starts):
                return starts[seen.index(launch.code)]
            raise SimulationError("a SparseCore is set up by a program of which there is no listing")
        sized = [program for program in others if program.granules == launch.code_granules]
        by_name = {program.name: program for program in sized}
        fitting = [order for order in possible if launch.number < len(order) and order[launch.number] in by_name]
        if fitting:
            possible[:] = fitting
            return by_name[fitting[0][launch.number]]
        if len(sized) == 1:
            return sized[0]
        raise SimulationError(
            f"a SparseCore is to run program {launch.number} of {launch.granules} granules, "
            f"which is none of {', '.join(f'{other.name} ({other.granules})' for other in others) or 'no listings'}"
        )

    return find
