"""Compare the HBM that a program's live arrays would take with the chip's HBM."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.schedule import MIB
from systolic.steps.records import GIB
from systolic.support.bugs import warn_user

_MAX_KINDS = 5  # kinds of arrays in a message


def size_text(size_bytes: int) -> str:
    """Write memory in GiB, or in MiB below a tenth of one."""
    return f"{size_bytes / GIB:,.2f} GiB" if size_bytes >= GIB / 10 else f"{size_bytes / MIB:,.2f} MiB"


class HbmWarning(UserWarning):
    """The arrays of a program do not fit the chip's HBM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldArrays:
    """Arrays of one shape and dtype that were alive at once."""

    shape: tuple[int, ...]
    dtype: str
    count: int
    size_bytes: int  # of all these arrays

    def __str__(self) -> str:
        sizes = ",".join(map(str, self.shape))
        return f"{self.count} × {self.dtype}[{sizes}], {size_text(self.size_bytes)}"


class HbmWatch:
    """Watches the live arrays at every call.

    Attributes:
      capacity_bytes: HBM of a device.
      peak_bytes: the peak of all arrays on the fullest device, without the padding of tiles.
      largest: the arrays, or the pieces of them, that took most of the peak.
    """

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._warned = False
        self.capacity_bytes = chip.hbm_bytes_per_chip // chip.devices_per_chip
        self.peak_bytes = 0
        self.largest: tuple[HeldArrays, ...] = ()

    def look(self) -> int:
        """Return the bytes of live arrays on the fullest device now; warn the first time they do not fit."""
        import jax

        by_device: defaultdict[Any, list[Any]] = defaultdict(list)
        for array in jax.live_arrays():
            for device in array.devices():
                by_device[device].append(array)
        arrays = max(by_device.values(), key=lambda held: sum(map(_piece_bytes, held)), default=[])
        held_bytes = sum(map(_piece_bytes, arrays))
        if held_bytes > self.peak_bytes:
            self.peak_bytes = held_bytes
            sizes: Counter[tuple[tuple[int, ...], str]] = Counter()
            counts: Counter[tuple[tuple[int, ...], str]] = Counter()
            for array in arrays:
                kind = (array.sharding.shard_shape(array.shape), str(array.dtype))
                sizes[kind] += _piece_bytes(array)
                counts[kind] += 1
            self.largest = tuple(
                HeldArrays(shape=kind[0], dtype=kind[1], count=counts[kind], size_bytes=size_bytes)
                for kind, size_bytes in sizes.most_common(_MAX_KINDS)
            )
        if held_bytes > self.capacity_bytes and not self._warned:
            self._warned = True
            warn_user(
                f"live arrays take {size_text(held_bytes)}, and a device of {self._chip.name} has "
                f"{size_text(self.capacity_bytes)} of HBM. The largest: {'; '.join(map(str, self.largest))}. "
                "Donate what a step replaces (donate_argnums), store it in a smaller dtype, or shard it",
                HbmWarning,
            )
        return held_bytes


def _piece_bytes(array: Any) -> int:
    """Return the bytes of an array's piece on each of its devices."""
    shape = array.sharding.shard_shape(array.shape)
    return array.nbytes * math.prod(shape) // max(1, array.size)
