"""Compare the HBM that a program's live arrays would take with the chip's HBM."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

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
      peak_bytes: the peak of all arrays, without the padding of tiles.
      largest: the arrays that took most of the peak.
    """

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._warned = False
        self.capacity_bytes = chip.hbm_bytes_per_chip // chip.devices_per_chip
        self.peak_bytes = 0
        self.largest: tuple[HeldArrays, ...] = ()

    def look(self) -> int:
        """Return the bytes of live arrays now; warn the first time they do not fit."""
        import jax

        arrays = jax.live_arrays()
        held_bytes = sum(array.nbytes for array in arrays)
        if held_bytes > self.peak_bytes:
            self.peak_bytes = held_bytes
            sizes: Counter[tuple[tuple[int, ...], str]] = Counter()
            counts: Counter[tuple[tuple[int, ...], str]] = Counter()
            for array in arrays:
                sizes[array.shape, str(array.dtype)] += array.nbytes
                counts[array.shape, str(array.dtype)] += 1
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
