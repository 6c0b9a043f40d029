"""The links between chips: bandwidth, latency of a hop, and the axes of a slice that close to a ring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The simulator's model of the links of **one chip**. Each field has its source in `Chip.sources`.

    A link has two directions, which do not disturb each other.
    """

    dimensions: int  # of the grid of chips
    bytes_per_s: float  # that a copy reaches over one link in one direction
    hop_s: float  # from a chip to its neighbor, for a copy's first byte and for a signal
    wrap_extent: int  # an axis of this number of chips, or a multiple, has a link from its last chip to its first
    wraps_alone: bool  # each axis alone; else either all axes of a slice are such multiples, or none wraps
    signal_chip_bit: int  # in the address of a signal, the chip's number is from this bit on
    copy_remote_bit: int  # in a copy's operand, this bit says that it goes to another chip
    # Of a chip's table of routes: in a slice of more chips, programs name a chip by an entry of the sender's table, in
    # place of its number; None: by its number everywhere.
    route_entries: int | None = None
    die_bytes_per_s: float | None = None  # between the devices of one chip, in one direction; None: it is one device
    die_hop_s: float | None = None  # and how long that way takes

    def wrap(self, extents: tuple[int, ...]) -> tuple[bool, ...]:
        """Return for each axis of a slice whether it closes to a ring."""
        closed = tuple(extent % self.wrap_extent == 0 for extent in extents)
        return closed if self.wraps_alone else (all(closed),) * len(extents)
