"""Sizes of tiles and blocks: multiples, divisors, and remainders."""

from __future__ import annotations

import math

from systolic.schedule.legality import LANES, legal_sides

_MAX_RAGGED = 1.125  # columns that tiles of unequal width compute at most, over those that there are


def padded(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple


def largest_divisor(size: int, multiple: int, limit: int) -> int:
    """Return the largest divisor of a size that is a multiple and at most `limit`; the least one if all are above."""
    divisors = legal_sides(size, multiple)
    return max((divisor for divisor in divisors if divisor <= limit), default=divisors[0])


def block_size(size: int, multiple: int, limit: int) -> int:
    """Return the largest divisor of a size that is a multiple and at most `limit`; if none is, the largest multiple.

    Then a shorter block follows the others.
    """
    if size <= limit:
        return size
    divisors = (index for index in range(multiple, limit + 1, multiple) if size % index == 0)
    return max(divisors, default=min(max(limit // multiple, 1) * multiple, size))


def ragged_sides(size: int, least: int) -> list[int]:
    """Return tiles of columns that are not a multiple of a register's: the last one takes the remaining columns.

    A copy may end in the middle of a register where the array ends, and nowhere else.
    """
    # With more than √size + 2 tiles, the extra columns of the last one would make up one more tile.
    max_count = min(size // least, math.isqrt(size) + 2) if size % LANES else 0
    return [tile for count in range(2, max_count + 1) if (tile := _ragged_side(size, count))]


def is_ragged_side(size: int, tile: int) -> bool:
    """True if `tile` is one of `ragged_sides(size, LANES)`."""
    count = -(-size // tile)
    return size % LANES > 0 and 2 <= count <= size // LANES and _ragged_side(size, count) == tile


def _ragged_side(size: int, count: int) -> int:
    """Return the widest of `count` tiles of unequal width; 0 if they would compute too much."""
    tile = size - (count - 1) * (size // count // LANES * LANES)
    return tile if count * tile <= size * _MAX_RAGGED and -(-size // tile) == count else 0
