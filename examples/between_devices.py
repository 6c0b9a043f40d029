"""A kernel that copies to the next device, for `systolic check --mesh`.

    systolic check examples/between_devices.py:shifted --arg "f32[64,128]" --mesh x=4 --chip v6e
    systolic check examples/between_devices.py:shifted --arg "f32[64,128]" --mesh x=4 --param barrier=False

Nothing here knows of `systolic`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def shifted(x: jax.Array, *, barrier: bool = True) -> jax.Array:
    """Move rows of x, which are cut over the mesh axis `x`, to the next device; without a barrier it races."""
    cut = jax.sharding.PartitionSpec("x")
    copied = functools.partial(_copied, barrier=barrier)
    return jax.shard_map(copied, in_specs=cut, out_specs=cut, check_vma=False)(x)


def shifted_reference(x: jax.Array) -> jax.Array:
    """Compute `shifted` for a mesh of four."""
    return jnp.roll(x, x.shape[0] // 4, axis=0)


def _copied(x: jax.Array, *, barrier: bool) -> jax.Array:
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        functools.partial(_body, barrier=barrier),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[hbm],
        out_specs=hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x)


def _body(x_hbm: Any, out_hbm: Any, send_sem: Any, recv_sem: Any, *, barrier: bool) -> None:
    me, count = jax.lax.axis_index("x"), jax.lax.axis_size("x")
    left, right = jax.lax.rem(me + count - 1, count), jax.lax.rem(me + 1, count)
    if barrier:  # tell the next device that this one is in the kernel and may be written to
        pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=(left,))
        pl.semaphore_wait(pltpu.get_barrier_semaphore(), 1)
    copy = pltpu.make_async_remote_copy(x_hbm, out_hbm, send_sem, recv_sem, device_id=(right,))
    copy.start()
    copy.wait()
