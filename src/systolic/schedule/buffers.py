"""A buffer in VMEM, of which estimates, maps and refusals derive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.spec import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemBuffer:
    """One named buffer; `copies` is 2 where the pipeline fills one while the other is used."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    copies: int

    @property
    def bytes(self) -> int:
        """All copies together."""
        return math.prod(self.shape) * dtype_bytes(self.dtype) * self.copies


def total_bytes(buffers: Sequence[VmemBuffer]) -> int:
    """Bytes of all buffers. The compiler needs some more for values that do not fit its registers."""
    return sum(buffer.bytes for buffer in buffers)
