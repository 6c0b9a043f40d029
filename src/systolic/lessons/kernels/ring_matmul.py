"""Step 2: send and multiply in one kernel, one way round the ring.

    hop h:   send the chunk of h places to the left on to the right, and meanwhile multiply it        h = 0 … count − 1

A remote copy runs while the core computes, as a copy from HBM does. So the kernel starts the copy of a chunk to its
right neighbor first, and multiplies the chunk then. A hop takes the longer of both, not their sum. The first chunk is
the device's own, and the last one goes nowhere.

Every chunk has a slot of its own in VMEM, in order of arrival: a neighbor may write to slot h + 1 at any time, because
nothing else is ever stored there. With two slots in turn, the receiver would have to signal that one is free. A chunk's
rows of the result depend on the device that it came from.

In VMEM: all chunks, w, and two blocks of the result: one is computed while the other is copied to HBM.

Use `ring_both_ways` if hops take longer than products: links carry data in both directions at once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

RING = "ring"  # the mesh axis


def _place(step: Any) -> tuple[Array]:
    """Return the index of the device `step` places further round the ring."""
    count = lax.axis_size(RING)
    return (lax.rem(lax.axis_index(RING) + step + count, count),)


def ring_matmul_kernel(
    x_hbm,  # [m, k] bfloat16, this device's chunk
    w_hbm,  # [k, n] bfloat16
    out_hbm,  # [count · m, n] bfloat16
    chunks_vmem,  # [count, m, k] bfloat16, scratch
    w_vmem,  # [k, n] bfloat16, scratch
    out_vmem,  # [2, m, n] bfloat16, scratch
    own_sem,
    w_sem,
    send_sem,  # [count − 1]
    recv_sem,  # [count − 1]
    out_sem,  # [2]
):
    count, m = chunks_vmem.shape[:2]

    def sent(hop: Any) -> Any:
        slots = chunks_vmem.at[hop], chunks_vmem.at[hop + 1]
        return pltpu.make_async_remote_copy(*slots, send_sem.at[hop], recv_sem.at[hop], device_id=_place(1))

    def stored(hop: Any) -> Any:
        rows = pl.ds(pl.multiple_of(_place(-hop)[0] * m, m), m)
        return pltpu.make_async_copy(out_vmem.at[hop % 2], out_hbm.at[rows], out_sem.at[hop % 2])

    own_chunk = pltpu.make_async_copy(x_hbm, chunks_vmem.at[0], own_sem)
    weights = pltpu.make_async_copy(w_hbm, w_vmem, w_sem)
    own_chunk.start()
    weights.start()
    barrier()
    own_chunk.wait()

    def step(hop: Array, _: None) -> None:
        pl.when(hop > 0)(lambda: sent(hop - 1).wait_recv())
        pl.when(hop < count - 1)(lambda: sent(hop).start())
        pl.when(hop == 0)(weights.wait)
        pl.when(hop >= 2)(lambda: stored(hop - 2).wait())  # its block is free again
        product = jnp.dot(chunks_vmem[hop], w_vmem[...], preferred_element_type=jnp.float32)
        out_vmem[hop % 2] = product.astype(out_vmem.dtype)
        stored(hop).start()

    lax.fori_loop(0, count, step, None)
    lax.fori_loop(0, count - 1, lambda hop, _: sent(hop).wait_send(), None)
    for hop in (count - 2, count - 1):
        stored(hop).wait()


def barrier() -> None:
    """Wait until both neighbors have entered the kernel; before that their VMEM may be in use."""
    semaphore = pltpu.get_barrier_semaphore()
    for step in (1, -1):
        pl.semaphore_signal(semaphore, device_id=_place(step))
    pl.semaphore_wait(semaphore, 2)


def ring_matmul(x: Array, w: Array) -> Array:
    """Return all devices' x times this device's w. For `shard_map` over the axis `RING`, in the order of a ring."""
    count, (m, k), n = lax.axis_size(RING), x.shape, w.shape[1]
    hops, hbm = pltpu.SemaphoreType.DMA((count - 1,)), pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        ring_matmul_kernel,
        out_shape=jax.ShapeDtypeStruct((count * m, n), x.dtype),
        in_specs=[hbm, hbm],
        out_specs=hbm,
        scratch_shapes=[
            pltpu.VMEM((count, m, k), x.dtype),
            pltpu.VMEM((k, n), w.dtype),
            pltpu.VMEM((2, m, n), x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            hops,
            hops,
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0, vmem_limit_bytes=48 * 2**20),
        name="ring_matmul",
    )(x, w)
