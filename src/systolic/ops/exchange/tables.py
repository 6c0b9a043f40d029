"""The tables of a ragged all-to-all: where slices of rows are, and the tiles that they fill in part."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.packed_rows import SUBLANES


class Slices(NamedTuple):
    """Slices of rows, int32 [slices]. Slice i goes to device `i // (slices / devices)`, or comes from there."""

    input_offsets: Array  # in this device's operand
    send_sizes: Array
    output_offsets: Array  # of the sent slices, in their receivers' outputs
    recv_sizes: Array
    recv_offsets: Array  # of the received slices, in this device's output

    def reversed(self, axis: str) -> Slices:
        """Return the slices that send all rows back."""
        return Slices(
            input_offsets=self.recv_offsets,
            send_sizes=self.recv_sizes,
            output_offsets=lax.all_to_all(self.input_offsets, axis, 0, 0, tiled=True),
            recv_sizes=self.send_sizes,
            recv_offsets=self.input_offsets,
        )


class Slice(IntEnum):
    """Rows of the table of slices that a device sends."""

    INPUT_ROW = 0
    ROWS = 1
    OUTPUT_ROW = 2
    COUNT = 3


class Edge(IntEnum):
    """Rows of the table of tiles that arriving slices fill in part: the first and last tile of each slice."""

    TILE = 0  # of the output
    BEGIN = 1  # of its rows in the tile
    END = 2  # equal to BEGIN if there is no such tile
    MERGED = 3  # the first edge of the same tile
    COUNT = 4


def tables(slices: Slices, block_tiles: int) -> tuple[Array, Array, Array]:
    """Return the kernel's tables of slices and of edges, and its counts."""

    def tiles_of(offsets: Array, sizes: Array) -> tuple[Array, Array, Array]:
        first, last = offsets // SUBLANES, (offsets + sizes - 1) // SUBLANES
        return first, last, jnp.where(sizes > 0, last - first + 1, 0)

    begins, sizes = slices.recv_offsets, slices.recv_sizes
    ends = begins + sizes
    first, last, arriving = tiles_of(begins, sizes)
    head_begin, tail_end = begins % SUBLANES, ends % SUBLANES
    is_one_tile = first == last
    head_end = jnp.where(is_one_tile & (tail_end > 0), tail_end, SUBLANES)
    has_head = (sizes > 0) & ((head_begin > 0) | (head_end < SUBLANES))
    has_tail = (sizes > 0) & ~is_one_tile & (tail_end > 0)
    none = jnp.zeros_like(sizes)
    pairs = (
        (first, last),
        (jnp.where(has_head, head_begin, 0), none),
        (jnp.where(has_head, head_end, 0), jnp.where(has_tail, tail_end, 0)),
    )
    tile, begin, end = (jnp.stack(pair, 1).reshape(-1) for pair in pairs)
    is_same = (tile[:, None] == tile) & (begin < end)
    edges = jnp.stack([tile, begin, end, is_same.argmax(1).astype(jnp.int32)])
    sent = tiles_of(slices.output_offsets, slices.send_sizes)[2]
    counts = jnp.stack([-(-sent.max() // block_tiles), arriving.sum()])
    return jnp.stack(slices[:3]), edges, counts
