"""The rest of a slice, as the SparseCores of one of its devices see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# A remote signal's address, and the flag that a copy signals, name a core of the chip: this bit says that it is a
# SparseCore, the bits below say which one.
SPARSE_CORE = 1 << 2
_SIGNAL_CORE, _COPY_CORE = 14, 13
CORE_MASK = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseCopy:
    """A copy that names its target device, perhaps the sender itself."""

    time: float
    launched: float  # when its program was launched
    flag: int  # signalled where it lands, with the number of the core there
    source_flag: int
    source: str
    destination: str
    size_bytes: int
    amount: int  # added to both flags
    target: int  # names the device


class Outside(Protocol):
    """The rest of the slice."""

    @property
    def chip(self) -> int:
        """Number of the device's chip."""
        ...

    @property
    def first_sparse_core(self) -> int:
        """Number of the device's first SparseCore on its chip."""
        ...

    @property
    def images_at(self) -> int:
        """The address in HBM, in granules, at which the images of the SparseCores' programs begin."""
        ...

    def largest(self, sizes: Sequence[int]) -> int:
        """Return the size in bytes that counts where the devices that this one represents copy different sizes."""
        ...

    def first(self, words: Sequence[Any]) -> Any:
        """Return the word that counts on this device where those that it represents have different ones."""
        ...

    def sparse_copy(self, core: int, label: str, copy: SparseCopy) -> bool:
        """Send a copy to another device; False: it stays here."""
        ...

    def sparse_signal(self, label: str, launched: float, time: float, address: int, amount: int) -> bool:
        """Signal a flag of another device's SparseCore; False: it is one of this device's.

        `label` is the sending program, and `launched` when it was launched.
        """
        ...


class Alone:
    """The surroundings of a single device: nothing leaves it."""

    chip = first_sparse_core = images_at = 0

    def largest(self, sizes: Sequence[int]) -> int:
        raise AssertionError("a device alone represents no others")

    def first(self, words: Sequence[Any]) -> Any:
        raise AssertionError("a device alone represents no others")

    def sparse_copy(self, core: int, label: str, copy: SparseCopy) -> bool:
        return False

    def sparse_signal(self, label: str, launched: float, time: float, address: int, amount: int) -> bool:
        return False


def core_of_signal(address: int) -> int:
    """Return the number of the core on its chip that a signal's address names, SparseCores from `SPARSE_CORE` on."""
    return address >> _SIGNAL_CORE & CORE_MASK


def core_of_copy(flag: int) -> int:
    """Return the number of the core on its chip that the flag of a copy names."""
    return flag >> _COPY_CORE & CORE_MASK
