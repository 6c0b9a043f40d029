"""The VMEM buffers of a kernel: one list from which estimates, maps and refusals derive."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from systolic.schedule.blocks import FACTORS, block_shape, operand_blocks
from systolic.schedule.config import KernelConfig, has_accumulator, is_made, is_split, is_staged, made_of
from systolic.schedule.tiles import Tiles
from systolic.spec import MatmulSpec, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemBuffer:
    """One named buffer."""

    name: str
    shape: tuple[int, ...]  # of one copy, in whole registers where the compiler reserves them
    dtype: str
    copies: int  # 2 if the pipeline fills one while the other is used; the slots of a ring
    # Shape that a kernel allocates for all copies. None: the pipeline allocates it, or it is `shape`.
    ref_shape: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * dtype_bytes(self.dtype) * self.copies


def total_bytes(buffers: Sequence[VmemBuffer]) -> int:
    """Return the bytes of all buffers. The compiler needs some more for values that do not fit its registers."""
    return sum(buffer.bytes for buffer in buffers)


def kernel_buffers(spec: MatmulSpec, config: KernelConfig) -> tuple[VmemBuffer, ...]:
    """Return the VMEM buffers of a kernel: those its pipeline allocates for blocks, and its scratch by name."""
    scratch = scratch_buffers(spec, config)
    return (
        *_pipeline_buffers(spec, config.tiles, config.num_stages),
        *scratch.sums,
        *scratch.lhs,
        *scratch.rhs,
    )


@functools.lru_cache(maxsize=1024)
def _pipeline_buffers(spec: MatmulSpec, tiles: Tiles, num_stages: int) -> tuple[VmemBuffer, ...]:
    blocks = operand_blocks(spec, tiles)
    result = [
        VmemBuffer(name=name, shape=block.shape, dtype=block.dtype, copies=num_stages)
        for name, block in zip(("lhs", "rhs", "up"), blocks.factors, strict=False)
    ]
    for number, block in enumerate(blocks.present()[len(result) :]):
        # A row takes the eight of a register, a column its 128 lanes.
        shape = -(-block.shape[0] // 8) * 8, -(-block.shape[1] // 128) * 128
        result.append(VmemBuffer(name=f"fused {number}", shape=shape, dtype=block.dtype, copies=num_stages))
    outs = (
        VmemBuffer(name="out", shape=(tiles.tile_m, tiles.tile_n), dtype=dtype, copies=2) for dtype in spec.dtypes_out
    )
    return (*result, *outs)


class Scratch(NamedTuple):
    """The buffers that a kernel allocates in addition to its pipeline's blocks, or their refs."""

    sums: tuple[Any, ...]  # over k, one for each sum; () if one step computes the whole sum
    lhs: tuple[Any, ...]  # a staged operand, or both halves of a split one; () if it is not staged
    rhs: tuple[Any, ...]


def scratch_buffers(spec: MatmulSpec, config: KernelConfig) -> Scratch:
    """Return the part of `kernel_buffers` that is scratch."""
    tiles = config.tiles

    def staged(side: Literal["lhs", "rhs"]) -> tuple[VmemBuffer, ...]:
        if not is_staged(spec, tiles, side):
            return ()
        parts = (("high", "low") if is_split(spec) else ("staged",)) * made_of(spec, side)
        dtype = "bfloat16" if is_split(spec) else spec.dtype_multiplied
        shape = block_shape(spec, tiles, side)
        return tuple(VmemBuffer(name=f"{side} {part}", shape=shape, dtype=dtype, copies=1) for part in parts)

    acc = VmemBuffer(name="acc", shape=(tiles.tile_m, tiles.tile_n), dtype=spec.dtype_accumulator, copies=1)
    sums = spec.sums if has_accumulator(spec, config) else 0
    return Scratch(sums=(acc,) * sums, lhs=staged("lhs"), rhs=staged("rhs"))


def made_bytes(spec: MatmulSpec, config: KernelConfig) -> int:
    """Return the VMEM in which the compiler keeps the values that a subtile makes of its operands.

    For float32 in halves it also keeps the sums of two of the three products.
    """
    kept_sums = 2 * config.subtile_m * config.subtile_n * dtype_bytes("float32")
    sums = spec.products * kept_sums if is_split(spec) else 0
    for side, across in zip(FACTORS, (config.subtile_m, config.subtile_n), strict=True):
        if is_made(spec, side) and not is_staged(spec, config.tiles, side):
            halves = (2, "bfloat16") if is_split(spec) else (1, spec.dtype_multiplied)
            sums += made_of(spec, side) * across * config.tiles.tile_k * halves[0] * dtype_bytes(halves[1])
    return sums
