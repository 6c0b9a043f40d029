"""A ring over one mesh axis as a device sees it: its neighbors, and the devices at a distance either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import get_abstract_mesh

# 0: data comes from the left and goes on to the right. 1: the other way round.
DIRECTIONS = (0, 1)


def devices_along(axis_name: str) -> Callable[[Any], dict[Any, Any]]:
    """Return a function of an index on a mesh axis: the id of the device there. Call this outside of conditions."""
    # JAX would add the indices of the other axes when it lowers the kernel, but cannot where it checks what varies
    # over the mesh.
    others = (axis for axis in get_abstract_mesh().axis_names if axis != axis_name)
    other_indices = {axis: lax.axis_index(axis) for axis in others}
    return lambda index: {**other_indices, axis_name: index}


class Walk:
    """The ring, as one device sees it. `ring_smem` holds the axis indices round the ring.

    Each of a device's cores has a ring of its own: a copy goes to the core of the same number.
    """

    def __init__(self, axis_name: str, ring_smem: Any, cores: int = 1) -> None:
        self._ring_smem, self._count, self._cores = ring_smem, ring_smem.shape[0], cores
        me = lax.axis_index(axis_name)
        place = jnp.int32(0)
        for at in range(self._count):
            place = jnp.where(ring_smem[at] == me, jnp.int32(at), place)
        self._place = place
        self._device = devices_along(axis_name)

    def at(self, distance: Any) -> Any:
        """Return the axis index of the device this far to the right; a negative distance goes to the left."""
        return self._ring_smem[lax.rem(self._place + distance + self._count, jnp.int32(self._count))]

    def upstream(self, direction: int, distance: Any) -> Any:
        """Return the axis index of the device whose data comes this many hops along a direction."""
        return self.at(distance if direction else -distance)

    def downstream(self, direction: int, distance: Any) -> Any:
        """Return the axis index of the device that data reaches after this many hops along a direction."""
        return self.upstream(1 - direction, distance)

    def neighbor(self, direction: int) -> dict[Any, Any]:
        """Return the id of the next device along a direction."""
        return self._device(self.downstream(direction, 1))

    def barrier(self) -> None:
        """Wait until all cores of both neighbors are in the kernel too: before that their memory may be in use."""
        semaphore = pltpu.get_barrier_semaphore()
        for direction in DIRECTIONS:
            for core in range(self._cores):
                core_index = core if self._cores > 1 else None
                pl.semaphore_signal(semaphore, device_id=self.neighbor(direction), core_index=core_index)
        pl.semaphore_wait(semaphore, len(DIRECTIONS) * self._cores)

    def copy_on(self, source: Any, destination: Any, send_sem: Any, recv_sem: Any, direction: int) -> Any:
        """Return the copy to the next device along a direction. Waiting for its arrival waits for one like it."""
        return pltpu.make_async_remote_copy(
            source,
            destination,
            send_sem,
            recv_sem,
            device_id=self.neighbor(direction),
        )
