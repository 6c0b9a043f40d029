"""The weighted sums of experts' rows of all devices; each device gets the sums of its own tokens."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.interpreted import tracing_for
from systolic.ops.collective.arguments import axis_ring, barrier_number
from systolic.ops.engine.derivative import fused_after_sum
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.moe.combining import combine_by_xla, combine_operands, combine_spec
from systolic.ops.moe.forms import scatter_form
from systolic.ops.moe.permuting import Summing, combined, weights_of_kept
from systolic.ops.moe.ring.kernel.combine_scatter import combine_scattered
from systolic.ops.moe.ring.scattering import scattered
from systolic.ops.moe.ring.schedule import ScatterSchedule
from systolic.ops.moe.routing import Sorted
from systolic.schedule.vmem import vmem_limit


def combined_over_devices(summing: Summing, axis: str, results: Array, weights: Array, choices: Sorted) -> Array:
    """Return the sums of this device's tokens over the devices of a mesh axis."""

    def in_two(operands: Any) -> Array:
        return scattered(combined(summing, *operands), axis)

    ring = axis_ring(axis, lax.axis_size(axis)) if isinstance(axis, str) else None
    if ring is None or not _is_by_kernel(summing, len(ring), results, weights, choices):
        return in_two((results, weights, choices))

    def kernel(operands: Any) -> Array:
        results, weights, choices = operands
        by_pallas = functools.partial(_by_pallas, summing, axis, ring)

        def by_xla(*operands: Any) -> Array:
            return scattered(combine_by_xla(summing.backend, summing.dtype_out, *operands), axis)

        def call(*operands: Any) -> Array:
            return dispatched(summing.backend, by_pallas, by_xla, *operands)

        return one_at_a_time(call, results, weights_of_kept(weights, choices), choices)

    return fused_after_sum(kernel, in_two, False, (results, weights, choices))


def _is_by_kernel(summing: Summing, devices: int, results: Array, weights: Array, choices: Sorted) -> bool:
    backend = summing.backend
    if backend.chip is None or backend.chip.links is None or backend.implementation == "xla":
        return False
    if explicit_mesh((results, weights)) is not None or not results.size:
        return False
    spec = combine_spec(results, weights, choices, summing.dtype_out)
    return len(scatter_form(spec, devices, backend.chip, results.shape[0], summing.used_rows)) == 1


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _by_pallas(
    summing: Summing, axis: str, ring: tuple[int, ...], results: Array, weights: Array, choices: Sorted
) -> Array:
    backend, d = summing.backend, results.shape[1]
    assert backend.chip is not None  # else it is computed in two
    spec = combine_spec(results, weights, choices, summing.dtype_out)
    schedule = ScatterSchedule.of(spec, len(ring), backend.chip)
    order = jnp.asarray(ring, jnp.int32)
    place = jnp.argmax(order == lax.axis_index(axis))
    table = lax.dynamic_index_in_dim(jnp.asarray(schedule.table(ring)), place, keepdims=False)
    with tracing_for(backend.chip):
        out = combine_scattered(
            *combine_operands(spec, schedule.combine, backend.on_tpu(results), weights, choices),
            table,
            order,
            axis_name=axis,
            collective_id=barrier_number(axis),
            spec=spec,
            schedule=schedule,
            vmem_limit_bytes=vmem_limit(schedule.buffers, backend.chip),
            interpret=backend.interpret,
        )
    return out[:, :d]
