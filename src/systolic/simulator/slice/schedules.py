"""Collectives that go from neighbor to neighbor by a schedule, as some of XLA's do in slices of v5e with over 16 chips.

Their constants name no entries of tables of routes. The schedule says, step by step, which piece each device sends to
each of its four neighbors, on its way to the last one, or that it sends nothing there; the program looks the neighbors
up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from systolic.simulator.hardware.memory import Words
from systolic.simulator.reading.collectives import HloCollective
from systolic.simulator.slice.facts import SliceFacts

_NEIGHBORS = 4  # a word of the schedule for each
_SENDS = 1 << 30  # the bit of a word that says that a piece is sent


def names_no_entries(words: Words, collective: HloCollective, count: int) -> bool:
    """Return True if a collective's constant is a schedule, or tells devices who they are in their groups."""
    if _is_schedule(words, count):
        return True
    if len(words) == count:
        return sorted(words) == list(range(count))
    ranks = [(number, rank) for number, group in enumerate(collective.groups) for rank in range(len(group))]
    return len(words) == 2 * count and sorted(zip(words[::2], words[1::2], strict=True)) == ranks


def busiest_rows(facts: SliceFacts) -> dict[int, int]:
    """Return the chip that sends most by each schedule, by the addresses of the words that choose its row.

    With these words one device can represent all: the others send no more, in as many steps. It takes a few percent
    less than all devices do, where one waits for a busier one.
    """
    result: dict[int, int] = {}
    for constant in facts.constants.operands:
        words = facts.constants.contents[constant.allocation][: constant.words]
        if constant.operation in facts.rows and _is_schedule(words, facts.hlo.partitions):
            sends = (np.array(words[_NEIGHBORS:]) & _SENDS != 0).reshape(facts.hlo.partitions, -1).sum(axis=1)
            result |= dict.fromkeys(facts.rows[constant.operation], int(np.argmax(sends)))
    return result


def _is_schedule(words: Sequence[object], count: int) -> bool:
    """Return True for a number of steps, padding, and a row of words for each device."""
    steps = words[0] if words else None
    return type(steps) is int and len(words) == _NEIGHBORS * (1 + steps * count) and not any(words[1:_NEIGHBORS])
