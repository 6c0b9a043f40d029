"""Collectives by hand: devices in a ring, each of which only ever talks to its two neighbours.

    all-gather       out = every device's block, in order             count − 1 hops of a block
    reduce-scatter   out = the sum of everybody's block `me`          count − 1 hops of a partial sum

A remote copy is a copy whose destination lies on another device. It has two semaphores: the sender's, which says that
the source has been read, and the receiver's, which says that the destination is there. Every device runs the same
program, so what `copy.wait()` waits for is its own sending and the *arrival of its other neighbour's* copy, which looks
just like its own. Blocks are references to HBM and never pass through VMEM: nothing is computed in an all-gather.

`ways` are the directions: (1,) sends all to the right; (1, −1) half of each block to the right and half to the left, so
that every link carries both of its directions at once.

Before the first copy there is a barrier: a neighbour that has not entered the kernel may still use, for something else,
the memory that is about to be written.
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
    """The devices as a mesh of one axis, in the order of a ring."""
    return jax.sharding.Mesh(np.array(in_ring_order(devices)), (RING,))


def in_ring_order(devices: Sequence[Any]) -> list[Any]:
    """The devices as a closed ring of neighbours: along one row of a slice of two rows, and back along the other.

    Virtual devices have no place and stay in order.

    Raises:
      ValueError: the slice is not two chips wide.
    """
    places = [getattr(device, "coords", None) for device in devices]
    if None in places:
        return list(devices)
    extents = [max(axis) + 1 for axis in zip(*places, strict=True)]
    if 2 not in extents or sum(extent > 1 for extent in extents) > 2:
        raise ValueError(f"a slice of {'×'.join(map(str, extents))} chips is no ring here; use one of 2×n")
    across = extents.index(2)

    def position(device: Any) -> tuple[int, int, int]:
        row = device.coords[across]
        along = sum(at for axis, at in enumerate(device.coords) if axis != across)
        return row, -along if row else along, device.core_on_chip

    return sorted(devices, key=position)


def _place(step: Any) -> tuple[Array]:
    """The device, or the number of the block, so many places further round the ring."""
    count = lax.axis_size(RING)
    return (lax.rem(lax.axis_index(RING) + step + 2 * count, count),)


def barrier() -> None:
    """Waits until both neighbours have come here too."""
    semaphore = pltpu.get_barrier_semaphore()
    for way in (1, -1):
        pl.semaphore_signal(semaphore, device_id=_place(way), device_id_type=pl.DeviceIdType.MESH)
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
    """Hop by hop each device passes on the block that came last; its own first."""
    rows = x_hbm.shape[0]
    part = rows // len(ways)

    def rows_of(block: Array, way: int) -> Any:
        return out_hbm.at[pl.ds(pl.multiple_of(block * rows + ways.index(way) * part, 8), part)]

    own = pltpu.make_async_copy(x_hbm, out_hbm.at[pl.ds(pl.multiple_of(_place(0)[0] * rows, 8), rows)], own_sem)
    own.start()
    barrier()
    own.wait()
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
    return pltpu.make_async_remote_copy(
        source, destination, send_sem, recv_sem, device_id=_place(way), device_id_type=pl.DeviceIdType.MESH
    )


def all_gather(x: Array, *, ways: tuple[int, ...] = (1,), waits: bool = True, in_turn: bool = False) -> Array:
    """Everybody's block, on every device. For `shard_map` over the axis `RING`.

    Args:
      x: this device's block; its rows are a multiple of 8 for each way.
      ways: directions: (1,), (-1,) or (1, -1).
      waits: whether a device waits for what it passes on; without, it is wrong, for the checks to find.
      in_turn: whether one direction's copy is waited for before the other's starts: right, and no faster than one way.
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
    own_vmem,  # [ways, rows / ways, n] float32, scratch: this device's term of the sum that comes next
    sum_vmem,  # [ways, hops, rows / ways, n] float32, scratch: the sums that come, each hop in a place of its own
    own_sem,  # [ways]
    send_sem,  # [ways, hops]
    recv_sem,  # [ways, hops]
    *,
    ways: tuple[int, ...],
):
    """Sums travel round the ring, and every device that they pass adds its term; each ends at the device it is for."""
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
    """The sum over devices of block `me` of x. For `shard_map` over the axis `RING`.

    The sums have a place for every hop, so nobody has to say when one is free again: that costs as much VMEM as x has
    bytes. With two places in turn, a receiver would signal its sender whenever it has passed one on.

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
