"""The sender of a ragged all-to-all: it shifts blocks of rows to where they lie in the receiver's tiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.packed_rows import SUBLANES, PackedRows, row_codes
from systolic.ops.exchange.schedule import FETCH_SLOTS, GUARD_TILES, SEND_SLOTS, ExchangeSpec
from systolic.ops.exchange.tables import Slice

_TILE_SHIFT = SUBLANES.bit_length() - 1


class ExchangeRefs(NamedTuple):
    slices: Any  # int32 [Slice.COUNT, slices] in SMEM
    edges: Any  # int32 [Edge.COUNT, 2 · slices] in SMEM
    counts: Any  # int32 [2] in SMEM: blocks of the longest slice that is sent, tiles that arrive
    x: Any  # [tiles, registers, 8, 128] in HBM
    old_out: Any  # the same memory as `out`
    out: Any  # [out tiles, registers, 8, 128] in HBM
    fetched: Any  # a buffer of `PackedRows`
    sent: Any  # and another
    arrived_edges: Any  # [2 · slices, registers, 8, 128]
    merged: Any  # the same
    sent_tiles: Any  # int32 [SEND_SLOTS] in SMEM: tiles on their way from each slot
    sent_blocks: Any  # int32 [1] in SMEM
    fetch_sem: Any  # [FETCH_SLOTS]
    send_sem: Any  # [SEND_SLOTS]
    recv_sem: Any
    edge_sem: Any
    passed_sem: Any  # counts devices that have passed the barrier


def equal_copy(ref: Any, semaphore: Any, device_id: Any, tiles: int) -> Any:
    """Return a copy of this number of tiles between devices, to wait for one of that size."""
    part = ref.at[pl.ds(0, tiles)]
    return pltpu.make_async_remote_copy(part, part, semaphore, semaphore, device_id=device_id)


def by_powers_of_two(count: Any, limit: int, act: Callable[[int], None]) -> None:
    """Act on parts of a count, each a power of two of at most `limit`."""
    bits = limit.bit_length() - 1
    lax.fori_loop(0, count >> bits, lambda _, none: act(1 << bits), None)
    for bit in range(bits):
        pl.when((count >> bit) & 1 == 1)(functools.partial(act, 1 << bit))


def wait_for_slot(slot: Any, tiles: int, device_id: Any, refs: ExchangeRefs) -> None:
    """Wait until the tiles that were sent from a slot have left it."""
    # The operand has more tiles than a block.
    waited = functools.partial(equal_copy, refs.x, refs.send_sem.at[slot], device_id)
    by_powers_of_two(refs.sent_tiles[slot], tiles, lambda count: waited(count).wait_send())


class _Block(NamedTuple):
    """A block of tiles of a slice, as they lie at the receiver."""

    receiver: Any  # index on the mesh axis
    edge: Any  # number of the slice's first edge at the receiver
    first: Any  # tile of the slice
    count: Any  # of tiles, 0 if the slice ends before
    first_out: Any  # the slice's first tile of the output
    has_head: Any  # True if the slice's first tile is an edge
    tail: Any  # tile of the slice that is an edge at its end, -1 if there is none
    fetched_tile: Any  # of the operand, the first in VMEM
    row: Any  # of the block's first row, in VMEM


def _block(number: Any, me: Any, spec: ExchangeSpec, tiles: int, refs: ExchangeRefs) -> _Block:
    """Return a block by its number: first blocks of slices to all devices, then second ones."""
    per_device = spec.slices // spec.devices
    depth, place = lax.div(number, jnp.int32(spec.slices)), lax.rem(number, jnp.int32(spec.slices))
    turn, index = lax.rem(place, jnp.int32(spec.devices)), lax.div(place, jnp.int32(spec.devices))
    receiver = lax.rem(me + 1 + turn, jnp.int32(spec.devices))
    which = receiver * per_device + index
    input_row, rows, output_row = (
        refs.slices[field, which] for field in (Slice.INPUT_ROW, Slice.ROWS, Slice.OUTPUT_ROW)
    )
    end, first_out, first = output_row + rows, output_row >> _TILE_SHIFT, depth * tiles
    last = ((end - 1) >> _TILE_SHIFT) - first_out
    ends_within = end & (SUBLANES - 1) != 0
    from_row = ((first_out + first) << _TILE_SHIFT) + input_row - output_row
    fetched_tile = jnp.clip(from_row >> _TILE_SHIFT, 0, refs.x.shape[0] - tiles - 1)
    return _Block(
        receiver=receiver,
        edge=2 * (me * per_device + index),
        first=first,
        count=jnp.where(rows > 0, jnp.clip(last + 1 - first, 0, tiles), 0),
        first_out=first_out,
        has_head=(output_row & (SUBLANES - 1) != 0) | (ends_within & (last == 0)),
        tail=jnp.where(ends_within & (last > 0), last, -1),
        fetched_tile=fetched_tile,
        row=from_row + ((GUARD_TILES - fetched_tile) << _TILE_SHIFT),
    )


def send_all(
    device: Callable[[Any], Any],
    me: Any,
    spec: ExchangeSpec,
    tiles: int,
    fetched: PackedRows,
    sent: PackedRows,
    refs: ExchangeRefs,
) -> None:
    numbers = refs.counts[0] * spec.slices

    def fetch(number: Any, block: _Block) -> Any:
        slot = lax.rem(number, jnp.int32(FETCH_SLOTS))
        source = refs.x.at[pl.ds(block.fetched_tile, tiles + 1)]
        target = fetched.in_tiles(refs.fetched).at[slot, pl.ds(GUARD_TILES, tiles + 1)]
        return pltpu.make_async_copy(source, target, refs.fetch_sem.at[slot])

    def start(number: Any) -> None:
        block = _block(number, me, spec, tiles, refs)
        pl.when((number < numbers) & (block.count > 0))(lambda: fetch(number, block).start())

    def step(number: Any, _: None) -> None:
        start(number + 1)
        block = _block(number, me, spec, tiles, refs)

        @pl.when(block.count > 0)
        def _sent() -> None:
            fetch(number, block).wait()
            slot = lax.rem(refs.sent_blocks[0], jnp.int32(SEND_SLOTS))
            wait_for_slot(slot, tiles, device(block.receiver), refs)
            refs.sent_tiles[slot], refs.sent_blocks[0] = block.count, refs.sent_blocks[0] + 1
            _shift(block, lax.rem(number, jnp.int32(FETCH_SLOTS)), slot, fetched, sent, refs)
            _send(block, slot, device(block.receiver), tiles, sent, refs)

    start(jnp.int32(0))
    lax.fori_loop(0, numbers, step, None)


def _shift(
    block: _Block, fetch_slot: Any, slot: Any, fetched: PackedRows, sent: PackedRows, refs: ExchangeRefs
) -> None:
    """Copy the rows of a block to where they lie in the receiver's tiles."""
    codes = [row_codes(block.row + row, fetched.registers, fetched.dtype) for row in range(SUBLANES)]
    next_tile = row_codes(SUBLANES, fetched.registers, fetched.dtype) - row_codes(0, fetched.registers, fetched.dtype)

    def copy(tile: Any, _: None) -> None:
        moved = [code + tile * next_tile for code in codes]
        fetched.copy(refs.fetched, fetch_slot, moved, sent, refs.sent, slot, tile)

    lax.fori_loop(0, block.count, copy, None)


def _send(block: _Block, slot: Any, device_id: Any, tiles: int, sent: PackedRows, refs: ExchangeRefs) -> None:
    source, semaphores = sent.in_tiles(refs.sent).at[slot], (refs.send_sem.at[slot], refs.recv_sem)

    def start(part: Any, target: Any) -> None:
        pltpu.make_async_remote_copy(source.at[part], target, *semaphores, device_id=device_id).start()

    has_head = block.has_head & (block.first == 0)
    has_tail = (block.tail >= block.first) & (block.tail < block.first + tiles)
    is_whole = (block.count == tiles) & ~has_head & ~has_tail
    first = block.first_out + block.first

    @pl.when(is_whole)
    def _whole() -> None:
        start(pl.ds(0, tiles), refs.out.at[pl.ds(first, tiles)])

    @pl.when(~is_whole)
    def _tiles() -> None:
        def tile_sent(tile: Any, _: None) -> None:
            is_head, is_tail = has_head & (tile == 0), block.first + tile == block.tail
            is_edge = is_head | is_tail
            edge = block.edge + is_tail.astype(jnp.int32)
            pl.when(is_edge)(lambda: start(tile, refs.arrived_edges.at[edge]))
            pl.when(~is_edge)(lambda: start(tile, refs.out.at[first + tile]))

        lax.fori_loop(0, block.count, tile_sent, None)
