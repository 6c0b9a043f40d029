"""Ragged all-to-all: slices of rows go from each device to each, to any row of the receiver's output.

Rows of HBM lie in tiles of eight, and copies move whole tiles. So the sender shifts rows in VMEM to the place in a tile
that they have at the receiver, and sends whole tiles to where they belong. A tile that a slice fills only in part, at
its beginning or its end, goes to a place of its own in the receiver's VMEM. When all is there, the receiver puts such
tiles together, with the rows of the output that no slice fills, and stores them. Blocks of rows go to all devices in
turn, so that all links are busy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int, Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.ops.collective.kernel.walk import devices_along
from systolic.ops.moe.exchange_schedule import FETCH_SLOTS, GUARD_TILES, SEND_SLOTS, ExchangeSchedule, ExchangeSpec
from systolic.ops.moe.kernel.combine import in_tiles
from systolic.ops.moe.kernel.packed_rows import SUBLANES, PackedRows, row_codes
from systolic.schedule.legality import LANES

_TILE_SHIFT = SUBLANES.bit_length() - 1


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


class _Refs(NamedTuple):
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


def exchanged(
    slices: Int[Array, "fields slices"],
    edges: Int[Array, "fields edges"],
    counts: Int[Array, " 2"],
    x: Shaped[Array, "rows d"],
    output: Shaped[Array, "out_rows d"],
    *,
    axis_name: str,
    collective_id: int,
    spec: ExchangeSpec,
    schedule: ExchangeSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "out_rows d"]:
    """Return `output` with the rows that arrive. Tables are those of `Slice` and `Edge`."""
    fetched, sent = (
        PackedRows(slots=slots, tiles=tiles, registers=spec.registers, dtype=spec.dtype, is_interpreted=bool(interpret))
        for slots, tiles in ((FETCH_SLOTS, schedule.tiles + 1 + 2 * GUARD_TILES), (SEND_SLOTS, schedule.tiles))
    )
    tiles = (spec.registers, SUBLANES, LANES)
    edge_tiles = pltpu.VMEM((2 * spec.slices, *tiles), x.dtype)
    scalars, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)
    out = pl.pallas_call(
        functools.partial(_kernel, axis_name, spec, schedule.tiles, fetched, sent),
        in_specs=[scalars, scalars, scalars, hbm, hbm],
        out_specs=hbm,
        out_shape=shape_with_mesh_axes((spec.out_rows // SUBLANES, *tiles), x.dtype, [x, output, slices]),
        input_output_aliases={4: 0},
        scratch_shapes=[
            fetched.scratch,
            sent.scratch,
            edge_tiles,
            edge_tiles,
            pltpu.SMEM((SEND_SLOTS,), jnp.int32),
            pltpu.SMEM((1,), jnp.int32),
            pltpu.SemaphoreType.DMA((FETCH_SLOTS,)),
            pltpu.SemaphoreType.DMA((SEND_SLOTS,)),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.REGULAR,
        ],
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=spec.least_hbm_bytes),
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        name=f"systolic_ragged_all_to_all_{spec.dtype}_{spec.rows}_{spec.d}",
    )(slices, edges, counts, in_tiles(x, interpret), in_tiles(output, interpret))
    return out.transpose(0, 2, 1, 3).reshape(spec.out_rows, spec.d)


def _kernel(axis_name: str, spec: ExchangeSpec, tiles: int, fetched: PackedRows, sent: PackedRows, *refs: Any) -> None:
    refs = _Refs(*refs)
    device, me = devices_along(axis_name), lax.axis_index(axis_name)

    def old_tile(edge: Any) -> Any:
        return pltpu.make_async_copy(refs.out.at[refs.edges[Edge.TILE, edge]], refs.merged.at[edge], refs.edge_sem)

    # No other device writes these tiles.
    _of_merged_edges(refs, lambda edge: old_tile(edge).start())
    for slot in range(SEND_SLOTS):
        refs.sent_tiles[slot] = 0
    refs.sent_blocks[0] = 0
    barrier = pltpu.get_barrier_semaphore()
    _signal_others(barrier, device, me, spec.devices)
    pl.semaphore_wait(barrier, spec.devices - 1)
    # Another kernel may use the barrier next. No device leaves this one before all have passed.
    _signal_others(refs.passed_sem, device, me, spec.devices)

    _send_all(device, me, spec, tiles, fetched, sent, refs)
    of_output = functools.partial(_equal_copy, refs.out, refs.recv_sem)
    _by_powers_of_two(refs.counts[1], spec.out_rows // SUBLANES, lambda count: of_output(count).wait_recv())
    _of_merged_edges(refs, lambda edge: old_tile(edge).wait())
    lax.fori_loop(0, 2 * spec.slices, lambda edge, _: _merge(edge, spec, refs), None)

    def new_tile(edge: Any) -> Any:
        return pltpu.make_async_copy(refs.merged.at[edge], refs.out.at[refs.edges[Edge.TILE, edge]], refs.edge_sem)

    _of_merged_edges(refs, lambda edge: new_tile(edge).start())
    for slot in range(SEND_SLOTS):
        _wait_for_slot(slot, tiles, refs)
    _of_merged_edges(refs, lambda edge: new_tile(edge).wait())
    pl.semaphore_wait(refs.passed_sem, spec.devices - 1)


def _signal_others(semaphore: Any, device: Callable[[Any], Any], me: Any, devices: int) -> None:
    for distance in range(1, devices):
        pl.semaphore_signal(semaphore, device_id=device(lax.rem(me + distance, jnp.int32(devices))))


def _of_merged_edges(refs: _Refs, act: Callable[[Any], None]) -> None:
    """Act on the first edge of each tile of the output that has one."""

    def visit(edge: Any, _: None) -> None:
        is_edge = refs.edges[Edge.BEGIN, edge] < refs.edges[Edge.END, edge]
        pl.when(is_edge & (refs.edges[Edge.MERGED, edge] == edge))(lambda: act(edge))

    lax.fori_loop(0, refs.edges.shape[1], visit, None)


def _equal_copy(ref: Any, semaphore: Any, tiles: int) -> Any:
    """Return a copy of so many tiles, to wait for."""
    part = ref.at[pl.ds(0, tiles)]
    return pltpu.make_async_remote_copy(part, part, semaphore, semaphore, device_id=0, device_id_type=_LOGICAL)


_LOGICAL = pl.DeviceIdType.LOGICAL


def _by_powers_of_two(count: Any, limit: int, act: Callable[[int], None]) -> None:
    """Act on parts of a count, each a power of two of at most `limit`."""
    bits = limit.bit_length() - 1
    lax.fori_loop(0, count >> bits, lambda _, none: act(1 << bits), None)
    for bit in range(bits):
        pl.when((count >> bit) & 1 == 1)(functools.partial(act, 1 << bit))


def _wait_for_slot(slot: Any, tiles: int, refs: _Refs) -> None:
    """Wait until what was sent from a slot has left it."""
    # The operand has more tiles than a block.
    waited = functools.partial(_equal_copy, refs.x, refs.send_sem.at[slot])
    _by_powers_of_two(refs.sent_tiles[slot], tiles, lambda count: waited(count).wait_send())


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


def _block(number: Any, me: Any, spec: ExchangeSpec, tiles: int, refs: _Refs) -> _Block:
    """Return a block by its number: first blocks of slices to all devices, then second ones."""
    per_device = spec.slices // spec.devices
    depth, place = lax.div(number, jnp.int32(spec.slices)), lax.rem(number, jnp.int32(spec.slices))
    turn, index = lax.rem(place, jnp.int32(spec.devices)), lax.div(place, jnp.int32(spec.devices))
    receiver = lax.rem(me + 1 + turn, jnp.int32(spec.devices))
    which = receiver * per_device + index
    input_row, rows, output_row = (refs.slices[field, which] for field in (Slice.INPUT_ROW, Slice.ROWS, Slice.OUTPUT_ROW))
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


def _send_all(
    device: Callable[[Any], Any], me: Any, spec: ExchangeSpec, tiles: int, fetched: PackedRows, sent: PackedRows, refs: _Refs
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
            _wait_for_slot(slot, tiles, refs)
            refs.sent_tiles[slot], refs.sent_blocks[0] = block.count, refs.sent_blocks[0] + 1
            _shift(block, lax.rem(number, jnp.int32(FETCH_SLOTS)), slot, fetched, sent, refs)
            _send(block, slot, device(block.receiver), tiles, sent, refs)

    start(jnp.int32(0))
    lax.fori_loop(0, numbers, step, None)


def _shift(block: _Block, fetch_slot: Any, slot: Any, fetched: PackedRows, sent: PackedRows, refs: _Refs) -> None:
    """Copy the rows of a block to where they lie in the receiver's tiles."""
    codes = [row_codes(block.row + row, fetched.registers, fetched.dtype) for row in range(SUBLANES)]
    next_tile = row_codes(SUBLANES, fetched.registers, fetched.dtype) - row_codes(0, fetched.registers, fetched.dtype)

    def copy(tile: Any, _: None) -> None:
        moved = [code + tile * next_tile for code in codes]
        fetched.copy(refs.fetched, fetch_slot, moved, sent, refs.sent, slot, tile)

    lax.fori_loop(0, block.count, copy, None)


def _send(block: _Block, slot: Any, device_id: Any, tiles: int, sent: PackedRows, refs: _Refs) -> None:
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


def _merge(edge: Any, spec: ExchangeSpec, refs: _Refs) -> None:
    """Put the rows of an edge into its tile of the output."""
    begin, end, merged = (refs.edges[field, edge] for field in (Edge.BEGIN, Edge.END, Edge.MERGED))

    @pl.when(begin < end)
    def _rows() -> None:
        pack = SUBLANES // pltpu.bitcast(jnp.zeros((SUBLANES, LANES), refs.out.dtype), jnp.int32).shape[0]
        word_bits = 32 // pack
        word = lax.broadcasted_iota(jnp.int32, (SUBLANES // pack, LANES), 0)
        mask = jnp.zeros_like(word)
        for at in range(pack):
            row = word * pack + at
            bits = (2**word_bits - 1) << (word_bits * at)
            bits = bits - 2**32 if bits >= 2**31 else bits
            mask |= jnp.where((row >= begin) & (row < end), jnp.int32(bits), jnp.int32(0))
        for register in range(spec.registers):
            new, old = (
                pltpu.bitcast(ref[number, register], jnp.int32)
                for ref, number in ((refs.arrived_edges, edge), (refs.merged, merged))
            )
            refs.merged[merged, register] = pltpu.bitcast((new & mask) | (old & ~mask), refs.merged.dtype)
