"""Check the constants by which XLA's collectives find their neighbors.

A table of neighbors has four words for each device: its place in the group, or on the ring; the next device; the one
before; and in some the place on the ring. The program itself decides which row belongs to which device, and whether
neighbors are devices or partitions. It is checked that the device after another has that one before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from systolic.simulator.slice.constants import NeighbourTableError
from systolic.simulator.slice.facts import SliceFacts

_ROW_WORDS = 4


def check_tables(facts: SliceFacts, assignment: Sequence[int]) -> None:
    """Check that the constants of all collectives are known and their tables of neighbors consistent.

    Args:
      assignment: device ids by partition.

    Raises:
      NeighbourTableError: they are not.
    """
    count = len(assignment)
    partitions = np.argsort(assignment)
    for constant in facts.constants.operands:
        collective = facts.hlo.collectives.get(constant.operation)
        if collective is None:
            continue
        if facts.constants.unknown:
            raise NeighbourTableError(f"{constant.operation}: {facts.constants.unknown}")
        if collective.kind == "all-to-all" or constant.words != _ROW_WORDS * count:
            continue
        words = facts.constants.contents[constant.allocation][: constant.words]
        rows = np.array(words).reshape(count, _ROW_WORDS)
        following, before = rows[:, 1], rows[:, 2]
        if np.any(rows >= count) or not (
            _closes(following, before) or _closes(partitions[following], partitions[before])
        ):
            raise NeighbourTableError(
                f"{constant.operation}: operand {constant.operand.index} is not a table of neighbors of {count} devices"
            )


def _closes(following: np.ndarray, before: np.ndarray) -> bool:
    rows = np.arange(len(following))
    return np.array_equal(before[following], rows) and np.array_equal(following[before], rows)
