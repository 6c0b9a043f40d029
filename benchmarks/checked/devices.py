"""Kernels that copy from one device to another: barriers, waits, neighbors, and buffers that a neighbor writes to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from checked.case import Case, array, faulty, sound
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

AXES = (("x", 4),)
CUT = jax.sharding.PartitionSpec("x")
DMA = pltpu.SemaphoreType.DMA
ANY = pl.BlockSpec(memory_space=pl.ANY)
COLLECTIVE = pltpu.CompilerParams(collective_id=0)


def _each(fn, x):
    return jax.shard_map(fn, in_specs=CUT, out_specs=CUT, check_vma=False)(x)


def _neighbours():
    me, count = jax.lax.axis_index("x"), jax.lax.axis_size("x")
    return jax.lax.rem(me + count - 1, count), jax.lax.rem(me + 1, count)


def _meet(*devices):
    """Wait until the devices are in the kernel."""
    barrier = pltpu.get_barrier_semaphore()
    for device in devices:
        pl.semaphore_signal(barrier, 1, device_id=(device,))
    pl.semaphore_wait(barrier, len(devices))


def shifted(x, *, fault=""):
    """x of the previous device."""

    def body(x_hbm, out_hbm, send_sem, recv_sem):
        left, right = _neighbours()
        if fault == "meets the wrong neighbour":
            _meet(right)  # this shows that the left neighbor has arrived, not that the right one has
        elif fault == "a barrier that is met by one side":
            pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=(left,))
            pl.semaphore_wait(pltpu.get_barrier_semaphore(), 2)
        elif fault != "no barrier":
            _meet(left, right)
        to = left if fault == "the other way round" else right
        copy = pltpu.make_async_remote_copy(x_hbm, out_hbm, send_sem, recv_sem, device_id=(to,))
        copy.start()
        if fault == "waits for the sending alone":
            copy.wait_send()
        elif fault == "waits for the receiving alone":
            copy.wait_recv()
        elif fault != "waits for nothing":
            copy.wait()

    call = pl.pallas_call(
        body, out_shape=array(*_part(x)), in_specs=[ANY], out_specs=ANY, scratch_shapes=[DMA, DMA],
        compiler_params=COLLECTIVE,
    )  # fmt: skip
    return _each(call, x)


def _part(x):
    return (x.shape[0] // AXES[0][1], *x.shape[1:])


def shifted_plain(x):
    return jnp.roll(x, _part(x)[0], axis=0)


def summed(x, *, fault=""):
    """The sum of all devices' x, on each device: it travels around the ring."""

    def body(x_vmem, out_vmem, sent_vmem, got_vmem, send_sem, recv_sem, free_sem):
        left, right = _neighbours()
        _meet(left, right)
        out_vmem[...] = x_vmem[...]
        sent_vmem[...] = x_vmem[...]
        steps = AXES[0][1] - 1 - (fault == "a step too few")
        for step in range(steps):
            copy = pltpu.make_async_remote_copy(sent_vmem, got_vmem, send_sem, recv_sem, device_id=(right,))
            copy.start()
            if fault == "added before it is there":
                out_vmem[...] += got_vmem[...]
                copy.wait()
            else:
                copy.wait()
                out_vmem[...] += got_vmem[...]
            sent_vmem[...] = got_vmem[...]
            # The left neighbor may send again only after its last block has been used.
            if step < steps - 1 and fault != "overwritten by a neighbour that is ahead":
                pl.semaphore_signal(free_sem, 1, device_id=(left,))
                pl.semaphore_wait(free_sem, 1)

    part = _part(x)
    call = pl.pallas_call(
        body,
        out_shape=array(*part),
        scratch_shapes=[pltpu.VMEM(part, x.dtype)] * 2 + [DMA, DMA, pltpu.SemaphoreType.REGULAR],
        compiler_params=COLLECTIVE,
    )
    return _each(call, x)


def summed_plain(x):
    total = x.reshape(AXES[0][1], *_part(x)).sum(axis=0)
    return jnp.tile(total, (AXES[0][1], 1))


X = array(32, 128)
SOUND: tuple[Case, ...] = (
    sound(shifted, X, reference=shifted_plain, mesh=AXES),
    sound(shifted, X, reference=None, name="no reference", mesh=AXES),
    sound(summed, X, reference=summed_plain, mesh=AXES),
    sound(summed, X, reference=None, name="no reference", mesh=AXES),
)

FAULTS: tuple[Case, ...] = (
    *(faulty(shifted, fault, X, reference=reference, rules=rules, mesh=AXES) for fault, reference, rules in (
        ("no barrier", None, "race"), ("meets the wrong neighbour", None, "race"),
        ("a barrier that is met by one side", None, "deadlock"), ("the other way round", shifted_plain, "wrong-result"),
        ("waits for the sending alone", None, "race semaphore"), ("waits for the receiving alone", None, "semaphore"),
        ("waits for nothing", shifted_plain, "race semaphore"))),
    *(faulty(summed, fault, X, reference=reference, rules=rules, mesh=AXES) for fault, reference, rules in (
        ("a step too few", summed_plain, "wrong-result"), ("added before it is there", None, "race"),
        ("overwritten by a neighbour that is ahead", None, "race order"))),
)  # fmt: skip
