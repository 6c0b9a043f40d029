"""VMEM of a kernel: bytes for its buffers, and the limit to ask the compiler for, by one formula for all kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.schedule.buffers import VmemBuffer, total_bytes

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerNeed:
    """VMEM that the compiler needs in addition to a kernel's buffers, for values that do not fit its registers."""

    factor: float  # VMEM of a kernel over its buffers' VMEM
    kept_bytes: float  # bytes that buffers leave free in addition
    asked_bytes: float  # bytes that are requested in addition
    margin: float = 1.0  # share of the whole request: the need depends on what the compiler may have

    def usable_bytes(self, most_bytes: int) -> int:
        return int((most_bytes - self.kept_bytes) / self.factor)

    def limit_bytes(self, buffers_bytes: int, chip: Chip, most_bytes: int) -> int:
        """Return the bytes to request from the compiler: at least its default."""
        required_bytes = int((buffers_bytes * self.factor + self.asked_bytes) * self.margin)
        return min(max(required_bytes, chip.scoped_vmem_bytes), most_bytes)


# Of kernels that allocate their own buffers.
_OWN_BUFFERS = CompilerNeed(factor=1 / 0.88, kept_bytes=0, asked_bytes=2 * MIB)


def buffer_bytes(chip: Chip) -> int:
    """Return the bytes of VMEM that the buffers of a grouped or sparse kernel may take."""
    return _OWN_BUFFERS.usable_bytes(chip.usable_vmem_bytes_per_core)


def vmem_limit(buffers: Sequence[VmemBuffer], chip: Chip) -> int:
    """Return the bytes to request from the compiler for a grouped or sparse kernel."""
    return _OWN_BUFFERS.limit_bytes(total_bytes(buffers), chip, chip.usable_vmem_bytes_per_core)
