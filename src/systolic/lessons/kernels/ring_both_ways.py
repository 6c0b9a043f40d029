"""Step 3: both ways round the ring, half of each chunk to the right and half to the left.

    hop h:   pass on the upper half of chunk me − h to the right and the lower half of chunk me + h to the left,
             and meanwhile multiply both

A link carries its full rate in each direction, and step 2 uses one of them. Here a hop sends half of the bytes over
each link in each direction, so hops take half the time and products as long as before. The two halves of a slot belong
to different devices, and their products go to different rows of the result.

Two faults can be switched on. Both move a wait by a few lines, and the time shows only one of them:

    late      wait for arrivals at the end: what is passed on and multiplied may not have arrived, a race; no slower
    in_turn   wait for the next halves before multiplying: right, but nothing overlaps

In VMEM: all chunks, w, and two blocks of the result.

Use `systolic.all_gather_matmul` for sizes that are not multiples of these, for rings that the mesh does not follow, and
where a chunk should go both ways whole, in half as many hops.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

RING = "ring"  # the mesh axis
WAYS = (1, -1)  # to the right, to the left


def _place(step: Any) -> tuple[Array]:
    """Return the index of the device `step` places further round the ring."""
    count = lax.axis_size(RING)
    return (lax.rem(lax.axis_index(RING) + step + count, count),)


def ring_both_ways_kernel(
    x_hbm,  # [2, m / 2, k] bfloat16, this device's chunk
    w_hbm,  # [k, n] bfloat16
    out_hbm,  # [count, 2, m / 2, n] bfloat16
    chunks_vmem,  # [count, 2, m / 2, k] bfloat16, scratch
    w_vmem,  # [k, n] bfloat16, scratch
    out_vmem,  # [2, 2, m / 2, n] bfloat16, scratch
    own_sem,
    w_sem,
    send_sem,  # [2, count − 1]
    recv_sem,  # [2, count − 1]
    out_sem,  # [2]
    *,
    late: bool,
    in_turn: bool,
):
    count, _, half, k = chunks_vmem.shape

    def sent(hop: Any) -> list[Any]:
        return [
            pltpu.make_async_remote_copy(
                chunks_vmem.at[hop, at],
                chunks_vmem.at[hop + 1, at],
                send_sem.at[at, hop],
                recv_sem.at[at, hop],
                device_id=_place(way),
            )
            for at, way in enumerate(WAYS)
        ]

    def stored(hop: Any) -> list[Any]:
        block, sem = out_vmem.at[hop % 2], out_sem.at[hop % 2]
        rows = [out_hbm.at[_place(-way * hop)[0], at] for at, way in enumerate(WAYS)]
        return [pltpu.make_async_copy(block.at[at], row, sem) for at, row in enumerate(rows)]

    def step(hop: Array, _: None) -> None:
        leaves = pl.when(hop < count - 1)
        if not late and not in_turn:
            pl.when(hop > 0)(lambda: _each(sent(hop - 1), "wait_recv"))
        leaves(lambda: _each(sent(hop), "start"))
        if in_turn:
            leaves(lambda: _each(sent(hop), "wait_recv"))
        pl.when(hop == 0)(weights.wait)
        pl.when(hop >= 2)(lambda: _each(stored(hop - 2), "wait"))  # its block is free again
        chunk = chunks_vmem[hop].reshape(2 * half, k)
        product = jnp.dot(chunk, w_vmem[...], preferred_element_type=jnp.float32)
        out_vmem[hop % 2] = product.astype(out_vmem.dtype).reshape(2, half, -1)
        _each(stored(hop), "start")

    own_chunk = pltpu.make_async_copy(x_hbm, chunks_vmem.at[0], own_sem)
    weights = pltpu.make_async_copy(w_hbm, w_vmem, w_sem)
    own_chunk.start()
    weights.start()
    barrier()
    own_chunk.wait()
    lax.fori_loop(0, count, step, None)
    if late:
        lax.fori_loop(0, count - 1, lambda hop, _: _each(sent(hop), "wait_recv"), None)
    lax.fori_loop(0, count - 1, lambda hop, _: _each(sent(hop), "wait_send"), None)
    for hop in (count - 2, count - 1):
        _each(stored(hop), "wait")


def _each(copies: list[Any], act: str) -> None:
    for copy in copies:
        getattr(copy, act)()


def barrier() -> None:
    """Wait until both neighbors have entered the kernel; before that their VMEM may be in use."""
    semaphore = pltpu.get_barrier_semaphore()
    for way in WAYS:
        pl.semaphore_signal(semaphore, device_id=_place(way))
    pl.semaphore_wait(semaphore, len(WAYS))


def ring_both_ways(x: Array, w: Array, *, late: bool = False, in_turn: bool = False) -> Array:
    """Return all devices' x times this device's w. For `shard_map` over the axis `RING`, in the order of a ring.

    Args:
      x: [m, k], this device's chunk; m is a multiple of 32.
      w: [k, n].
      late: wait for all arrivals at the end, which is a fault for the checks to find.
      in_turn: wait for the next chunk before multiplying this one: right, but links and core take turns.
    """
    count, (m, k), n = lax.axis_size(RING), x.shape, w.shape[1]
    hops, hbm = pltpu.SemaphoreType.DMA((2, count - 1)), pl.BlockSpec(memory_space=pltpu.HBM)
    out = pl.pallas_call(
        functools.partial(ring_both_ways_kernel, late=late, in_turn=in_turn),
        out_shape=jax.ShapeDtypeStruct((count, 2, m // 2, n), x.dtype),
        in_specs=[hbm, hbm],
        out_specs=hbm,
        scratch_shapes=[
            pltpu.VMEM((count, 2, m // 2, k), x.dtype),
            pltpu.VMEM((k, n), w.dtype),
            pltpu.VMEM((2, 2, m // 2, n), x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            hops,
            hops,
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0, vmem_limit_bytes=48 * 2**20),
        name="ring_both_ways",
    )(x.reshape(2, m // 2, k), w)
    return out.reshape(count * m, n)
