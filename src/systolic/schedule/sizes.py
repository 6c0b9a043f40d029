"""Sizes of tiles and blocks: multiples, divisors, and what is left where nothing divides."""

from __future__ import annotations

from systolic.schedule.legality import LANES

_MOST_RAGGED = 1.125  # columns that tiles of unequal width compute at the most, over those that there are


def padded(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def largest_divisor(size: int, multiple: int, most: int) -> int:
    """The largest divisor of a size that is a multiple and no more than `most`; the least one if all are above it."""
    divisors = [one for one in range(multiple, size, multiple) if size % one == 0] + [size]
    return max((one for one in divisors if one <= most), default=divisors[0])


def block_size(size: int, multiple: int, most: int) -> int:
    """The largest divisor of a size that is a multiple and no more than `most`; if none is, the largest multiple.

    Then a shorter block is left behind the others.
    """
    if size <= most:
        return size
    divisors = (one for one in range(multiple, most + 1, multiple) if size % one == 0)
    return max(divisors, default=min(max(most // multiple, 1) * multiple, size))


def ragged_sides(size: int, least: int) -> list[int]:
    """Tiles of columns that are no multiple of a register's: the last one takes what the others leave.

    A copy may end in the middle of a register where the array ends, and nowhere else.
    """
    found = []
    for count in range(2, size // least + 1) if size % LANES else ():
        tile = size - (count - 1) * (size // count // LANES * LANES)
        if count * tile <= size * _MOST_RAGGED and -(-size // tile) == count:
            found.append(tile)
    return found
