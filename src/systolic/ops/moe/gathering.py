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
from systolic.ops.moe.spreading import in_rows, no_rows, spread_by_xla, spread_into
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
    columns = jnp.split(x, _cuts(x.shape[1]), axis=1)
    traveling, out = _Traveling(axis, ring, columns[0]), no_rows(tokens.size, x)

    def copied(out: Array, number: int) -> Array:
        first_register = number * columns[0].shape[1] // LANES
        return spread_into(backend, out, first_register, *traveling.arrived(), tokens, kept)

    for number, following in enumerate(columns[1:]):
        # Left to itself, XLA would sort when links are idle, and copy rows when the last tokens have arrived.
        following, tokens, traveling.ends = lax.optimization_barrier((following, tokens, traveling.ends))
        after = _Traveling(axis, ring, following)
        out = copied(out, number)
        out, after.ends = lax.optimization_barrier((out, after.ends))
        traveling = after
    return in_rows(copied(out, len(columns) - 1), tokens.size)


class _Traveling:
    """Columns of tokens on their way round the ring, all hops but the last."""

    def __init__(self, axis: str, ring: tuple[int, ...], own: Array) -> None:
        self._axis, self._ring, count = axis, ring, len(ring)
        self._hops = [[(device, ring[(at + way) % count]) for at, device in enumerate(ring)] for way in (1, -1)]
        self._parts = {0: own}  # by the distance to their device
        self.ends = own, own  # of both ways
        for distance in range(1, count // 2):
            self.ends = self._hop(*self.ends)
            self._parts |= zip((-distance, distance), self.ends, strict=True)

    def _hop(self, *sent: Array) -> tuple[Array, Array]:
        right, left = (lax.ppermute(part, self._axis, hops) for part, hops in zip(sent, self._hops, strict=True))
        return right, left

    def arrived(self) -> tuple[list[Array], Array]:
        """Return the parts of all devices' tokens, and the first row of each."""
        (right, left), count, here = self.ends, len(self._ring), self._parts[0].shape[0]
        # Of the opposite device's tokens half come each way.
        halves = self._hop(right[: here // 2], left[here // 2 :])
        distances = np.asarray([*self._parts, count // 2, count // 2])
        offsets = np.asarray([0] * len(self._parts) + [0, here // 2], np.int32)
        place = jnp.asarray(np.argsort(self._ring), jnp.int32)[lax.axis_index(self._axis)]
        first_rows = jnp.asarray(self._ring, jnp.int32)[(place + distances) % count] * here + offsets
        return [*self._parts.values(), *halves], first_rows


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
