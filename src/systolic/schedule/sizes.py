"""Sizes of tiles and blocks: multiples, divisors, and what is left where nothing divides."""

from __future__ import annotations

import math

from systolic.schedule.legality import LANES, legal_sides

_MOST_RAGGED = 1.125  # columns that tiles of unequal width compute at the most, over those that there are


def padded(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def largest_divisor(size: int, multiple: int, most: int) -> int:
    """The largest divisor of a size that is a multiple and no more than `most`; the least one if all are above it."""
    divisors = legal_sides(size, multiple)
    return max((divisor for divisor in divisors if divisor <= most), default=divisors[0])


def block_size(size: int, multiple: int, most: int) -> int:
    """The largest divisor of a size that is a multiple and no more than `most`; if none is, the largest multiple.

    Then a shorter block is left behind the others.
    """
    if size <= most:
        return size
    divisors = (index for index in range(multiple, most + 1, multiple) if size % index == 0)
    return max(divisors, default=min(max(most // multiple, 1) * multiple, size))


def ragged_sides(size: int, least: int) -> list[int]:
    """Tiles of columns that are no multiple of a register's: the last one takes what the others leave.

    A copy may end in the middle of a register where the array ends, and nowhere else.
    """
    # Of more tiles than √size + 2, whatever the last one takes besides would make up one more.
    max_count = min(size // least, math.isqrt(size) + 2) if size % LANES else 0
    return [tile for count in range(2, max_count + 1) if (tile := _ragged_side(size, count))]


def is_ragged_side(size: int, tile: int) -> bool:
    """True if `tile` is one of `ragged_sides(size, LANES)`."""
    count = -(-size // tile)
    return size % LANES > 0 and 2 <= count <= size // LANES and _ragged_side(size, count) == tile


def _ragged_side(size: int, count: int) -> int:
    """The widest of so many tiles of unequal width; 0 where they would compute too much."""
    tile = size - (count - 1) * (size // count // LANES * LANES)
    return tile if count * tile <= size * _MOST_RAGGED and -(-size // tile) == count else 0
