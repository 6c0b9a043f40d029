"""Matmul with a gathered weight in one kernel: the weight's pieces go round a ring while others are multiplied.

    out[rows, n] = x[rows, k] @ all_gather(w), whose devices have [k / devices, n] or [k, n / devices] of it

It is how FSDP keeps weights. With two weights there are two sums, from which `finish` makes one result or more.

The weight goes round in groups of columns, each as rows do in `gather.py`: both ways, in two pieces, forwarded as soon
as they arrive. Every piece has a place of its own by the device that it comes from: in VMEM, or in HBM if the weight
does not fit, from where each product copies its pieces. A device sends its own pieces of two groups ahead, so that its
links are busy while it multiplies.

If the devices cut n, a piece is columns of the weight and makes columns of the result. If they cut k, a piece is rows
of the weight: the pieces of all devices make a product, and the next group is passed on between the products of this
one.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.ring import Act, Ring
from systolic.ops.collective.kernel.launch import RingKernel, RingOperands, RingResults
from systolic.ops.collective.kernel.walk import DIRECTIONS, Walk
from systolic.ops.collective.schedule import OUT_SLOTS, WAYS
from systolic.ops.collective.weight_schedule import WeightSchedule
from systolic.schedule.legality import LANES

_ROW_ALIGNMENT = 8


def matmul_gathered_weight(operands: RingOperands, kernel: RingKernel[WeightSchedule]) -> RingResults:
    """Return `finish(out, bias)`, [rows, n]; x has `rows` rows."""
    schedule = kernel.schedule
    return kernel.launch(
        _body,
        operands,
        name="matmul_gathered_weight",
        rows=schedule.rows,
        buffers=schedule.buffers(kernel.dtype_out),
        semaphores={
            "x_sem": pltpu.SemaphoreType.DMA((schedule.blocks,)),
            "own_sem": pltpu.SemaphoreType.DMA((schedule.groups,)),
            "send_sem": pltpu.SemaphoreType.DMA((WAYS,)),
            "recv_sem": pltpu.SemaphoreType.DMA((schedule.groups, WAYS, schedule.steps)),
            "fetch_sem": pltpu.SemaphoreType.DMA((WAYS,)),
            "out_sem": pltpu.SemaphoreType.DMA((OUT_SLOTS,)),
        },
        gathered_shape=schedule.gathered_shape if schedule.in_hbm else None,
    )


def _body(
    refs: RingOperands,  # x and w in HBM
    results: RingResults,  # in HBM
    *,
    x_vmem,  # [blocks, block, k]
    w_vmem,  # [weights, groups, halves, devices, piece_k, width], or the last two exchanged; or slots of two products
    out_vmem,  # [2, outs, block, width]
    x_sem,  # [blocks]
    own_sem,  # [groups]
    send_sem,  # [directions]
    recv_sem,  # [groups, directions, steps]
    fetch_sem,  # [slots]
    out_sem,  # [2]
    kernel: RingKernel[WeightSchedule],
):
    schedule = kernel.schedule
    steps, groups, width = schedule.steps, schedule.groups, schedule.width
    blocks, block, by_k = schedule.blocks, schedule.block, schedule.cut == "k"
    gathered = results.w if schedule.in_hbm else w_vmem
    walk = Walk(kernel.axis_name, refs.ring)
    me = walk.at(0)

    def columns(piece: Any) -> Any:
        return pl.ds(pl.multiple_of(piece * width, LANES), width)

    def rows_of(number: Any) -> Any:
        return pl.ds(pl.multiple_of(number * block, _ROW_ALIGNMENT), block)

    def half_of(step: Any, direction: int) -> Any:
        # The directions begin with different halves: of the opposite chunk each brings only one.
        return lax.rem(step + direction, jnp.int32(WAYS))

    def x_block(number: Any) -> Any:
        return pltpu.make_async_copy(refs.x.at[rows_of(number)], x_vmem.at[number], x_sem.at[number])

    def own(group: Any, act: Act) -> None:
        """Copy this device's pieces of a group to their places."""
        for index, w_hbm in enumerate(refs.w):
            for half in range(WAYS):
                source = w_hbm.at[*kernel.block_of(columns(group * WAYS + half))]
                act(pltpu.make_async_copy(source, gathered.at[index, group, half, me], own_sem.at[group]))

    def sent(group: Any, step: Any, direction: int, act: Act, *, is_own: bool = False) -> None:
        """Send pieces: in the first two steps this device's own, later those that arrived two steps ago."""
        half = half_of(step, direction)
        place = (group, half, walk.upstream(direction, lax.div(step, jnp.int32(WAYS))))
        for index, w_hbm in enumerate(refs.w):
            to = gathered.at[index, *place]
            source = w_hbm.at[*kernel.block_of(columns(group * WAYS + half))] if is_own else to
            act(walk.copy_on(source, to, send_sem.at[direction], recv_sem.at[group, direction, step], direction))

    def begin(group: Any) -> None:
        for step in range(min(WAYS, steps)):
            for direction in DIRECTIONS:
                sent(group, jnp.int32(step), direction, _start, is_own=True)

    def arrive(group: Any, step: Any) -> None:
        for direction in DIRECTIONS:
            sent(group, step, direction, lambda copy: copy.wait_recv())
            later = step + WAYS
            pl.when(later < steps)(functools.partial(sent, group, later, direction, _start))

    def piece_of(number: Any) -> tuple[Any, Any, Any]:
        """Return the group, the half and the device of a product: if k is cut, any device."""
        if by_k:
            return lax.div(number, jnp.int32(WAYS)), lax.rem(number, jnp.int32(WAYS)), me
        visit, direction = lax.div(number, jnp.int32(WAYS)), lax.rem(number, jnp.int32(WAYS))
        group, step = lax.div(visit, jnp.int32(steps + 1)), lax.rem(visit, jnp.int32(steps + 1)) - 1
        distance = lax.div(step, jnp.int32(WAYS)) + 1
        owner = jnp.where(step < 0, me, walk.at(jnp.where(direction == 0, -distance, distance)))
        return group, jnp.where(step < 0, direction, lax.rem(step + direction, jnp.int32(WAYS))), owner

    def piece_number(number: Any) -> Any:
        """Return the place of a product's columns in the result, counted in pieces."""
        group, half, owner = piece_of(number)
        return group * WAYS + half + (0 if by_k else owner * (groups * WAYS))

    def stored(number: Any, act: Act) -> None:
        place = lax.rem(number, jnp.int32(OUT_SLOTS))
        product, rows = lax.div(number, jnp.int32(blocks)), rows_of(lax.rem(number, jnp.int32(blocks)))
        for index, out_hbm in enumerate(results.outs):
            to = out_hbm.at[rows, columns(piece_number(product))]
            act(pltpu.make_async_copy(out_vmem.at[place, index], to, out_sem.at[place]))

    out = Ring(slots=OUT_SLOTS, copies=stored)

    def fetch(product: Any, act: Act) -> None:
        """Copy the pieces of a product from HBM."""
        group, half, owner = piece_of(product)
        slot = lax.rem(product, jnp.int32(WAYS))
        pieces = slice(None) if by_k else pl.ds(owner, 1)
        for index in range(schedule.weights):
            source = gathered.at[index, group, half, pieces]
            act(pltpu.make_async_copy(source, w_vmem.at[index, slot], fetch_sem.at[slot]))

    def begin_products(product: Any) -> None:
        """Start the copies for two products, if gathered pieces lie in HBM."""
        for way in range(WAYS if schedule.in_hbm else 0):
            fetch(product + way, _start)

    def multiply(number: Any) -> None:
        """Multiply a block of rows with the columns of a piece; the blocks of a product follow one another."""
        product, rows = lax.div(number, jnp.int32(blocks)), lax.rem(number, jnp.int32(blocks))
        pl.when(product == 0)(lambda: x_block(rows).wait())
        if schedule.in_hbm:
            pl.when(rows == 0)(lambda: fetch(product, lambda copy: copy.wait()))
        group, half, owner = piece_of(product)
        place = (lax.rem(product, jnp.int32(WAYS)),) if schedule.in_hbm else (group, half)
        out.reserve(number)

        def weight(index: int) -> Any:
            if by_k:
                return w_vmem[index, *place].reshape(schedule.k, width)
            return w_vmem[index, *place, 0 if schedule.in_hbm else owner]

        totals = tuple(kernel.dot(x_vmem[rows], weight(index)) for index in range(schedule.weights))
        bias = None if refs.bias is None else refs.bias[piece_number(product)]
        for index, block_out in enumerate(kernel.finish(totals, bias)):
            out_vmem[out.slot(number), index] = block_out
        out.start(number)

    def loop(first: Any, end: Any, act: Any) -> None:
        lax.fori_loop(first, end, lambda number, _: act(number), None)

    loop(0, groups, lambda group: own(group, _start))
    loop(0, blocks, lambda number: x_block(number).start())
    walk.barrier()
    for group in range(schedule.ahead):
        begin(group)
    if by_k:
        loop(0, steps, functools.partial(arrive, jnp.int32(0)))

    def each_group(group: Any) -> None:
        pl.when(group + schedule.ahead < groups)(lambda: begin(group + schedule.ahead))
        own(group, lambda copy: copy.wait())
        count = (WAYS if by_k else WAYS * (steps + 1)) * blocks  # products of a group, by blocks

        def between(number: Any) -> None:
            """Multiply, and pass on the next group's pieces."""
            multiply(group * count + number)
            passed = [lax.div((number + after) * steps, jnp.int32(count)) for after in (0, 1)]
            pl.when(group + 1 < groups)(lambda: loop(passed[0], passed[1], functools.partial(arrive, group + 1)))

        def step_of(step: Any) -> None:
            arrive(group, step)
            begin_products((group * (steps + 1) + step + 1) * WAYS)
            first = group * count + (step + 1) * (WAYS * blocks)
            loop(first, first + WAYS * blocks, multiply)

        begin_products(lax.div(group * count, jnp.int32(blocks)))
        if by_k:
            loop(0, count, between)
        else:
            loop(group * count, group * count + WAYS * blocks, multiply)
            loop(0, steps, step_of)

    loop(0, groups, each_group)
    out.drain(schedule.products * blocks)
    for direction in DIRECTIONS:  # all sends are equally long
        loop(0, groups * steps, functools.partial(_wait_sent, sent, direction))


def _start(copy: Any) -> None:
    copy.start()


def _wait_sent(sent: Any, direction: int, _: Any) -> None:
    sent(0, jnp.int32(0), direction, lambda copy: copy.wait_send())
