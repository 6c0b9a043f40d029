"""All-gather × matmul in one kernel: rows of x come round a ring while those that have arrived are multiplied.

    out[devices · rows, columns] = all_gather(x[rows, k]) @ w[k, columns]

Each device sends its rows both ways round the ring, in pieces. A device forwards a piece as soon as it arrives, then
multiplies it. After devices / 2 hops every row has reached every device; each direction brings half of the opposite
device's rows. So a link carries (devices − 1) / 2 chunks in each direction, the least for a ring.

Rows lie in VMEM in order of arrival. Each piece has a slot of its own, so no device has to signal that a slot is free.
The weights are copied to VMEM once. The rows of some slots are multiplied at once, one block of columns after another.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.ring import Act, Ring
from systolic.ops.collective.kernel.launch import RingKernel, RingOperands
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.collective.schedule import OUT_SLOTS, WAYS
from systolic.schedule.legality import LANES

_ROW_ALIGNMENT = 8


def all_gather_matmul(operands: RingOperands, kernel: RingKernel) -> Array:
    """Return `activation(out + bias)`, [devices · rows, columns]; x has `rows` rows."""
    schedule = kernel.schedule
    return kernel.launch(
        _body,
        operands,
        name="all_gather_matmul",
        rows=schedule.devices * schedule.rows,
        buffers=schedule.gather_buffers(operands.x.shape[1], kernel.dtype_out),
        semaphores={
            "own_sem": pltpu.SemaphoreType.DMA,
            "w_sem": pltpu.SemaphoreType.DMA((schedule.blocks,)),
            "send_sem": pltpu.SemaphoreType.DMA((WAYS,)),
            "recv_sem": pltpu.SemaphoreType.DMA((WAYS, schedule.steps)),
            "out_sem": pltpu.SemaphoreType.DMA((OUT_SLOTS,)),
        },
    )


def _body(
    refs: RingOperands,  # x and w in HBM
    out_hbm,  # [devices · rows, columns]
    *,
    x_vmem,  # [slots, directions, piece_rows, k]
    w_vmem,  # [blocks, k, block]
    out_vmem,  # [2, slots_at_once · directions, piece_rows, block]
    own_sem,
    w_sem,  # [blocks]
    send_sem,  # [directions]
    recv_sem,  # [directions, steps]
    out_sem,  # [2]
    kernel: RingKernel,
):
    schedule, x_hbm, w_hbm = kernel.schedule, refs.x, refs.w
    rows, pieces, own_slots = schedule.piece_rows, schedule.pieces, schedule.own_slots
    at_once, blocks, block = schedule.slots_at_once, schedule.blocks, schedule.block
    walk = Walk(kernel.axis_name, refs.ring)

    def columns_of(number: Any) -> Any:
        return pl.ds(pl.multiple_of(number * block, LANES), block)

    def weights(number: Any) -> Any:
        return pltpu.make_async_copy(w_hbm.at[:, columns_of(number)], w_vmem.at[number], w_sem.at[number])

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

    def stored(number: Any, act: Act) -> None:
        """Copy one block of a group's product to the rows of the devices that its pieces came from."""
        group, column = lax.div(number, jnp.int32(blocks)), lax.rem(number, jnp.int32(blocks))
        place = lax.rem(number, jnp.int32(OUT_SLOTS))
        for part in range(at_once * WAYS):
            index, direction = divmod(part, WAYS)
            slot = group * at_once + index
            step = slot - own_slots
            is_own = step < 0
            distance = jnp.where(is_own, 0, lax.div(step, jnp.int32(pieces)) + 1)
            piece = jnp.where(is_own, WAYS * slot + direction, piece_of(step, direction))
            row = (walk.upstream(direction, distance) * pieces + piece) * rows
            to = out_hbm.at[pl.ds(pl.multiple_of(row, _ROW_ALIGNMENT), rows), columns_of(column)]
            act(pltpu.make_async_copy(out_vmem.at[place, part], to, out_sem.at[place]))

    out = Ring(slots=OUT_SLOTS, copies=stored)

    for piece in range(pieces):
        own(piece).start()
    for number in range(blocks):
        weights(number).start()
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

    def multiply(group: Any, _: None) -> None:
        lax.fori_loop(group * at_once, (group + 1) * at_once, arrive, None)

        def column(number: Any, _: None) -> None:
            pl.when(group == 0)(lambda: weights(number).wait())
            at = group * blocks + number
            out.reserve(at)
            x = x_vmem[pl.ds(group * at_once, at_once)].reshape(at_once * WAYS * rows, x_vmem.shape[-1])
            total = kernel.finished(kernel.dot(x, w_vmem[number]), None if refs.bias is None else refs.bias[number])
            out_vmem[out.slot(at)] = total.reshape(at_once * WAYS, rows, block)
            out.start(at)

        lax.fori_loop(0, blocks, column, None)

    lax.fori_loop(0, schedule.groups, multiply, None)
    out.drain(schedule.groups * blocks)
    for _ in range(schedule.steps):
        for direction in DIRECTIONS:
            sent(0, direction, x_vmem.at[0, direction]).wait_send()  # all sends of a direction are equally long


def _start(copy: Any, step: Any, direction: int) -> None:
    copy(step, direction).start()
