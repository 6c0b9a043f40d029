"""Collectives that go from neighbor to neighbor by a schedule, as some of XLA's do in slices of v5e with over 16 chips.

Their constants name no entries of tables of routes. The schedule says, step by step, which piece each device sends to
each of its four neighbors, on its way to the last one, or that it sends nothing there; the program looks the neighbors
up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


def with_one_schedule(facts: SliceFacts) -> SliceFacts:
    """Give all devices the schedule of the one that sends most; return the same facts if there is no schedule.

    One device can then represent all: the others send no more, in as many steps.
    """
    count = facts.hlo.partitions
    contents = dict(facts.constants.contents)
    for constant in facts.constants.operands:
        words = contents[constant.allocation]
        if constant.operation in facts.hlo.collectives and _is_schedule(words[: constant.words], count):
            rows = np.array(words[_NEIGHBORS : constant.words]).reshape(count, -1)
            busiest = rows[np.argmax(((rows & _SENDS) != 0).sum(axis=1))].tolist()
            contents[constant.allocation] = [*words[:_NEIGHBORS], *busiest * count, *words[constant.words :]]
    if contents == facts.constants.contents:
        return facts
    return replace(facts, constants=replace(facts.constants, contents=contents))


def _is_schedule(words: Sequence[object], count: int) -> bool:
    """Return True for a number of steps, padding, and a row of words for each device."""
    steps = words[0] if words else None
    return type(steps) is int and len(words) == _NEIGHBORS * (1 + steps * count) and not any(words[1:_NEIGHBORS])
