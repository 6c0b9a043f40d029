"""Runs of segments by matrix units, by the state in which they began."""

from __future__ import annotations

# State of the units relative to the present: cycles until free; cycles until each queued result; (place, cycles) pairs.
Relative = tuple[tuple[float, ...], tuple[tuple[int, ...], ...], tuple[tuple[tuple[int, int], ...], ...]]

# The cost of a segment, its final state, busy cycles of the MXUs, and the part of the cost that is stalls on cross-lane
# units.
SegmentRun = tuple[int, Relative, int, int]

# Program, segment, conditions, and the state at its begin.
_Key = tuple[str, int, tuple[bool, ...], Relative]

# One takes up to 4 KiB, where all queues are full, and a program may never meet a state again: together up to 1 GiB.
_MAX_NEW = 1 << 17


class SegmentMemo:
    """Runs of segments of all programs. Those that were not needed lately are forgotten."""

    def __init__(self, max_new: int = _MAX_NEW) -> None:
        self._max_new = max_new
        self._new: dict[_Key, SegmentRun] = {}
        self._old: dict[_Key, SegmentRun] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def get(self, key: _Key) -> SegmentRun | None:
        segment_run = self._new.get(key)
        if segment_run is None:
            segment_run = self._old.pop(key, None)
            if segment_run is not None:
                self.add(key, segment_run)
        return segment_run

    def add(self, key: _Key, segment_run: SegmentRun) -> None:
        if len(self._new) >= self._max_new:
            self._old, self._new = self._new, {}
        self._new[key] = segment_run
