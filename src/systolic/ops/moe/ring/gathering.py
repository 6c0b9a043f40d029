"""The rows of all devices' tokens in the order of this device's experts.

Tokens go both ways round a ring of devices by copies of XLA's, which run while the choices are sorted: XLA's all-gather
would let nothing run meanwhile. What arrives is read where it is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.collective.arguments import axis_ring
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.derivative import fused_after_sum
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.moe.forms import spread_form
from systolic.ops.moe.permuting import is_for_xla, spread, tokens_of_rows
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.schedule import SpreadSpec
from systolic.ops.moe.spreading import spread_by_xla, spread_of_parts
from systolic.schedule.legality import LANES


def spread_of_all_devices(backend: Backend, axis: str, x: Array, choices: Sorted, rows: int, used_rows: int) -> Array:
    """Return `spread` of the tokens of all devices of a mesh axis; x has the tokens of this device.

    Tokens go round the ring while choices are sorted.
    """

    def in_two(operands: Any) -> Array:
        x, choices = operands
        return spread(backend, lax.all_gather(x, axis, tiled=True), choices, rows, used_rows)

    ring = axis_ring(axis, lax.axis_size(axis)) if isinstance(axis, str) else None
    if ring is None or not _has_parts(backend, len(ring), x, rows, used_rows):
        return in_two((x, choices))

    def by_xla(x: Array, tokens: Array, expert_rows: Array) -> Array:
        return spread_by_xla(backend, False, lax.all_gather(x, axis, tiled=True), tokens, expert_rows)

    def call(*operands: Any) -> Array:
        return dispatched(backend, functools.partial(_by_pallas, backend, axis, ring), by_xla, *operands)

    def kernel(operands: Any) -> Array:
        x, choices = operands
        tokens = tokens_of_rows(choices, len(ring) * x.shape[0], rows)
        return one_at_a_time(call, x, tokens, choices.sizes.sum())

    return fused_after_sum(kernel, in_two, False, (x, choices))


def _has_parts(backend: Backend, devices: int, x: Array, rows: int, used_rows: int) -> bool:
    """True if a kernel reads the rows, and the parts in which they arrive are whole tiles."""
    if backend.chip is None or backend.implementation == "xla" or is_for_xla(x) or not x.size:
        return False
    if devices % 2 or x.shape[0] % (2 * SUBLANES) or x.shape[1] % LANES:
        return False
    spec = SpreadSpec.of(devices * x.shape[0], rows, x.shape[1], x.dtype.name)
    return spread_form(spec, backend.chip, used_rows).by_kernel


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _by_pallas(
    backend: Backend,
    axis: str,
    ring: tuple[int, ...],
    x: Array,
    tokens: Array,
    expert_rows: Array,
) -> Array:
    parts, first_rows, tokens = round_the_ring(axis, ring, x, tokens)
    own_row = lax.axis_index(axis) * x.shape[0]
    first_rows = jnp.concatenate([own_row[None], first_rows])
    return spread_of_parts(backend, [x, *parts], first_rows, tokens, expert_rows)


def hops_round_the_ring(
    axis: str, ring: tuple[int, ...], right: Array, left: Array, hops: int
) -> list[tuple[Array, Array]]:
    """Send two arrays on and on, one each way round the ring, and return those that arrive by each hop."""
    arrived = []
    for _ in range(hops):
        right, left = (lax.ppermute(part, axis, way) for part, way in zip((right, left), _ways(ring), strict=True))
        arrived.append((right, left))
    return arrived


def _ways(ring: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    return [[(device, ring[(at + way) % len(ring)]) for at, device in enumerate(ring)] for way in (1, -1)]


def round_the_ring(
    axis: str,
    ring: tuple[int, ...],
    x: Array,
    tokens: Array,
    arrived: Sequence[tuple[Array, Array]] = (),
    hops: int | None = None,
) -> tuple[list[Array], Array, Array]:
    """Send x both ways round the ring: return all other devices' in parts, their first rows among all, and `tokens`.

    `tokens` are there before the last copies begin.

    Args:
      arrived: by the first hops of x, before.
      hops: after which parts stay where they are; None: all devices get all others'.
    """
    count, here, half = len(ring), x.shape[0], x.shape[0] // 2
    # Parts by the distance to their device, and by their first row there.
    right, left = x, x
    parts: dict[tuple[int, int], Array] = {}
    hops = count // 2 if hops is None else hops
    for distance in range(1, min(hops + 1, count // 2)):
        arrived_hop = arrived[distance - 1 : distance]
        ((right, left),) = arrived_hop or hops_round_the_ring(axis, ring, right, left, 1)
        parts |= {(-distance, 0): right, (distance, 0): left}
        if distance == len(arrived) + 2:
            # XLA would begin to sort when links are idle. The order is there before this hop could begin.
            right, left, tokens = lax.optimization_barrier((right, left, tokens))
    if hops == count // 2:  # of the opposite device's tokens half come each way
        clockwise, counterclockwise = _ways(ring)
        parts[hops, 0] = lax.ppermute(right[:half], axis, clockwise)
        parts[hops, half] = lax.ppermute(left[half:], axis, counterclockwise)
    distances, first_rows = np.asarray(list(parts), np.int32).T
    devices = np.asarray(ring, np.int32)[(np.argsort(ring)[:, None] + distances) % count]
    return list(parts.values()), of_device(axis, first_rows + devices * here), tokens


def of_device(axis: str, table: Any) -> Array:
    """Return this device's row of a constant table with a row for each device of a mesh axis."""
    rows = jnp.asarray(table, jnp.int32)
    shape, size = rows.shape[1:], rows[0].size
    # Flat: of more dimensions the compiler may choose an order, in which a small table takes much memory.
    return lax.dynamic_slice_in_dim(rows.reshape(-1), lax.axis_index(axis) * size, size).reshape(shape)
