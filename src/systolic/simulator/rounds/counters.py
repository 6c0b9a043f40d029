"""The counters of a simulation, which grow by the same from round to round of a loop whose rounds do the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Counters that are not numbers, by class: attributes that count. Others stay the same, or decide and are no counters.
# Times are counters too: the last one of each round comes a round later.
_COUNTED: Mapping[str, tuple[str, ...]] = {
    "DmaCounts": (
        *("hbm_read_bytes", "hbm_written_bytes", "hbm_received_bytes", "copies", "copy_stall_cycles"),
        *("semaphore_stall_cycles", "overhead_cycles", "sizes"),
    ),
    "OpTotals": ("end", "calls", "cycles", "spent", "block_counts"),
    "Mxus": ("stalls", "_lane_stalls", "stall_cycles", "busy_cycles"),
    "SparseCore": ("_counts", "flags", "tiles", "recorded_ops"),
    "TileState": ("flags",),
    "SparseFlags": ("_flags",),
    "_Flag": ("total",),
    "SparseCounts": ("hbm_read_bytes", "hbm_written_bytes", "streams", "indices", "stall_cycles"),
    "IterationBudget": ("left",),
    "Communications": ("tallies",),
    "Tally": ("calls", "copies", "sent_bytes", "end", "cycles", "waited_cycles", "issued_cycles", "called"),
    "RepeatedCalls": ("_operations",),
    "_Operation": ("calls", "new_changes", "known_changes"),
    "Network": ("copies", "_traffic", "_streams"),
    "PatternNetwork": ("copies", "_streams", "_busy", "_busy_before"),
    "_Traffic": ("busy_cycles",),
    "Stream": ("sent_bytes",),
}


def snapshot(counted: Any) -> Any:
    """Copy counters: numbers, and sequences, mappings and objects with them."""
    names = _COUNTED.get(type(counted).__name__)
    if names is not None:
        return [snapshot(getattr(counted, name)) for name in names]
    if isinstance(counted, dict):
        return {key: snapshot(value) for key, value in counted.items()}
    return [snapshot(item) for item in counted] if isinstance(counted, list | tuple) else counted


def grown(now: Any, before: Any, rounds: int) -> Any:
    """Return counters as they are `rounds` rounds later, from those of now and their snapshot a round before."""
    names = _COUNTED.get(type(now).__name__)
    if names is not None:
        for name, value in zip(names, before, strict=True):
            setattr(now, name, grown(getattr(now, name), value, rounds))
    elif isinstance(now, dict):
        for key, value in now.items():
            now[key] = grown(value, before.get(key, 0), rounds)
    elif isinstance(now, list):
        now[:] = _each(now, before, rounds)
    elif isinstance(now, tuple):
        return tuple(_each(now, before, rounds))
    elif isinstance(now, int | float):
        return now + rounds * (now - before)
    return now


def _each(now: Iterable[Any], before: Iterable[Any], rounds: int) -> list[Any]:
    return [grown(one, other, rounds) for one, other in zip(now, before, strict=True)]
