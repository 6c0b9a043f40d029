"""VMEM of kernels that allocate their own buffers: bytes for these, and the limit to ask the compiler for."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.chips import Chip
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.legality import MIB

# Share of the usable VMEM that buffers may take: the compiler keeps values there that do not fit its registers.
_BUFFER_SHARE = 0.88


def buffer_bytes(chip: Chip) -> int:
    """Return the bytes of VMEM that the buffers of a kernel may take."""
    return int(chip.usable_vmem_bytes_per_core * _BUFFER_SHARE)


def vmem_limit(buffers: Sequence[VmemBuffer], chip: Chip) -> int:
    """Return the bytes to ask the compiler for: the buffers and its own share, at least what it gives by default."""
    needed = int(total_bytes(buffers) / _BUFFER_SHARE) + 2 * MIB
    return min(max(needed, chip.scoped_vmem_bytes), chip.usable_vmem_bytes_per_core)
