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
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int, Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.packed_rows import SUBLANES, PackedRows, in_tiles
from systolic.ops.collective.kernel.walk import devices_along
from systolic.ops.exchange.kernel.blocks import (
    ExchangeRefs,
    by_powers_of_two,
    equal_copy,
    send_all,
    wait_for_slot,
)
from systolic.ops.exchange.schedule import FETCH_SLOTS, GUARD_TILES, SEND_SLOTS, ExchangeSchedule, ExchangeSpec
from systolic.ops.exchange.tables import Edge
from systolic.schedule.legality import LANES


def exchanged(
    slices: Int[Array, "fields slices"],
    edges: Int[Array, "fields edges"],
    counts: Int[Array, " 2"],
    x: Shaped[Array, "rows d"],
    output: Shaped[Array, "out_rows d"],
    *,
    axis_name: str,
    collective_id: int,
    reads_hbm: bool,
    spec: ExchangeSpec,
    schedule: ExchangeSchedule,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "out_rows d"]:
    """Return `output` with the rows that arrive. The rows of the tables are `Slice` and `Edge`."""
    fetched, sent = (
        PackedRows(slots=slots, tiles=tiles, registers=spec.registers, dtype=spec.dtype, is_interpreted=bool(interpret))
        for slots, tiles in ((FETCH_SLOTS, schedule.tiles + 1 + 2 * GUARD_TILES), (SEND_SLOTS, schedule.tiles))
    )
    tiles = (spec.registers, SUBLANES, LANES)
    edge_tiles = pltpu.VMEM((2 * spec.slices, *tiles), x.dtype)
    scalars, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)
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
    )(slices, edges, counts, in_tiles(x, bool(interpret) or not reads_hbm), in_tiles(output, True))
    return out.transpose(0, 2, 1, 3).reshape(spec.out_rows, spec.d)


def _kernel(axis_name: str, spec: ExchangeSpec, tiles: int, fetched: PackedRows, sent: PackedRows, *refs: Any) -> None:
    refs = ExchangeRefs(*refs)
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

    send_all(device, me, spec, tiles, fetched, sent, refs)
    of_output = functools.partial(equal_copy, refs.out, refs.recv_sem, device(me))
    by_powers_of_two(refs.counts[1], spec.out_rows // SUBLANES, lambda count: of_output(count).wait_recv())
    _of_merged_edges(refs, lambda edge: old_tile(edge).wait())
    lax.fori_loop(0, 2 * spec.slices, lambda edge, _: _merge(edge, spec, refs), None)

    def new_tile(edge: Any) -> Any:
        return pltpu.make_async_copy(refs.merged.at[edge], refs.out.at[refs.edges[Edge.TILE, edge]], refs.edge_sem)

    _of_merged_edges(refs, lambda edge: new_tile(edge).start())
    for slot in range(SEND_SLOTS):
        wait_for_slot(slot, tiles, device(me), refs)
    _of_merged_edges(refs, lambda edge: new_tile(edge).wait())
    pl.semaphore_wait(refs.passed_sem, spec.devices - 1)


def _signal_others(semaphore: Any, device: Callable[[Any], Any], me: Any, devices: int) -> None:
    for distance in range(1, devices):
        pl.semaphore_signal(semaphore, device_id=device(lax.rem(me + distance, jnp.int32(devices))))


def _of_merged_edges(refs: ExchangeRefs, act: Callable[[Any], None]) -> None:
    """Act on the first edge of each tile of the output that has one."""

    def visit(edge: Any, _: None) -> None:
        is_edge = refs.edges[Edge.BEGIN, edge] < refs.edges[Edge.END, edge]
        pl.when(is_edge & (refs.edges[Edge.MERGED, edge] == edge))(lambda: act(edge))

    lax.fori_loop(0, refs.edges.shape[1], visit, None)


def _merge(edge: Any, spec: ExchangeSpec, refs: ExchangeRefs) -> None:
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
