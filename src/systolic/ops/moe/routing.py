"""Sorts the choices of experts by expert.

A choice is one token with one of its experts: token t's are numbers k · t to k · t + k - 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.compat.typical import typical
from systolic.ops.moe.schedule import GRANULE_TOKENS


class Sorted(NamedTuple):
    """Choices in the order of their experts; those without an expert are last."""

    ids: Array  # the expert of each choice; the number of experts for no expert
    order: Array  # the choice of each sorted row
    place: Array  # the sorted row of each choice, the inverse of `order`
    counts: Array  # rows of each expert, by granules of tokens: [granules, experts]

    @property
    def sizes(self) -> Array:
        """Rows of each expert."""
        return self.counts.sum(0)


def is_expert(ids: Array, experts: int) -> Array:
    """Return whether an id, [...], is each of the experts: [..., experts]."""
    return ids[..., None] == jnp.arange(experts, dtype=ids.dtype)


def sorted_by_expert(ids: Array, experts: int, capacity: int | Array | None, devices: int = 1) -> Sorted:
    """Sort choices by their expert, in the order of tokens; ids out of range and above capacity are of no expert.

    A capacity is one number for all experts, or one for each. On one of several `devices`, experts are that device's.
    """
    return sorted_with_values(ids, experts, capacity, devices)[0]


def sorted_with_values(
    ids: Array, experts: int, capacity: int | Array | None, devices: int, *values: Array
) -> tuple[Sorted, list[Array]]:
    """Return `sorted_by_expert`, and values of choices, [tokens, k], in that order: [tokens · k]."""
    tokens, top_k = ids.shape
    ids = jnp.where((ids >= 0) & (ids < experts), ids, experts)
    granules = -(-tokens // GRANULE_TOKENS)
    in_granules = jnp.pad(ids, [(0, granules * GRANULE_TOKENS - tokens), (0, 0)], constant_values=experts)
    counted = is_expert(in_granules.reshape(granules, -1), experts).astype(jnp.int32)
    counts = typical(counted.sum(1), typical_counts(tokens, top_k, experts, devices))
    ids = ids.reshape(-1)
    if capacity is not None:
        rank = jnp.cumsum(counted.reshape(-1, experts), axis=0).reshape(counted.shape)
        is_above = (counted > 0) & (rank > capacity)
        ids = jnp.where(is_above.any(2).reshape(-1)[: ids.size], experts, ids)
        counts = jnp.diff(jnp.minimum(jnp.cumsum(counts, axis=0), capacity), axis=0, prepend=0)
    numbers = jnp.arange(ids.size, dtype=jnp.int32)
    flat = (value.reshape(-1) for value in values)
    bits = max(ids.size - 1, 1).bit_length()
    if (experts + 1) << bits <= 2**31:
        # One key of both: a sort takes as long as it has operands, and a stable one numbers them once more.
        keys, *in_order = lax.sort((ids << bits | numbers, *flat), num_keys=1, is_stable=False)
        order = keys & ((1 << bits) - 1)
    else:
        _, order, *in_order = lax.sort((ids, numbers, *flat), num_keys=1, is_stable=True)
    _, place = lax.sort((order, numbers), num_keys=1)
    return Sorted(ids=ids, order=order, place=place, counts=counts), in_order


def sizes_of_experts(ids: Array, experts: int) -> Array:
    """Return the rows of each expert, without a capacity."""
    return is_expert(ids.reshape(-1), experts).astype(jnp.int32).sum(0)


def typical_sizes(tokens: int, top_k: int, experts: int, devices: int) -> Any:
    """Return rows for each expert from each device that a router might send, int32 [devices, experts].

    All experts are equally likely. `tokens` and `experts` count all devices' tokens and experts.
    """
    random = np.random.default_rng(0)
    return random.multinomial(tokens // devices * top_k, np.full(experts, 1 / experts), devices).astype(np.int32)


def typical_counts(tokens: int, top_k: int, experts: int, devices: int = 1) -> Any:
    """Return rows of each expert, by granules of tokens, that a router might send: all experts equally likely.

    With `experts` on each of several devices, they are the rows of the device with the most rows, for which the others
    wait.
    """
    random, granules, all_experts = np.random.default_rng(0), -(-tokens // GRANULE_TOKENS), experts * devices
    sizes = random.multinomial(tokens * top_k, np.full(all_experts, 1 / all_experts))
    ids = random.permutation(np.repeat(np.arange(all_experts), sizes))
    choice = np.arange(ids.size) // (GRANULE_TOKENS * top_k)
    counts = np.bincount(choice * all_experts + ids, minlength=granules * all_experts)
    counts = counts.reshape(granules, devices, experts).astype(np.int32)
    return counts[:, counts.sum((0, 2)).argmax()]
