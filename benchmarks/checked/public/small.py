"""Smaller kernels of JAX: random bits, a gather over a ring of devices, and the kernel that its tests double with."""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, sound
from jax.experimental.pallas.ops.tpu import all_gather, example_kernel
from jax.experimental.pallas.ops.tpu.random import philox, threefry

KEY = np.array([17, 4], np.uint32)


def threefry_bits(key):
    """Random bits in a shape that the kernel's blocks do not divide."""
    return threefry.plthreefry_random_bits(key, 32, (300, 400))


def threefry_plain(key):
    """JAX's own random bits, in the mode in which they do not depend on the partition."""
    count = jnp.arange(300 * 400, dtype=jnp.uint32).reshape(300, 400)
    first, second = jax.extend.random.threefry2x32_p.bind(key[0], key[1], jnp.zeros_like(count), count)
    return first ^ second


def philox_bits(key):
    """Random bits by the Philox generator."""
    return philox.philox_random_bits(key, 32, (256, 512))


def gathered_round_a_ring(x):
    """x of all devices of a ring, on each device."""
    mesh = jax.sharding.get_abstract_mesh()
    return all_gather.all_gather(x, mesh=mesh, axis_name="x")


SOUND: tuple[Case, ...] = (
    sound(example_kernel.double, array(16, 128), reference=lambda x: x * 2),
    sound(threefry_bits, KEY, reference=threefry_plain),
    sound(philox_bits, KEY, reference=None),
    sound(gathered_round_a_ring, array(64, 128), reference=lambda x: x, mesh=(("x", 4),)),
)
