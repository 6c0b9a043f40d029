"""Tables of routes: how programs name other chips where a slice has more chips than a table has entries.

The runtime leaves each chip a table in scalar memory. Row `chip * 16 + entry` holds in its low byte the target of that
chip's entry; row `chip`, in bits 24 to 27, the entry by which the reader reaches that chip. A program that knows the
chip looks up the entry there, so that any numbering serves it. The constants of a ring hold entries that the compiler
knew: a device's neighbors', with every device's place on the ring. Their targets follow from the places; XLA's own code
then walks that ring through the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from systolic.chips import SliceShape
from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.collectives import HloCollective
from systolic.simulator.slice.constants import NeighbourTableError
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.route_pointers import ROUTES_AT
from systolic.simulator.slice.routes import Routes
from systolic.simulator.slice.schedules import names_no_entries
from systolic.simulator.translating.scalar import ROUTES_WORD

_POINTER = ROUTES_AT + int(ROUTES_WORD)
_TABLE = ROUTES_AT + 16  # in scalar memory, after the routes
_ENTRY_BIT = 24
_INVALID = 1 << 31
_ROW_WORDS = 4
# Rings leave one chip out where an axis does not close: they go there and come back on the others.
_MAX_HOPS = 2
_NOT_RINGS = ("all-to-all", "collective-permute")

Entries = dict[int, int]  # of one chip: entry → chip


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTables:
    """Targets of each chip's entries, by chip."""

    entries: tuple[Entries, ...]
    max_entries: int  # entries of a chip

    @staticmethod
    def of(shape: SliceShape, assignment: Sequence[int], facts: SliceFacts) -> RouteTables | None:
        """Return the tables; None if programs name chips by number.

        Raises:
          NeighbourTableError: a constant of the program names routes that are not known for certain.
        """
        limit = shape.links.route_entries
        if limit is None or shape.chips <= limit:
            return None
        routes = Routes(shape)
        entries: tuple[Entries, ...] = tuple({} for _ in range(shape.chips))
        for name, rows, collective in _tables(facts, shape.chips):
            for chip, entry, target in _ring(name, rows, collective, assignment):
                if len(routes.between(chip, target).links) > _MAX_HOPS or entries[chip].get(entry, target) != target:
                    raise NeighbourTableError(
                        f"{name}: entry {entry} of chip {chip}'s routes does not lead to {target}"
                    )
                entries[chip][entry] = target
        for chip, targets in enumerate(entries):
            for target in _near(shape, chip):
                if target not in targets.values() and len(targets) < limit:
                    targets[next(entry for entry in range(limit) if entry not in targets)] = target
        return RouteTables(entries=entries, max_entries=limit)

    def target(self, sender: int, entry: int) -> int:
        """Return the chip to which a chip's entry leads; raise SimulationError if it is not known."""
        target = self.entries[sender].get(entry)
        if target is None:
            raise SimulationError(
                f"chip {sender} sends by an entry of its table of routes, {entry}, of which it is not known where it "
                f"leads: in slices of more than {self.max_entries} chips a chip is taken to reach those one or two "
                "hops away, and its neighbours on rings"
            )
        return target

    def words(self) -> Iterator[dict[int, int]]:
        """Yield the scalar memory of each chip, by address."""
        rows = [_INVALID] * (len(self.entries) * self.max_entries)
        for chip, targets in enumerate(self.entries):
            for entry, target in targets.items():
                rows[chip * self.max_entries + entry] = target
        for targets in self.entries:
            entry_of = {target: entry for entry, target in targets.items()}
            # Chips that it can't reach are looked up as well, where nothing is sent there.
            nowhere = next((entry for entry in range(self.max_entries) if entry not in targets), 0)
            result = {_TABLE + row: word for row, word in enumerate(rows)}
            for target in range(len(self.entries)):
                result[_TABLE + target] |= entry_of.get(target, nowhere) << _ENTRY_BIT
            yield {_POINTER: _TABLE, **result}


def _tables(facts: SliceFacts, count: int) -> Iterator[tuple[str, np.ndarray, HloCollective]]:
    """Yield the ring tables: a row for each device, with its name and collective."""
    for constant in facts.constants.operands:
        name, collective = constant.operation, facts.hlo.collectives.get(constant.operation)
        if collective is None:
            continue
        if facts.constants.unknown:
            raise NeighbourTableError(f"{name}: {facts.constants.unknown}")
        words = facts.constants.contents[constant.allocation][: constant.words]
        if names_no_entries(words, collective, count):
            continue
        if collective.kind in _NOT_RINGS or constant.words != _ROW_WORDS * count:
            raise NeighbourTableError(
                f"{name}: this {collective.kind} goes over chips in between, by entries of their tables of routes, and "
                "where those lead is not known; on this chip it is simulated in slices of up to 16 chips"
            )
        yield name, np.array(words).reshape(count, _ROW_WORDS), collective


def _ring(
    name: str, rows: np.ndarray, collective: HloCollective, assignment: Sequence[int]
) -> set[tuple[int, int, int]]:
    """Return each ring chip's entries and the chips they lead to.

    A row holds the rank in the group, the entries that lead to the next and to the previous one, and the place on the
    ring. The ranks tell whether rows are by chip or by partition.
    """
    result: list[set[tuple[int, int, int]]] = []
    partitions: Mapping[int, int] = {chip: partition for partition, chip in enumerate(assignment)}
    for row_of in (range(len(assignment)), partitions):
        ring = set[tuple[int, int, int]]()
        for group in collective.groups:
            chips = [assignment[partition] for partition in group]
            ranks, places = ([int(rows[row_of[chip]][column]) for chip in chips] for column in (0, 3))
            if ranks != list(range(len(group))) or sorted(places) != ranks:
                break
            at = dict(zip(places, chips, strict=True))
            for place, chip in at.items():
                _, following, before, _ = map(int, rows[row_of[chip]])
                ring.add((chip, following, at[(place + 1) % len(at)]))
                ring.add((chip, before, at[place - 1 if place else len(at) - 1]))
        else:
            if ring and ring not in result:
                result.append(ring)
    if len(result) != 1:
        raise NeighbourTableError(f"{name}: its table of neighbours does not say who is next to whom")
    return result[0]


def _near(shape: SliceShape, chip: int) -> Iterator[int]:
    """Return chips one or two hops away along an axis."""
    here = shape.coords(chip)
    for axis, extent in enumerate(shape.extents):
        for step in (1, -1, 2, -2):
            place = here[axis] + step
            if shape.wrap[axis] or 0 <= place < extent:
                neighbour = shape.chip_at((*here[:axis], place % extent, *here[axis + 1 :]))
                if neighbour != chip:
                    yield neighbour
