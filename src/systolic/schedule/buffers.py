"""The VMEM buffers of a blocked matmul: one list, from which estimates, maps and refusals derive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec, dtype_bytes


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


def matmul_buffers(
    spec: MatmulSpec, tiles: Tiles, *, pipelined: bool = True, accumulator: bool = False
) -> tuple[VmemBuffer, ...]:
    """Buffers that `pallas_call` allocates for one block of each operand.

    Args:
      pipelined: each block twice, as with a grid; once without one.
      accumulator: a scratch buffer in the accumulator's dtype beside the output block.
    """
    copies = 2 if pipelined else 1
    buffers = [
        VmemBuffer(name="lhs", shape=(tiles.tile_m, tiles.tile_k), dtype=spec.dtype_lhs, copies=copies),
        VmemBuffer(name="rhs", shape=(tiles.tile_k, tiles.tile_n), dtype=spec.dtype_rhs, copies=copies),
        VmemBuffer(name="out", shape=(tiles.tile_m, tiles.tile_n), dtype=spec.dtype_out, copies=copies),
    ]
    if accumulator:
        shape = (tiles.tile_m, tiles.tile_n)
        buffers.append(VmemBuffer(name="acc", shape=shape, dtype=spec.dtype_accumulator, copies=1))
    return tuple(buffers)


def total_bytes(buffers: Sequence[VmemBuffer]) -> int:
    """Bytes of all buffers. The compiler needs some more for values that do not fit its registers."""
    return sum(buffer.bytes for buffer in buffers)
