"""What XLA's collectives find in the constants by which they know their neighbours.

A table of neighbours has four words for each device: its place in the group, or on the ring; the next device; the one
before; and in some the place on the ring. It is read from the compiled program's binary. Whose row is whose, and
whether neighbours are devices or partitions, is the business of the program, which is executed.

An all-to-all's tables are made anew: the group and the place in it of every partition, and the devices in the order of
groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.collectives import HloCollective
from systolic.simulator.slice.constants import Constant
from systolic.simulator.slice.facts import SliceFacts

_ROW_WORDS = 4


class NeighbourTableError(SimulationError):
    """What a collective's constants hold is not known for certain; the message says why."""


def neighbour_tables(facts: SliceFacts, assignment: Sequence[int]) -> dict[tuple[str, int], Sequence[int]]:
    """What constants hold by which operations find their neighbours, by operation and operand.

    Args:
      assignment: device ids by partition.

    Raises:
      NeighbourTableError: it is not known for certain.
    """
    count = len(assignment)
    wanted: list[Constant] = []
    found: dict[tuple[str, int], Sequence[int]] = {}
    for constant in facts.constants:
        collective = facts.hlo.collectives.get(constant.operation)
        if collective is None:
            continue
        if collective.kind == "all-to-all":
            found[constant.operation, constant.index] = _of_all_to_all(collective, constant, assignment)
        elif constant.words == _ROW_WORDS * count:
            wanted.append(constant)
        elif constant.words:
            raise NeighbourTableError(
                f"{constant.operation}: a constant of {constant.words} words, which is no table of {count} devices"
            )
    places = sorted({constant.place for constant in wanted})
    if not wanted:
        return found
    if len(places) != len(facts.tables):
        names = ", ".join(sorted({constant.operation for constant in wanted}))
        raise NeighbourTableError(
            f"{names}: {len(places)} tables of neighbours are used, and {len(facts.tables)} are in the compiled program"
        )
    tables: Mapping[int, Sequence[int]] = dict(zip(places, facts.tables, strict=True))
    return found | {(constant.operation, constant.index): tables[constant.place] for constant in wanted}


def _of_all_to_all(collective: HloCollective, constant: Constant, assignment: Sequence[int]) -> Sequence[int]:
    count = len(assignment)
    if not collective.groups:
        raise NeighbourTableError(f"{collective.name}: its groups are in a form that is not known")
    if constant.words == count:
        return [assignment[partition] for group in collective.groups for partition in group]
    if constant.words != 2 * count:
        raise NeighbourTableError(f"{collective.name}: a constant of {constant.words} words for {count} devices")
    places = [0] * constant.words
    for number, group in enumerate(collective.groups):
        for place, partition in enumerate(group):
            places[2 * partition : 2 * partition + 2] = number, place
    return places
