"""The rows of all devices' tokens in the order of this device's experts.

Tokens go both ways round a ring of devices by copies of XLA's, which run while the choices are sorted: XLA's all-gather
would let nothing run meanwhile. What arrives is read where it is.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.ops.collective.arguments import axis_ring
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.derivative import fused_after_sum
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.moe.forms import spread_form
from systolic.ops.moe.kernel.packed_rows import SUBLANES
from systolic.ops.moe.permuting import is_for_xla, spread, tokens_of_rows
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.schedule import SpreadSpec
from systolic.ops.moe.spreading import spread_by_xla, spread_of_parts
from systolic.schedule.legality import LANES

# From so many columns on they travel in two halves: a copy of fewer takes as long as the hops in which it is hidden.
# Source: chosen by arithmetic, 16 registers of a row are two loads of eight.
_MIN_CUT_COLUMNS = 2048


def spread_of_all_devices(
    backend: Backend, axis: str, x: Array, choices: Sorted, rows: int, used_rows: int
) -> Array:
    """Return `spread` of the tokens of all devices of a mesh axis, of which x has this device's.

    Tokens go round the ring while choices are exchanged and sorted.
    """

    def in_two(operands: Any) -> Array:
        x, choices = operands
        return spread(backend, lax.all_gather(x, axis, tiled=True), choices, rows, used_rows)

    ring = axis_ring(axis, lax.axis_size(axis)) if isinstance(axis, str) else None
    if ring is None or not _has_parts(backend, len(ring), x, rows, used_rows):
        return in_two((x, choices))

    def by_xla(x: Array, tokens: Array, kept: Array) -> Array:
        return spread_by_xla(backend, lax.all_gather(x, axis, tiled=True), tokens, kept)

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
    kept: Array,
) -> Array:
    count, here, half = len(ring), x.shape[0], x.shape[0] // 2
    hops = [[(device, ring[(at + way) % count]) for at, device in enumerate(ring)] for way in (1, -1)]
    opposite, nearest_two = count // 2, ((1 - count // 2, 0), (count // 2 - 1, 0))
    columns: list[dict[tuple[int, int], Array]] = []  # parts by the distance to their device, and by their first row
    for part in jnp.split(x, _cuts(x.shape[1]), axis=1):
        if columns:  # columns before have the links for themselves, but for the last hop, which is half as long
            before = [columns[-1][at] for at in nearest_two]
            part, *before = lax.optimization_barrier((part, *before))
            columns[-1] |= zip(nearest_two, before, strict=True)
        right, left, parts = part, part, {(0, 0): part}
        for distance in range(1, opposite):
            right, left = (lax.ppermute(sent, axis, way) for sent, way in zip((right, left), hops, strict=True))
            parts |= {(-distance, 0): right, (distance, 0): left}
        columns.append(parts)
    for parts in columns:  # of the opposite device's tokens half come each way
        right, left = (parts[at] for at in nearest_two)
        parts[opposite, 0] = lax.ppermute(right[:half], axis, hops[0])
        parts[opposite, half] = lax.ppermute(left[half:], axis, hops[1])
    place = jnp.asarray(np.argsort(ring), jnp.int32)[lax.axis_index(axis)]
    distances, first_rows = np.asarray(list(columns[0]), np.int32).T
    first_rows = first_rows + jnp.asarray(ring, jnp.int32)[(place + distances) % count] * here
    return spread_of_parts(backend, [list(parts.values()) for parts in columns], first_rows, tokens, kept)


def _cuts(d: int) -> list[int]:
    """Return where columns are cut, so that rows are copied while other columns travel."""
    return [d // 2] if d >= _MIN_CUT_COLUMNS and d % (2 * LANES) == 0 else []


def exchanged(array: Array, axis: str) -> Array:
    """Return the arrays of all devices, by a copy to each, which do not wait for each other."""

    def by_copies(array: Array) -> Array:
        count, me = lax.axis_size(axis), lax.axis_index(axis)
        shifts = ([(device, (device + shift) % count) for device in range(count)] for shift in range(1, count))
        arrived = jnp.stack([array, *(lax.ppermute(array, axis, shift) for shift in shifts)])
        return arrived[(me - jnp.arange(count)) % count]

    return fused_after_sum(by_copies, lambda array: lax.all_gather(array, axis), False, array)
