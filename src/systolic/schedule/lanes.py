"""Buffers that a kernel allocates itself, by their shape."""

from __future__ import annotations

from systolic.schedule.buffers import VmemBuffer
from systolic.schedule.legality import LANES
from systolic.schedule.sizes import padded


def in_lanes(name: str, shape: tuple[int, ...], dtype: str, slots: int | None = None) -> VmemBuffer:
    """Return a buffer, or a ring of slots, whose columns take whole registers."""
    return VmemBuffer(
        name=name,
        shape=(*shape[:-1], padded(shape[-1], LANES)),
        dtype=dtype,
        copies=1 if slots is None else slots,
        ref_shape=shape if slots is None else (slots, *shape),
    )
