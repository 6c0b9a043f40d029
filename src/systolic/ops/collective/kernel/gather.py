"""All-gather × matmul in one kernel: rows of x come round a ring while those that have arrived are multiplied.

    out[devices · rows, columns] = all_gather(x[rows, k]) @ w[k, columns]

With two matrices w there are two sums, of which `finish` makes one result or more. The gathered x can be a result too.

Each device sends its rows both ways round the ring, in pieces. A device forwards a piece as soon as it arrives, then
multiplies it. After devices / 2 hops every row has reached every device; each direction brings half of the opposite
device's rows. So a link carries (devices − 1) / 2 chunks in each direction, the least for a ring.

Rows lie in VMEM in order of arrival. Each piece has a slot of its own, so no device has to signal that a slot is free.
The weights are copied to VMEM once. The rows of some slots are multiplied at once, one block of columns after another;
the first ones by smaller blocks, as these weights arrive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.ring import Act, Ring
from systolic.ops.collective.kernel.launch import RingKernel, RingOperands, RingResults
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.collective.schedule import OUT_SLOTS, WAYS, RingSchedule
from systolic.schedule.legality import LANES

_ROW_ALIGNMENT = 8


def all_gather_matmul(operands: RingOperands, kernel: RingKernel[RingSchedule]) -> RingResults:
    """Return `finish(out, bias)`, [devices · rows, columns], and perhaps all rows of x, which has `rows` rows."""
    schedule = kernel.schedule
    return kernel.launch(
        _body,
        operands,
        name="all_gather_matmul",
        rows=schedule.devices * schedule.rows,
        buffers=schedule.gather_buffers(operands.x.shape[1], kernel.dtype_out),
        semaphores={
            "own_sem": pltpu.SemaphoreType.DMA,
            "kept_sem": pltpu.SemaphoreType.DMA,
            "w_sem": pltpu.SemaphoreType.DMA((schedule.columns // schedule.first_block,)),
            "send_sem": pltpu.SemaphoreType.DMA((WAYS,)),
            "recv_sem": pltpu.SemaphoreType.DMA((WAYS, schedule.steps)),
            "out_sem": pltpu.SemaphoreType.DMA((OUT_SLOTS,)),
        },
    )


def _body(
    refs: RingOperands,  # x and w in HBM
    results: RingResults,  # in HBM
    *,
    x_vmem,  # [slots, directions, piece_rows, k]
    w_vmem,  # [weights · blocks, k, block], or [weights · blocks, block, k]
    out_vmem,  # [2, outs, slots_at_once · directions, piece_rows, block]
    own_sem,
    kept_sem,
    w_sem,  # [columns / first_block]
    send_sem,  # [directions]
    recv_sem,  # [directions, steps]
    out_sem,  # [2]
    kernel: RingKernel[RingSchedule],
):
    schedule, x_hbm = kernel.schedule, refs.x
    rows, pieces, own_slots = schedule.piece_rows, schedule.pieces, schedule.own_slots
    at_once, blocks, block = schedule.slots_at_once, schedule.blocks, schedule.block
    first_block = schedule.first_block
    parts = block // first_block
    walk = Walk(kernel.axis_name, refs.ring)

    def columns_of(number: Any) -> Any:
        return pl.ds(pl.multiple_of(number * block, LANES), block)

    def weights(number: Any, part: Any, act: Act) -> None:
        columns = pl.ds(pl.multiple_of(number * block + part * first_block, LANES), first_block)
        for index, w_hbm in enumerate(refs.w):
            to = w_vmem.at[index * blocks + number, *kernel.block_of(part_of(part))]
            act(pltpu.make_async_copy(w_hbm.at[*kernel.block_of(columns)], to, w_sem.at[number * parts + part]))

    def part_of(part: Any) -> Any:
        return pl.ds(pl.multiple_of(part * first_block, LANES), first_block)

    def own(piece: int) -> Any:
        slot, way = divmod(piece, WAYS)
        return pltpu.make_async_copy(x_hbm.at[pl.ds(piece * rows, rows)], x_vmem.at[slot, way], own_sem)

    def piece_of(step: Any, direction: int) -> Any:
        # The directions begin with different halves: of the opposite chunk each brings only its first half.
        return lax.rem(step + direction * own_slots, jnp.int32(pieces))

    def sent(step: Any, direction: int, source: Any) -> Any:
        to = x_vmem.at[step + own_slots, direction]
        return walk.copy_on(source, to, send_sem.at[direction], recv_sem.at[direction, step], direction)

    def forwarded(step: Any, direction: int) -> Any:
        """Return the copy of a step, which sends on what arrived `pieces` steps ago."""
        return sent(step, direction, x_vmem.at[step + own_slots - pieces, direction])

    def rows_of(slot: Any, direction: int) -> Any:
        """Return the rows of the device that a slot's piece came from."""
        step = slot - own_slots
        is_own = step < 0
        distance = jnp.where(is_own, 0, lax.div(step, jnp.int32(pieces)) + 1)
        piece = jnp.where(is_own, WAYS * slot + direction, piece_of(step, direction))
        row = (walk.upstream(direction, distance) * pieces + piece) * rows
        return pl.ds(pl.multiple_of(row, _ROW_ALIGNMENT), rows)

    def stored(number: Any, act: Act) -> None:
        """Copy one block of a group's results to the rows of the devices that its pieces came from."""
        group, column = lax.div(number, jnp.int32(blocks)), lax.rem(number, jnp.int32(blocks))
        place = lax.rem(number, jnp.int32(OUT_SLOTS))
        for part in range(at_once * WAYS):
            index, direction = divmod(part, WAYS)
            slot = group * at_once + index
            block_rows = rows_of(slot, direction)
            for number_out, out_hbm in enumerate(results.outs):
                to = out_hbm.at[block_rows, columns_of(column)]
                act(pltpu.make_async_copy(out_vmem.at[place, number_out, part], to, out_sem.at[place]))

    def kept(slot: Any, act: Act) -> None:
        """Copy the pieces of a slot to the gathered rows, if they are a result."""
        if results.x is None:
            return
        for direction in DIRECTIONS:
            to = results.x.at[rows_of(slot, direction)]
            act(pltpu.make_async_copy(x_vmem.at[slot, direction], to, kept_sem))

    out = Ring(slots=OUT_SLOTS, copies=stored)

    for piece in range(pieces):
        own(piece).start()

    def each_part(number: Any, act: Any) -> None:
        lax.fori_loop(0, parts, lambda part, _: act(number, part), None)

    def start_weights(number: Any, part: Any) -> None:
        weights(number, part, lambda copy: copy.start())

    lax.fori_loop(0, blocks, lambda number, _: each_part(number, start_weights), None)
    walk.barrier()
    for step in range(min(pieces, schedule.steps)):
        for direction in DIRECTIONS:
            first = (step + direction * own_slots) % pieces
            sent(step, direction, x_hbm.at[pl.ds(first * rows, rows)]).start()
    for piece in range(pieces):
        own(piece).wait()

    def arrive(slot: Any, _: None) -> None:
        step = slot - own_slots

        @pl.when(step >= 0)
        def _() -> None:
            for direction in DIRECTIONS:
                forwarded(step, direction).wait_recv()
                later = step + pieces
                pl.when(later < schedule.steps)(functools.partial(_start, forwarded, later, direction))

        kept(slot, lambda copy: copy.start())

    def multiply(group: Any, columns: Callable[[Any, Any], None]) -> None:
        lax.fori_loop(group * at_once, (group + 1) * at_once, arrive, None)

        def column(number: Any, _: None) -> None:
            at = group * blocks + number
            out.reserve(at)
            columns(number, out.slot(at))
            out.start(at)

        lax.fori_loop(0, blocks, column, None)

    def store(group: Any, number: Any, columns: Any, place: Any) -> None:
        x = x_vmem[pl.ds(group * at_once, at_once)].reshape(at_once * WAYS * rows, x_vmem.shape[-1])
        bias = None if refs.bias is None else refs.bias[number, :, columns]
        indices = [index * blocks + number for index in range(schedule.weights)]
        totals = tuple(kernel.dot(x, w_vmem[index, *kernel.block_of(columns)]) for index in indices)
        for number_out, out in enumerate(kernel.finish(totals, bias)):
            out_vmem[place, number_out, :, :, columns] = out.reshape(at_once * WAYS, rows, out.shape[-1])

    def multiply_first(number: Any, place: Any) -> None:
        """Multiply each part of a block as soon as its weights are in VMEM."""

        def multiply_part(number: Any, part: Any) -> None:
            weights(number, part, lambda copy: copy.wait())
            store(0, number, part_of(part), place)

        each_part(number, multiply_part)

    multiply(0, multiply_first)

    def following(group: Any, _: None) -> None:
        multiply(group, lambda number, place: store(group, number, slice(None), place))

    lax.fori_loop(1, schedule.groups, following, None)
    out.drain(schedule.groups * blocks)
    lax.fori_loop(0, schedule.slots, lambda slot, _: kept(slot, lambda copy: copy.wait()), None)
    for _ in range(schedule.steps):
        for direction in DIRECTIONS:
            sent(0, direction, x_vmem.at[0, direction]).wait_send()  # all sends of a direction are equally long


def _start(copy: Any, step: Any, direction: int) -> None:
    copy(step, direction).start()
