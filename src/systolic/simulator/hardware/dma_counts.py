"""Copies of one core, and their cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class DmaCounts:
    """Bytes, copies and cycles of one core."""

    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    hbm_received_bytes: int = 0  # written by other devices, whatever runs here meanwhile
    copies: int = 0
    copy_stall_cycles: int = 0  # waiting for copies to land
    semaphore_stall_cycles: int = 0  # waiting for another core, or for a signal of the program's own
    overhead_cycles: int = 0  # starting copies and looking at flags
    # Keys: source, destination, bytes, and bytes in one piece (0: all, None: the text does not say).
    sizes: Counter[tuple[str, str, int, int | None]] = field(default_factory=Counter)

    def add(self, others: DmaCounts) -> None:
        for name in _COUNTS:
            if count := getattr(others, name):
                setattr(self, name, getattr(self, name) + count)
        for copy, count in others.sizes.items():
            self.sizes[copy] += count


_COUNTS = tuple(counted.name for counted in fields(DmaCounts) if counted.name != "sizes")
