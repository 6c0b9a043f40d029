"""Matmul × reduce-scatter in one kernel: sums go round a ring, and each device adds its part of them.

    out[rows, columns] = sum over devices of (x[devices · rows, k] @ w[k, columns])[the rows of this device]

Two matrices w are stored as one: each has half of k.

It is all-gather × matmul the other way round. The sum of one device's rows begins at the opposite device, in two halves
that come round the ring both ways, and each device on the way adds its own product. So a link carries (devices − 1) / 2
chunks of the result in each direction, the least for a ring.

A sum travels block by block of columns, in the dtype of the result, or in eight bits with a scale for each row of a
block; a device adds in float32 and rounds what it passes on. Each block has a place of its own in VMEM, where it
arrives, is added to, and is sent from. The weights and x are copied to VMEM once.

The first pass multiplies the rows of all sums that begin here, so that the links are busy while weights still arrive.
Each of the others multiplies the rows of one step, and adds and sends a block before it multiplies the next. For few
rows one pass multiplies all of them, and the sums follow.

Two cores share the columns: each has all rows of x, and a ring of its own for the sums of its columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.launch import core_number
from systolic.kernels.ring import Act
from systolic.ops.collective.kernel.launch import RingKernel, RingOperands, RingResults
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.collective.schedule import WAYS, RingSchedule
from systolic.ops.collective.wire import coded, row_scales, scale_lanes, unpacked
from systolic.schedule.legality import LANES

_ROW_ALIGNMENT = 8
_STRIP_ROWS = 32  # of bytes a register has as many


def matmul_reduce_scatter(operands: RingOperands, kernel: RingKernel[RingSchedule]) -> RingResults:
    """Return `finish(out, bias)`, [rows, columns]; x has devices · rows rows."""
    schedule = kernel.schedule
    assert schedule.scatters_evenly, schedule
    return kernel.launch(
        _body,
        operands,
        name="matmul_reduce_scatter",
        rows=schedule.rows,
        buffers=schedule.scatter_buffers(operands.x.shape[1], kernel.dtype_out),
        semaphores={
            "x_sem": pltpu.SemaphoreType.DMA((schedule.slots,)),
            "w_sem": pltpu.SemaphoreType.DMA((schedule.blocks,)),
            "send_sem": pltpu.SemaphoreType.DMA((WAYS,)),
            "recv_sem": pltpu.SemaphoreType.DMA((WAYS, schedule.steps, schedule.blocks)),
            "out_sem": pltpu.SemaphoreType.DMA,
        },
    )


def _body(
    refs: RingOperands,  # x and w in HBM
    results: RingResults,  # one out, in HBM
    *,
    x_vmem,  # [slots, directions, piece_rows, k], in the order of the steps, the device's own rows last
    w_vmem,  # [blocks, k, block], or [blocks, block, k]
    sums_vmem,  # [steps + pieces, directions, blocks, piece_rows, block], or 128 columns more with bytes and scales
    products_vmem,  # [blocks or 1, slots of a pass, directions, piece_rows, block] float32
    x_sem,  # [slots]
    w_sem,  # [blocks]
    send_sem,  # [directions]
    recv_sem,  # [directions, steps, blocks]
    out_sem,
    kernel: RingKernel[RingSchedule],
    out_vmem: Any = None,  # [pieces, blocks, piece_rows, block]: results, if sums travel in a dtype of their own
):
    schedule, x_hbm, (out_hbm,) = kernel.schedule, refs.x, results.outs
    rows, pieces, own_slots, steps = schedule.piece_rows, schedule.pieces, schedule.own_slots, schedule.steps
    at_once, blocks, block = schedule.slots_at_once, schedule.blocks, schedule.block
    walk = Walk(kernel.axis_name, refs.ring, schedule.cores)
    first_block = core_number(schedule.cores) * blocks  # of the core's columns

    def kept(number: Any) -> Any:
        return 0 if schedule.adds_at_once else number

    def columns_of(number: Any) -> Any:
        return pl.ds(pl.multiple_of((first_block + number) * block, LANES), block)

    def rows_at(device: Any, piece: Any) -> Any:
        return pl.ds(pl.multiple_of((device * pieces + piece) * rows, _ROW_ALIGNMENT), rows)

    def weights(number: Any, act: Act) -> None:
        k = x_hbm.shape[1] // schedule.weights
        for index, w_hbm in enumerate(refs.w):
            to = w_vmem.at[number, *kernel.block_of(slice(None), pl.ds(index * k, k))]
            act(pltpu.make_async_copy(w_hbm.at[*kernel.block_of(columns_of(number))], to, w_sem.at[number]))

    def rows_of(slot: Any) -> list[Any]:
        """Return the copies of a slot's rows: of the devices whose sums this step passes on, and finally its own."""
        left = steps - 1 - slot  # steps that follow, negative for own rows
        is_own = left < 0
        copies = []
        for direction in DIRECTIONS:
            distance = jnp.where(is_own, 0, lax.div(left, jnp.int32(pieces)) + 1)
            # The directions begin with different halves, so that the opposite chunk goes by halves.
            passed_on = lax.rem(left + direction * own_slots + pieces, jnp.int32(pieces))
            piece = jnp.where(is_own, WAYS * (slot - steps) + direction, passed_on)
            source = x_hbm.at[rows_at(walk.downstream(direction, distance), piece)]
            copies.append(pltpu.make_async_copy(source, x_vmem.at[slot, direction], x_sem.at[slot]))
        return copies

    def sent(step: Any, direction: int, number: Any) -> Any:
        """Return the copy of a block's sums, to where they are needed `pieces` steps later."""
        source, to = (sums_vmem.at[slot, direction, number] for slot in (step, step + pieces))
        return walk.copy_on(source, to, send_sem.at[direction], recv_sem.at[direction, step, number], direction)

    strip_rows = min(rows, _STRIP_ROWS)

    def each_strip(act: Callable[[Any], None]) -> None:
        """Act on all rows of a piece, or if sums are made of bytes, on a few at once, which fit in registers."""
        if schedule.wire_dtype is None:
            act(slice(None))
            return

        def act_on(number: Any, _: None) -> None:
            act(pl.ds(pl.multiple_of(number * strip_rows, strip_rows), strip_rows))

        lax.fori_loop(0, rows // strip_rows, act_on, None)

    def arrived(place: Any, strip: Any) -> Any:
        """Return rows of the sums at a place, in float32."""
        sums = place[strip]
        return sums.astype(jnp.float32) if schedule.wire_dtype is None else unpacked(sums, schedule.wire_dtype)

    # The row maxima of one direction are computed while the other direction's values are added.
    together = [[direction] for direction in DIRECTIONS] if schedule.wire_dtype is None else [DIRECTIONS]

    def pass_on(slot: Any, index: Any, number: Any, *, is_first: bool) -> None:
        """Add this device's product to a block of the sums that have arrived, and send it."""

        def add(directions: Any, strip: Any) -> None:
            for direction in directions:
                place = sums_vmem.at[slot, direction, number]
                total = products_vmem[kept(number), index, direction, strip]
                if not is_first:
                    total += arrived(place, strip)
                if schedule.wire_dtype is None:
                    place[strip] = total.astype(place.dtype)
                    continue
                scales = row_scales(total, schedule.wire_dtype)
                place[strip, :block] = coded(total, scales, schedule.wire_dtype)
                place[strip, block:] = scale_lanes(scales)

        for directions in together:
            for direction in () if is_first else directions:
                sent(slot - pieces, direction, number).wait_recv()
            each_strip(functools.partial(add, directions))
            for direction in directions:
                sent(slot, direction, number).start()

    def stored(piece: Any, number: Any, place: Any) -> Any:
        to = out_hbm.at[pl.ds(pl.multiple_of(piece * rows, _ROW_ALIGNMENT), rows), columns_of(number)]
        return pltpu.make_async_copy(place, to, out_sem)

    def finish(slot: Any, index: Any, number: Any) -> None:
        """Add the sums that have arrived from both directions to this device's own product, and store the result."""
        for half in range(WAYS):
            piece = WAYS * (slot - steps) + half
            places = []
            for direction in DIRECTIONS:
                # The step whose sums are of this piece, the mirror image of `rows_of`.
                last = steps - 1 - lax.rem(piece + (pieces - own_slots) * direction, jnp.int32(pieces))
                has_come = last >= 0  # of two devices, each half of the rows comes one way only
                pl.when(has_come)(sent(last, direction, number).wait_recv)
                places.append((has_come, sums_vmem.at[last + pieces, direction, number]))
            to = places[0][1] if out_vmem is None else out_vmem.at[piece, number]

            def finish_strip(strip: Any, half: int = half, places: Any = tuple(places), to: Any = to) -> None:
                total = products_vmem[kept(number), index, half, strip]
                for has_come, place in places:
                    total += jnp.where(has_come, arrived(place, strip), 0.0)
                bias = None if refs.bias is None else refs.bias[first_block + number]
                (to[strip],) = kernel.finish((total,), bias)

            each_strip(finish_strip)
            stored(piece, number, to).start()

    def each_slot(begin: Any, end: Any, act: str) -> None:
        lax.fori_loop(begin, end, lambda slot, _: _each(rows_of(slot), act), None)

    def each_block(act: Callable[[Any], None]) -> None:
        lax.fori_loop(0, blocks, lambda number, _: act(number), None)

    def multiply(first: Any, count: int, number: Any) -> None:
        x = x_vmem[pl.ds(first, count)].reshape(count * WAYS * rows, x_vmem.shape[-1])
        products = kernel.dot(x, w_vmem[number])
        if refs.scales is not None:  # before sums travel: each device has scales of its own
            products *= refs.scales[first_block + number]
        products_vmem[kept(number), :count] = products.reshape(count, WAYS, rows, block)

    def add(slot: Any, index: Any, number: Any) -> None:
        pl.when(slot < steps)(lambda: pass_on(slot, index, number, is_first=False))
        pl.when(slot >= steps)(lambda: finish(slot, index, number))

    def begin(number: Any) -> None:
        """Multiply a block as soon as its weights are in VMEM, and send the sums that begin here."""
        weights(number, lambda copy: copy.wait())
        multiply(0, schedule.first_slots, number)
        for slot in range(schedule.fresh_slots):
            pass_on(slot, slot, number, is_first=True)

    each_slot(0, schedule.first_slots, "start")
    each_block(lambda number: weights(number, lambda copy: copy.start()))
    each_slot(schedule.first_slots, schedule.slots, "start")
    walk.barrier()
    each_slot(0, schedule.first_slots, "wait")
    each_block(begin)
    for slot in range(schedule.fresh_slots, schedule.first_slots):
        each_block(functools.partial(add, slot, slot))

    def proceed(group: Any, _: None) -> None:
        first = schedule.first_slots + group * at_once
        each_slot(first, first + at_once, "wait")

        def column(number: Any) -> None:
            multiply(first, at_once, number)
            if schedule.adds_at_once:
                add(first, 0, number)

        each_block(column)
        for index in range(0 if schedule.adds_at_once else at_once):
            each_block(functools.partial(add, first + index, index))

    lax.fori_loop(0, schedule.later_passes, proceed, None)

    def drain(number: Any, _: None) -> None:
        for piece in range(pieces):
            place = sums_vmem.at[steps, 0] if out_vmem is None else out_vmem.at[piece]
            stored(piece, number, place.at[number]).wait()
        for direction in DIRECTIONS * steps:
            sent(0, direction, number).wait_send()  # all sends of a direction are equally long

    lax.fori_loop(0, blocks, drain, None)


def _each(copies: list[Any], act: str) -> None:
    for copy in copies:
        getattr(copy, act)()
