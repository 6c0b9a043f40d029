"""All-gather × matmul in one kernel: rows of x come round a ring while those that have arrived are multiplied.

    out[devices · rows, columns] = all_gather(x[rows, k]) @ w[k, columns]

With two matrices w there are two sums, from which `finish` makes one result or more. The gathered x can be a result
too.

Each device sends its rows both ways round the ring, in pieces. A device forwards a piece as soon as it arrives, then
multiplies it. After devices / 2 hops every row has reached every device; each direction brings half of the opposite
device's rows. So a link carries (devices − 1) / 2 chunks in each direction, the least for a ring.

Rows lie in VMEM in order of arrival. Each piece has a slot of its own, so no device has to signal that a slot is free.
If the rows do not fit, they go round the ring in parts: there are slots for two, and the pieces of the next part follow
without a break. A device sends a part when its neighbors have forwarded some of the previous part, and so have
multiplied the part before that, whose slots it fills.

The weights are copied to VMEM once. The rows of some slots are multiplied at once, one block of columns after another;
the first ones by smaller blocks, as these weights arrive.

Two cores share the rows of every chunk, each with a ring of its own and all weights. If a core had no whole pieces, or
the weights did not fit, they share the columns, and each sends all rows round a ring of its own.
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
from systolic.kernels.ring import Act, Ring
from systolic.ops.collective.kernel.launch import RingKernel, RingOperands, RingResults
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.collective.schedule import OUT_SLOTS, PART_SLOTS, WAYS, RingSchedule
from systolic.ops.collective.wire import decoded, scales_of
from systolic.schedule.legality import LANES

_ROW_ALIGNMENT = 8
_CONVERTED_ROWS = 32  # at once: of int8 a register has as many


def all_gather_matmul(operands: RingOperands, kernel: RingKernel[RingSchedule]) -> RingResults:
    """Return `finish(out, bias)`, [devices · rows, columns], and perhaps all rows of x, which has `rows` rows."""
    schedule = kernel.schedule
    return kernel.launch(
        _body,
        operands,
        name="all_gather_matmul",
        rows=schedule.devices * schedule.chunk_rows,
        buffers=schedule.gather_buffers(operands.w[0].shape[1 if schedule.transpose_rhs else 0], kernel.dtype_out),
        semaphores={
            "own_sem": pltpu.SemaphoreType.DMA((schedule.part_slots,)),
            "kept_sem": pltpu.SemaphoreType.DMA,
            "w_sem": pltpu.SemaphoreType.DMA((schedule.columns // schedule.first_block,)),
            "send_sem": pltpu.SemaphoreType.DMA((schedule.part_slots, WAYS)),
            "recv_sem": pltpu.SemaphoreType.DMA((schedule.part_slots, WAYS, schedule.steps)),
            "out_sem": pltpu.SemaphoreType.DMA((OUT_SLOTS,)),
        },
    )


def _body(
    refs: RingOperands,  # x and w in HBM
    results: RingResults,  # in HBM
    *,
    x_vmem,  # [parts in VMEM · slots, directions, piece_rows, k]
    w_vmem,  # [weights · blocks, k, block], or [weights · blocks, block, k]
    out_vmem,  # [2, outs, slots_at_once · directions, piece_rows, block]
    own_sem,  # [parts in VMEM]
    kept_sem,
    w_sem,  # [columns / first_block]
    send_sem,  # [parts in VMEM, directions]
    recv_sem,  # [parts in VMEM, directions, steps]
    out_sem,  # [2]
    kernel: RingKernel[RingSchedule],
    made_vmem: Any = None,  # [rows of a pass, k]: values of rows that travel in another dtype than is multiplied
    scales_vmem: Any = None,  # [rows of a pass, 128] float32
):
    schedule, x_hbm = kernel.schedule, refs.x
    rows, pieces, own_slots = schedule.piece_rows, schedule.pieces, schedule.own_slots
    at_once, blocks, block = schedule.slots_at_once, schedule.blocks, schedule.block
    first_block = schedule.first_block
    k = x_vmem.shape[-1] - (0 if schedule.wire_dtype is None else LANES)
    converted_rows = min(rows, _CONVERTED_ROWS)
    strips = block // first_block  # of a block, multiplied one by one in the first pass
    walk = Walk(kernel.axis_name, refs.ring, schedule.cores)
    row_share, column_share = schedule.share_of(core_number(schedule.cores))
    first_row, core_block = row_share * schedule.rows, column_share * blocks

    def columns_of(number: Any) -> Any:
        return pl.ds(pl.multiple_of((core_block + number) * block, LANES), block)

    def weights(number: Any, strip: Any, act: Act) -> None:
        first = (core_block + number) * block + strip * first_block
        columns = pl.ds(pl.multiple_of(first, LANES), first_block)
        for index, w_hbm in enumerate(refs.w):
            to = w_vmem.at[index * blocks + number, *kernel.block_of(columns_of_strip(strip))]
            copied = pltpu.make_async_copy(w_hbm.at[*kernel.block_of(columns)], to, w_sem.at[number * strips + strip])
            act(copied)

    def columns_of_strip(strip: Any) -> Any:
        return pl.ds(pl.multiple_of(strip * first_block, LANES), first_block)

    def place_of(part: Any) -> Any:
        return 0 if schedule.parts == 1 else lax.rem(part, jnp.int32(PART_SLOTS))

    def place_of_slot(part: Any, slot: Any) -> Any:
        return place_of(part) * schedule.slots + slot

    def rows_at(device_rows: Any, part: Any, piece: Any) -> Any:
        """Return the rows of a piece, counted from `device_rows`, the first row of its device."""
        return pl.ds(pl.multiple_of(device_rows + first_row + (part * pieces + piece) * rows, _ROW_ALIGNMENT), rows)

    def own(part: Any, act: Act) -> None:
        """Copy a part of the device's own rows to VMEM."""
        for piece in range(pieces):
            slot, way = divmod(piece, WAYS)
            to = x_vmem.at[place_of_slot(part, slot), way]
            act(pltpu.make_async_copy(x_hbm.at[rows_at(0, part, piece)], to, own_sem.at[place_of(part)]))

    def piece_of(step: Any, direction: int) -> Any:
        # The directions begin with different halves: of the opposite chunk each brings only its first half.
        return lax.rem(step + direction * own_slots, jnp.int32(pieces))

    def sent(part: Any, step: Any, direction: int, source: Any) -> Any:
        to, place = x_vmem.at[place_of_slot(part, step + own_slots), direction], place_of(part)
        return walk.copy_on(source, to, send_sem.at[place, direction], recv_sem.at[place, direction, step], direction)

    def begun(part: Any, step: Any, direction: int) -> Any:
        """Return the copy of one of the first steps, which sends the device's own rows."""
        return sent(part, step, direction, x_hbm.at[rows_at(0, part, piece_of(step, direction))])

    def forwarded(part: Any, step: Any, direction: int) -> Any:
        """Return the copy of a step, which sends on what arrived `pieces` steps ago."""
        return sent(part, step, direction, x_vmem.at[place_of_slot(part, step + own_slots - pieces), direction])

    def have_been_sent(part: Any) -> None:
        for _ in range(schedule.steps):
            for direction in DIRECTIONS:
                sent(part, 0, direction, x_vmem.at[0, direction]).wait_send()  # all sends are equally long

    def rows_of(part: Any, slot: Any, direction: int) -> Any:
        """Return the rows of the device that a slot's piece came from."""
        step = slot - own_slots
        is_own = step < 0
        distance = jnp.where(is_own, 0, lax.div(step, jnp.int32(pieces)) + 1)
        piece = jnp.where(is_own, WAYS * slot + direction, piece_of(step, direction))
        return rows_at(walk.upstream(direction, distance) * schedule.chunk_rows, part, piece)

    def part_and_group(number: Any) -> tuple[Any, Any]:
        """Return the part of a pass, and the group of its slots that the pass multiplies."""
        if schedule.parts == 1:
            return 0, number
        return lax.div(number, jnp.int32(schedule.groups)), lax.rem(number, jnp.int32(schedule.groups))

    def stored(number: Any, act: Act) -> None:
        """Copy one block of a group's results to the rows of the devices that its pieces came from."""
        of_pass, column = lax.div(number, jnp.int32(blocks)), lax.rem(number, jnp.int32(blocks))
        part, group = part_and_group(of_pass)
        place = lax.rem(number, jnp.int32(OUT_SLOTS))
        for piece in range(at_once * WAYS):
            index, direction = divmod(piece, WAYS)
            block_rows = rows_of(part, group * at_once + index, direction)
            for number_out, out_hbm in enumerate(results.outs):
                to = out_hbm.at[block_rows, columns_of(column)]
                act(pltpu.make_async_copy(out_vmem.at[place, number_out, piece], to, out_sem.at[place]))

    def kept(part: Any, slot: Any, act: Act) -> None:
        """Copy the pieces of a slot to the gathered rows, if they are a result."""
        if results.x is None:
            return
        for direction in DIRECTIONS:
            to = results.x.at[rows_of(part, slot, direction)]
            copied = pltpu.make_async_copy(x_vmem.at[place_of_slot(part, slot), direction], to, kept_sem)
            # Cores that share columns all have these rows.
            pl.when(column_share == 0)(functools.partial(act, copied))

    def finish(part: Any) -> None:
        """Wait until nothing reads the slots of a part any more."""
        have_been_sent(part)
        lax.fori_loop(0, schedule.slots, lambda slot, _: kept(part, slot, lambda copy: copy.wait()), None)

    out = Ring(slots=OUT_SLOTS, copies=stored)
    own(0, lambda copy: copy.start())

    def each_strip(number: Any, act: Any) -> None:
        lax.fori_loop(0, strips, lambda strip, _: act(number, strip), None)

    def start_weights(number: Any, strip: Any) -> None:
        weights(number, strip, lambda copy: copy.start())

    lax.fori_loop(0, blocks, lambda number, _: each_strip(number, start_weights), None)
    walk.barrier()
    for step in range(min(pieces, schedule.steps)):
        for direction in DIRECTIONS:
            begun(0, step, direction).start()

    def begin(part: Any) -> None:
        """Wait for the device's own rows of a part, and start to copy its rows of the next part."""
        own(part, lambda copy: copy.wait())
        if schedule.parts > 1:
            pl.when(part + 1 < schedule.parts)(lambda: own(part + 1, lambda copy: copy.start()))

    def proceed(part: Any) -> None:
        finish(part - 1)
        begin(part)

    def arrive(part: Any, slot: Any) -> None:
        step = slot - own_slots

        @pl.when(step >= 0)
        def _() -> None:
            later = step + pieces
            for direction in DIRECTIONS:
                forwarded(part, step, direction).wait_recv()
                pl.when(later < schedule.steps)(functools.partial(_start, forwarded, part, later, direction))
            if schedule.parts > 1:
                # After both have come: a neighbor has forwarded what comes from it now, so the next part's slots are
                # free there.
                follows = (later >= schedule.steps) & (part + 1 < schedule.parts)
                for direction in DIRECTIONS:
                    pl.when(follows)(functools.partial(_start, begun, part + 1, later - schedule.steps, direction))

        kept(part, slot, lambda copy: copy.start())

    def make(part: Any, group: Any, chunk: Any) -> None:
        """Convert the values of some rows to the dtype that is multiplied, and keep the rows' scales."""
        first = chunk * converted_rows
        piece, row = lax.div(first, jnp.int32(rows)), lax.rem(first, jnp.int32(rows))
        slot = place_of_slot(part, group * at_once + lax.div(piece, jnp.int32(WAYS)))
        source, to = (pl.ds(pl.multiple_of(start, converted_rows), converted_rows) for start in (row, first))
        x = x_vmem[slot, lax.rem(piece, jnp.int32(WAYS)), source]
        if made_vmem is not None and schedule.wire_dtype is not None:
            made_vmem[to] = decoded(x[:, :k], schedule.wire_dtype).astype(made_vmem.dtype)
        scales_vmem[to] = jnp.broadcast_to(scales_of(x[:, k:]), (converted_rows, LANES))

    def multiply(of_pass: Any, columns: Callable[[Any, Any], None]) -> None:
        part, group = part_and_group(of_pass)
        if schedule.parts > 1:
            pl.when((group == 0) & (part > 0))(lambda: proceed(part))
        lax.fori_loop(group * at_once, (group + 1) * at_once, lambda slot, _: arrive(part, slot), None)

        if schedule.wire_dtype is not None:
            chunks = schedule.pass_rows // converted_rows
            lax.fori_loop(0, chunks, lambda chunk, _: make(part, group, chunk), None)

        def column(number: Any, _: None) -> None:
            at = of_pass * blocks + number
            out.reserve(at)
            columns(number, out.slot(at))
            out.start(at)

        lax.fori_loop(0, blocks, column, None)

    def store(of_pass: Any, number: Any, columns: Any, place: Any) -> None:
        if made_vmem is None:
            part, group = part_and_group(of_pass)
            x = x_vmem[pl.ds(place_of_slot(part, group * at_once), at_once), :, :, :k]
            x = x.reshape(at_once * WAYS * rows, k)
            x = x if schedule.wire_dtype is None else decoded(x, schedule.wire_dtype)
        else:
            x = made_vmem[...]
        bias = None if refs.bias is None else refs.bias[core_block + number, :, columns]
        indices = [index * blocks + number for index in range(schedule.weights)]
        totals = tuple(kernel.dot(x, w_vmem[index, *kernel.block_of(columns)]) for index in indices)
        if scales_vmem is not None:
            totals = tuple(total * scales_vmem[:, :1] for total in totals)
        if refs.scales is not None:
            totals = tuple(total * refs.scales[core_block + number, :, columns] for total in totals)
        for number_out, out in enumerate(kernel.finish(totals, bias)):
            out_vmem[place, number_out, :, :, columns] = out.reshape(at_once * WAYS, rows, out.shape[-1])

    def multiply_first(number: Any, place: Any) -> None:
        """Multiply each strip of a block as soon as its weights are in VMEM."""

        def multiply_strip(number: Any, strip: Any) -> None:
            weights(number, strip, lambda copy: copy.wait())
            store(jnp.int32(0), number, columns_of_strip(strip), place)

        each_strip(number, multiply_strip)

    passes = schedule.parts * schedule.groups
    begin(jnp.int32(0))
    multiply(jnp.int32(0), multiply_first)

    def following(of_pass: Any, _: None) -> None:
        multiply(of_pass, lambda number, place: store(of_pass, number, slice(None), place))

    lax.fori_loop(1, passes, following, None)
    out.drain(passes * blocks)
    finish(schedule.parts - 1)


def _start(copy: Any, part: Any, step: Any, direction: int) -> None:
    copy(part, step, direction).start()
