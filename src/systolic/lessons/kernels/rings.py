"""Collectives by hand: devices in a ring, where each sends only to its two neighbors.

    all-gather       out = every device's block, in order                  count − 1 hops of a block
    reduce-scatter   out = the sum over devices of their block `me`        count − 1 hops of a partial sum

A remote copy is a copy to another device. It has two semaphores: the sender's, which counts when the source has been
read, and the receiver's, which counts when the destination has been written. Every device runs the same program, so
`copy.wait()` waits for two things: for its own sending, and for the *arrival* of the other neighbor's copy, which has
the same shape. Blocks are references to HBM and never pass through VMEM, because an all-gather computes nothing.

`ways` are the directions: (1,) sends everything to the right; (1, −1) sends half of each block to the right and half to
the left, so that every link is busy in both directions at once.

A barrier comes before the first copy: a neighbor that has not entered the kernel may still use the memory that is about
to be written.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

RING = "ring"  # the mesh axis


def ring_of(devices: Sequence[Any]) -> jax.sharding.Mesh:
    """Return the devices as a mesh of one axis, in the order of a ring."""
    return jax.sharding.Mesh(np.array(in_ring_order(devices)), (RING,))


def in_ring_order(devices: Sequence[Any]) -> list[Any]:
    """Return the devices as a closed ring of neighbors: along one row of a slice of two rows, and back along the other.

    Virtual devices have no coordinates and stay in order.

    Raises:
      ValueError: the slice is not two chips wide.
    """
    places = [getattr(device, "coords", None) for device in devices]
    if None in places:
        return list(devices)
    extents = [max(axis) + 1 for axis in zip(*places, strict=True)]
    if 2 not in extents or sum(extent > 1 for extent in extents) > 2:
        raise ValueError(f"a slice of {'×'.join(map(str, extents))} chips is not a ring here; use one of 2×n")
    across = extents.index(2)

    def position(device: Any) -> tuple[int, int, int]:
        row = device.coords[across]
        along = sum(at for axis, at in enumerate(device.coords) if axis != across)
        return row, -along if row else along, device.core_on_chip

    return sorted(devices, key=position)


def _place(step: Any) -> tuple[Array]:
    """Return the index of the device, or of its block, `step` places further round the ring."""
    count = lax.axis_size(RING)
    return (lax.rem(lax.axis_index(RING) + step + 2 * count, count),)


def barrier() -> None:
    """Wait until both neighbors have entered the kernel."""
    semaphore = pltpu.get_barrier_semaphore()
    for way in (1, -1):
        pl.semaphore_signal(semaphore, device_id=_place(way))
    pl.semaphore_wait(semaphore, 2)


def all_gather_kernel(
    x_hbm,  # [rows, n] float32, this device's block
    out_hbm,  # [count · rows, n] float32
    own_sem,  # of the copy that stays here
    send_sem,  # [ways, hops]
    recv_sem,  # [ways, hops]
    *,
    ways: tuple[int, ...],
    waits: bool,
    in_turn: bool,
):
    """At each hop a device passes on the block that arrived last; at the first hop, its own."""
    rows = x_hbm.shape[0]
    part = rows // len(ways)

    def rows_of(block: Array, way: int) -> Any:
        return out_hbm.at[pl.ds(pl.multiple_of(block * rows + ways.index(way) * part, 8), part)]

    own_block = pltpu.make_async_copy(x_hbm, out_hbm.at[pl.ds(pl.multiple_of(_place(0)[0] * rows, 8), rows)], own_sem)
    own_block.start()
    barrier()
    own_block.wait()
    for hop in range(lax.axis_size(RING) - 1):
        copies = []
        for at, way in enumerate(ways):
            block = rows_of(_place(-way * hop)[0], way)
            copies.append(_remote_copy(block, block, send_sem.at[at, hop], recv_sem.at[at, hop], way))
        for together in [[copy] for copy in copies] if in_turn else [copies]:
            for copy in together:
                copy.start()
            for copy in together:
                copy.wait() if waits else copy.wait_send()


def _remote_copy(source: Any, destination: Any, send_sem: Any, recv_sem: Any, way: int) -> Any:
    return pltpu.make_async_remote_copy(source, destination, send_sem, recv_sem, device_id=_place(way))


def all_gather(x: Array, *, ways: tuple[int, ...] = (1,), waits: bool = True, in_turn: bool = False) -> Array:
    """Return the blocks of all devices. For `shard_map` over the axis `RING`.

    Args:
      x: this device's block; its rows are a multiple of 8 for each way.
      ways: directions: (1,), (-1,) or (1, -1).
      waits: False: do not wait for the blocks that are passed on, which is a fault for the checks to find.
      in_turn: wait for one direction's copy before the other's starts: right, and no faster than one way.
    """
    count = lax.axis_size(RING)
    semaphores = pltpu.SemaphoreType.DMA((len(ways), count - 1))
    return pl.pallas_call(
        functools.partial(all_gather_kernel, ways=ways, waits=waits, in_turn=in_turn),
        out_shape=jax.ShapeDtypeStruct((count * x.shape[0], x.shape[1]), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[pltpu.SemaphoreType.DMA, semaphores, semaphores],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        name=f"all_gather_{len(ways)}",
    )(x)


def reduce_scatter_kernel(
    x_hbm,  # [count · rows, n] float32, this device's terms
    out_vmem,  # [rows, n] float32
    own_vmem,  # [ways, rows / ways, n] float32, scratch: this device's term of the next sum
    sum_vmem,  # [ways, hops, rows / ways, n] float32, scratch: the arriving sums, one buffer for each hop
    own_sem,  # [ways]
    send_sem,  # [ways, hops]
    recv_sem,  # [ways, hops]
    *,
    ways: tuple[int, ...],
):
    """Pass sums round the ring: each device adds its term, and the last one keeps the sum."""
    count = lax.axis_size(RING)
    rows, part = out_vmem.shape[0], own_vmem.shape[1]

    def terms(block: Array, at: int) -> Any:
        return x_hbm.at[pl.ds(pl.multiple_of(block * rows + at * part, 8), part)]

    barrier()
    for hop in range(count - 1):
        copies = []
        for at, way in enumerate(ways):
            source = sum_vmem.at[at, hop - 1] if hop else terms(_place(-way)[0], at)
            copies.append(_remote_copy(source, sum_vmem.at[at, hop], send_sem.at[at, hop], recv_sem.at[at, hop], way))
            copies.append(
                pltpu.make_async_copy(terms(_place(-way * (2 + hop))[0], at), own_vmem.at[at], own_sem.at[at])
            )
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()
        for at in range(len(ways)):
            sum_vmem[at, hop] += own_vmem[at]
    for at in range(len(ways)):
        out_vmem[pl.ds(at * part, part)] = sum_vmem[at, count - 2]


def reduce_scatter(x: Array, *, ways: tuple[int, ...] = (1,)) -> Array:
    """Return the sum over devices of block `me` of x. For `shard_map` over the axis `RING`.

    The sums have one buffer for each hop, so a sender need not know when a buffer is free again. They take as much VMEM
    as x. With two buffers in turn, a receiver would have to signal its sender after passing on each sum.

    Args:
      x: one block for each device; the rows of one are a multiple of 8 for each way.
      ways: directions: (1,), (-1,) or (1, -1).
    """
    count = lax.axis_size(RING)
    rows, n = x.shape[0] // count, x.shape[1]
    part = rows // len(ways)
    semaphores = pltpu.SemaphoreType.DMA((len(ways), count - 1))
    return pl.pallas_call(
        functools.partial(reduce_scatter_kernel, ways=ways),
        out_shape=jax.ShapeDtypeStruct((rows, n), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        scratch_shapes=[
            pltpu.VMEM((len(ways), part, n), jnp.float32),
            pltpu.VMEM((len(ways), count - 1, part, n), jnp.float32),
            pltpu.SemaphoreType.DMA((len(ways),)),
            semaphores,
            semaphores,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        name=f"reduce_scatter_{len(ways)}",
    )(x)
