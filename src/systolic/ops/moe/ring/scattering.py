"""The sum of all devices' rows; each device gets its own rows of the sum: reduce-scatter, both ways round a ring.

XLA's reduce-scatter sends one way only, and takes twice as long as its all-gather, which sends both ways. It is used
where the ring is not known: it is found when `jax.set_mesh` has set the mesh.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.ops.collective.arguments import axis_ring
from systolic.ops.engine.linear import linear


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scatter:
    axis: str
    ring: tuple[int, ...]  # axis indices round the ring; () if it is not known

    @property
    def effects(self) -> frozenset[Any]:
        return frozenset()

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        (part,) = arguments
        assert part is not None  # the only argument, without which there is no tangent
        rows, rest = divmod(part.shape[0], 2 * max(len(self.ring), 1))
        if not self.ring or rest:
            return [lax.psum_scatter(part, self.axis, tiled=True)]
        halves = part.reshape(-1, rows, part.shape[1])
        return [jnp.concatenate([self._passed_on(halves, half, 1 - 2 * half) for half in range(2)])]

    def _passed_on(self, halves: Array, half: int, way: int) -> Array:
        """Return the sum of one half of this device's rows: sums go round the ring, and each device adds its part."""
        count = len(self.ring)
        order = jnp.asarray(self.ring, jnp.int32)
        place = jnp.asarray(np.argsort(self.ring), jnp.int32)[lax.axis_index(self.axis)]
        hops = [(self.ring[at], self.ring[(at + way) % count]) for at in range(count)]

        def part(step: int) -> Array:
            # The sum that is here in this step ends at a device that is `count - 1 - step` hops further.
            device = order[(place - way * (1 + step)) % count]
            return lax.dynamic_index_in_dim(halves, 2 * device + half, keepdims=False)

        total = part(0)
        for step in range(1, count):
            arrived = lax.ppermute(total, self.axis, hops).astype(jnp.float32)
            total = (arrived + part(step).astype(jnp.float32)).astype(total.dtype)
        return total

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        return [lax.all_gather(cotangents[0], self.axis, tiled=True)]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _scattered(scatter: _Scatter, part: Array) -> Array:
    return scatter.forward((), (part,))[0]


@_scattered.defjvp
def _tangent(scatter: _Scatter, primals: Any, tangents: Any) -> tuple[Array, Array]:
    out = _scattered(scatter, *primals)
    return out, linear(scatter, (), tangents, (out,))[0]


def scattered(part: Array, axis: str) -> Array:
    """Return this device's rows of the sum over the devices of a mesh axis."""
    ring = axis_ring(axis, lax.axis_size(axis)) if isinstance(axis, str) else None
    return _scattered(_Scatter(axis=axis, ring=ring or ()), part)
