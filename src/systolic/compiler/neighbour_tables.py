"""Tables of neighbours in a compiled program: constants by which XLA's collectives find who is next on a ring.

No listing shows them. The program's binary holds them as they are in memory: four words for each device, of which the
second and the third are the next one and the one before. Whatever holds the binary, they are found by that: who is next
to a device has it as the one before. Rows are in the order of devices or of partitions, and so are the names in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_WORD_BYTES = 4
_ROW_WORDS = 4
# Constants are padded to whole rows of so many words, with a value that is no number.
_PADDED_WORDS = 128
_PADDING = 0x7FC07FC0


def neighbour_tables(executable: bytes, assignment: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The tables of a program, in the order of the binary.

    Args:
        executable: the program's binary.
        assignment: ids of its devices, in the order of the partitions.
    """
    devices = len(assignment)
    partitions = np.argsort(assignment)
    words = _ROW_WORDS * devices
    padding = -words % _PADDED_WORDS
    found: list[tuple[int, tuple[int, ...]]] = []
    for offset in range(_WORD_BYTES):
        count = (len(executable) - offset) // _WORD_BYTES
        if count < words + padding:
            continue
        image = np.frombuffer(executable, "<u4", count, offset)
        # Where as many small numbers follow each other as a table has.
        small = _sums(image < devices, words) == words
        # Zeros are small too, and there are many of them; only one device's row may begin with three.
        full = _sums((image > 0) & (image < devices), words) >= devices
        for start in np.flatnonzero(small & full):
            table = image[start : start + words].reshape(devices, _ROW_WORDS)
            padded = image[start + words : start + words + padding]
            if (
                np.all(padded == _PADDING)
                and len(padded) == padding
                and (_closes(table[:, 1], table[:, 2]) or _closes(partitions[table[:, 1]], partitions[table[:, 2]]))
            ):
                found.append((offset + _WORD_BYTES * int(start), tuple(map(int, table.ravel()))))
    return tuple(table for _, table in sorted(found))


def _sums(values: np.ndarray, words: int) -> np.ndarray:
    """How many are true of as many values as a table has words, from each place on."""
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return sums[words:] - sums[:-words]


def _closes(following: np.ndarray, before: np.ndarray) -> bool:
    rows = np.arange(len(following))
    mutual = np.array_equal(before[following], rows) and np.array_equal(following[before], rows)
    # A table whose neighbours are all the devices themselves says nothing, and so do zeros.
    return mutual and not np.array_equal(following, rows)
