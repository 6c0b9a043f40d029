"""The compiler's table of what each bundle issues: how many instructions on which unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.blocks import Block

# The table's names for units, and ours.
_UNITS = {
    "MXU": "mxu",
    "MATMUL": "mxu",  # since libtpu 0.0.52, which counts the loading of weights apart
    "MATPUSH": "push",
    "XLU": "xlu",
    "VALU": "vpu",
    "VPOP": "pop",
    "EUP": "eup",
    "VLOAD": "load",
    "VLOAD:FILL": "fill",
    "VSTORE": "store",
    "VSTORE:SPILL": "spill",
    "SALU": "scalar",
}

_MAX_ISSUED = 1000  # by a bundle on a unit; four is what has been seen


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUse:
    """Instructions that each basic block of a program issues, by unit, and the slots that there are in a cycle."""

    slots: Mapping[str, int]
    issued: tuple[tuple[int, ...], ...]  # of each block, in the order of `slots`

    def of_block(self, number: int, count: int) -> dict[str, int]:
        """Return the instructions of a block that runs `count` times; idle units are left out."""
        issued = self.issued[number]
        return {unit: count * issued[at] for at, unit in enumerate(self.slots) if issued[at]}

    def total(self, counts: Sequence[int]) -> dict[str, int]:
        """Return the instructions of blocks that run this often."""
        return {
            unit: sum(count * block[at] for count, block in zip(counts, self.issued, strict=True))
            for at, unit in enumerate(self.slots)
        }


def parse_utilization(name: str, text: str, blocks: Sequence[Block]) -> BlockUse:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        units = [_UNITS[unit.strip()] for unit in lines[1].split(",")]
        slots = [int(word) for word in lines[2].split()]
        use_of = {line: tuple(int(word) for word in line.split()) for line in set(lines[4:])}  # most lines come again
    except (LookupError, ValueError) as error:
        raise SimulationError(f"{name}: the table of units is of a form that is not known: {lines[:4]}") from error
    if len({*units}) < len(units) or min(slots, default=0) < 1 or any(min(use) < 0 for use in use_of.values()):
        raise SimulationError(f"{name}: the table of units has a unit twice or a number that counts nothing")
    if max(max(use, default=0) for use in (slots, *use_of.values())) > _MAX_ISSUED:
        raise SimulationError(f"{name}: the table of units has a bundle of more than {_MAX_ISSUED} instructions")
    bundles = blocks[-1].last + 1
    rows = lines[4:]
    if len(rows) != bundles or any(len(use) != len(units) for use in use_of.values()) or len(slots) != len(units):
        raise SimulationError(f"{name}: the table of units has {len(rows)} rows, the program {bundles} bundles")
    return BlockUse(
        slots=dict(zip(units, slots, strict=True)),
        issued=tuple(_issued(rows[block.first : block.last + 1], use_of) for block in blocks),
    )


def _issued(rows: Sequence[str], use_of: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    uses = [[count * issued for issued in use_of[row]] for row, count in Counter(rows).items()]
    return tuple(map(sum, zip(*uses, strict=True)))
