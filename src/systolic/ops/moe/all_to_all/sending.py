"""The places of rows that are sent to the devices of their experts and back, computed from their counts.

Each device sends one slice to each device, in the order of experts. An expert's rows are put together where they
arrive, in the order of their devices, so that nothing is sorted there, and a capacity drops the last of all devices'
tokens. A slice for each expert would arrive in that order, but slices fill whole tiles of eight rows: of 8 rows each
they would take nearly twice as long.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from systolic.compat.typical import typical
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.exchange.tables import Slices
from systolic.ops.moe.arguments import Call
from systolic.ops.moe.routing import Sorted, sizes_of_experts, sorted_by_expert, typical_sizes
from systolic.ops.moe.schedule import GRANULE_TOKENS
from systolic.schedule.sizes import padded


class Sending(NamedTuple):
    choices: Sorted  # of this device's tokens, with the experts of all devices
    sizes: Array  # rows that arrive for each of this device's experts
    sent: Slices
    back: Slices
    by_expert: Sorted  # rows as they arrive, each with an expert of this device
    by_device: Sorted  # rows in the order of experts, each with the device that it goes back to


def sending(call: Call, here: int, axis: str) -> Sending:
    """Sort the choices of this device's tokens, and find where their rows go; `here` experts are on each device."""
    devices, (tokens, top_k) = lax.axis_size(axis), call.ids.shape
    sizes = lax.all_gather(sizes_of_experts(call.ids, call.experts), axis)  # [devices, experts]
    sizes = typical(sizes, typical_sizes(devices * tokens, top_k, call.experts, devices))
    me, limits = lax.axis_index(axis), None
    if call.capacity is not None:
        sizes = jnp.clip(call.capacity - _before(sizes, 0), 0, sizes)
        limits = sizes[me]
    of_device = sizes.reshape(devices, devices, here)
    arriving = lax.dynamic_index_in_dim(of_device, me, axis=1, keepdims=False)
    of_slices = of_device.sum(2)  # [senders, receivers]
    sources, targets = _before(of_slices, 1), _before(of_slices, 0)
    from_here = sources[me], of_slices[me], targets[me]
    to_here = (lax.dynamic_index_in_dim(table, me, 1, keepdims=False) for table in (sources, of_slices, targets))
    source_here, size_here, target_here = to_here
    room = arriving_rows(call, here, devices)
    return Sending(
        choices=sorted_by_expert(call.ids, call.experts, limits),
        sizes=arriving.sum(0),
        sent=Slices(*from_here, recv_sizes=size_here, recv_offsets=target_here),
        back=Slices(target_here, size_here, source_here, recv_sizes=of_slices[me], recv_offsets=sources[me]),
        by_expert=_regrouped(arriving, room),
        by_device=_regrouped(arriving.T, room),
    )


def arriving_rows(call: Call, here: int, devices: int) -> int:
    """Return the room for rows that arrive: all that could, because their number is known only at run time."""
    tokens, top_k = call.ids.shape
    # A router's choices of a token differ.
    rows = devices * tokens * (top_k if call.repeats else min(top_k, here))
    return padded(rows if call.capacity is None else min(rows, here * call.capacity), SUBLANES)


def _before(sizes: Array, axis: int) -> Array:
    return jnp.cumsum(sizes, axis) - sizes


def _regrouped(sizes: Array, room: int) -> Sorted:
    """Reorder rows from runs [a, b], a major, to runs [b, a], b major, without a sort.

    Each row is a choice of its own. Rows after the last run stay where they are.
    """
    runs, groups = sizes.shape
    begins, targets = (_before(table.reshape(-1), 0) for table in (sizes, sizes.T))
    shifts = targets.reshape(groups, runs).T.reshape(-1) - begins
    sizes = sizes.reshape(-1)
    row = jnp.arange(room, dtype=jnp.int32)

    def moved(begins: Array, shifts: Array) -> tuple[Array, Array]:
        is_of_run = (row[:, None] >= begins) & (row[:, None] < begins + sizes)
        return row + jnp.where(is_of_run, shifts, 0).sum(1), is_of_run

    place, is_of_run = moved(begins, shifts)
    order, _ = moved(begins + shifts, -shifts)
    group = jnp.arange(runs * groups, dtype=jnp.int32) % groups
    ids = groups + jnp.where(is_of_run, group - groups, 0).sum(1)
    granule = jnp.arange(0, room, GRANULE_TOKENS, dtype=jnp.int32)[:, None]
    counts = jnp.clip(jnp.minimum(begins + sizes, granule + GRANULE_TOKENS) - jnp.maximum(begins, granule), 0)
    return Sorted(ids=ids, order=order, place=place, counts=counts.reshape(-1, runs, groups).sum(1))
