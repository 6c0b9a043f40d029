"""Tables of neighbours, which XLA's collectives read from constants that no listing shows: they are made anew here.

A ring's table has four words for each device: its place in the group, the next device, the one before, and its place on
the ring. Whose row is whose is read off the listing: a program that loads the number of its chip and no partition finds
its row by device, another one by partition; one that also loads a pointer to the assignment of partitions to devices
keeps partitions for neighbours, else devices. With several such tables, each is a ring along one axis of the slice.

A ring goes through neighbours. Where more than one way round would do, nobody knows which XLA takes, and another one
would give a time that only looks right: then there is no table, but an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from systolic.chips import SliceShape
from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.collectives import HloCollective
from systolic.simulator.slice.identity import Word
from systolic.simulator.slice.routes import Routes


class NeighbourTableError(SimulationError):
    """A collective's table of neighbours cannot be made anew for certain; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaker:
    """Makes the tables of all collectives of a program on a slice.

    Attributes:
      routes: of the slice.
      assignment: device ids by partition.
    """

    shape: SliceShape
    routes: Routes
    assignment: Sequence[int]

    def tables(
        self, collective: HloCollective, constants: Sequence[CallOperand], words: Set[Word]
    ) -> Mapping[int, Sequence[int]]:
        """The contents of a collective's constants, by the operand's index.

        Args:
          constants: its operands of which nothing is said but that they are constants.
          words: what its program asks for to know on which device it runs.

        Raises:
          NeighbourTableError: it is not certain what they hold.
        """
        count = len(self.assignment)
        sizes = [math.prod(each.shape) for each in constants]
        if not constants:
            return {}
        if not collective.groups:
            raise NeighbourTableError(f"{collective.name}: its groups are in a form that is not known")
        if collective.kind == "all-to-all" and sizes[0] == 2 * count and set(sizes[1:]) <= {count}:
            places = [0] * (2 * count)
            for number, group in enumerate(collective.groups):
                for place, partition in enumerate(group):
                    places[2 * partition : 2 * partition + 2] = number, place
            members = [self.assignment[each] for group in collective.groups for each in group]
            return {each.index: members if at else places for at, each in enumerate(constants)}
        if set(sizes) != {4 * count}:
            raise NeighbourTableError(
                f"{collective.name}: constants of {sizes} words, which are no tables that are known"
            )
        if len(constants) == 1:
            rings = [[self._ring(collective, [self.assignment[each] for each in group]) for group in collective.groups]]
        else:
            rings = self._axes(collective, len(constants))
        return {each.index: self._table(collective, along, words) for each, along in zip(constants, rings, strict=True)}

    def _table(self, collective: HloCollective, rings: Sequence[Sequence[int]], words: Set[Word]) -> list[int]:
        partitions = {device: partition for partition, device in enumerate(self.assignment)}
        ranks = {partition: rank for group in collective.groups for rank, partition in enumerate(group)}
        by_device = "chip" in words and "partition" not in words
        table = [0] * (4 * len(self.assignment))
        for ring in rings:
            for place, device in enumerate(ring):
                others = ring[(place + 1) % len(ring)], ring[place - 1]
                if "assignment" in words:
                    others = partitions[others[0]], partitions[others[1]]
                row = 4 * (device if by_device else partitions[device])
                # Where the first word is the place on the ring, the last one is not read.
                first = ranks[partitions[device]] if by_device else place
                table[row : row + 4] = first, *others, place
        return table

    def _ring(self, collective: HloCollective, devices: list[int]) -> list[int]:
        """The way round through a group: its own order if that goes from neighbour to neighbour, else the only one."""
        if len(devices) < 3 or self._closes(devices):
            return devices
        grid = self._grid(devices)
        if grid is None:
            raise NeighbourTableError(f"{collective.name}: devices {devices} fill no rectangle of the slice")
        wide = sorted((axis for axis, places in enumerate(grid) if len(places) > 1), key=lambda axis: len(grid[axis]))
        if len(wide) == 1:
            ring = sorted(devices)
        elif len(wide) == 2 and len(grid[wide[0]]) == 2:
            across, along = wide

            def position(device: int) -> tuple[int, int]:
                place = self._place(device)
                back = place[across] != grid[across][0]
                return back, -place[along] if back else place[along]

            ring = sorted(devices, key=position)
        else:
            ring = []
        if not ring or not self._closes(ring):
            shape = "x".join(str(len(places)) for places in grid)
            raise NeighbourTableError(
                f"{collective.name}: which way XLA's ring goes through a group of {shape} devices is not known. A mesh "
                "whose axis goes from neighbour to neighbour has one way only"
            )
        return ring

    def _axes(self, collective: HloCollective, count: int) -> list[list[list[int]]]:
        """The rings along each axis of a group, the axis that changes slowest first."""
        rings: list[list[list[int]]] = []
        for group in collective.groups:
            devices = [self.assignment[each] for each in group]
            grid = self._grid(devices)
            wide = [axis for axis in reversed(range(len(grid or ()))) if grid and len(grid[axis]) > 1]
            if grid is None or len(wide) != count:
                raise NeighbourTableError(f"{collective.name}: {count} tables for devices {devices}")
            rings = rings or [[] for _ in wide]
            for found, axis in zip(rings, wide, strict=True):
                lines: dict[tuple[int, ...], list[int]] = {}
                for device in sorted(devices, key=self._place):
                    place = self._place(device)
                    lines.setdefault(place[:axis] + place[axis + 1 :], []).append(device)
                found += lines.values()
        return rings

    def _place(self, device: int) -> tuple[int, ...]:
        """Core, then coordinates: the axis that changes fastest with the id first."""
        found = self.shape.device(device)
        return (found.core, *found.coords)

    def _grid(self, devices: Sequence[int]) -> list[list[int]] | None:
        """The places along each axis of the rectangle that the devices fill; None where they fill none."""
        grid = [sorted(set(places)) for places in zip(*map(self._place, devices), strict=True)]
        return grid if math.prod(map(len, grid)) == len(devices) else None

    def _closes(self, ring: Sequence[int]) -> bool:
        return all(len(self.routes.between(a, b).links) == 1 for a, b in _pairs(ring))


def _pairs(ring: Sequence[int]) -> Iterator[tuple[int, int]]:
    for place, device in enumerate(ring):
        yield device, ring[(place + 1) % len(ring)]
