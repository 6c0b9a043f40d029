"""Chooses each token's experts, and sorts the choices by expert.

A choice is one token with one of its experts: token t's are numbers k · t to k · t + k - 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.compat.typical import typical


class Sorted(NamedTuple):
    """Choices in the order of their experts; those without an expert are last."""

    order: Array  # the choice of each sorted row
    place: Array  # the sorted row of each choice, the inverse of `order`
    sizes: Array  # rows of each expert


def chosen_experts(logits: Array, top_k: int, renormalize: bool) -> tuple[Array, Array]:
    """Return the experts of each token, [tokens, k], and their weights in float32."""
    logits = logits.astype(jnp.float32)
    ids = lax.top_k(lax.stop_gradient(logits), top_k)[1]
    # Not the values of top_k, nor a gather: the gradient of both is a scatter, which a TPU does element by element.
    chosen = jnp.where(_is_expert(ids, logits.shape[1]), logits[:, None, :], 0).sum(2)
    if renormalize:
        return ids, jax.nn.softmax(chosen, axis=1)
    return ids, jnp.exp(chosen - jax.nn.logsumexp(logits, axis=1, keepdims=True))


def _is_expert(ids: Array, experts: int) -> Array:
    return ids[..., None] == jnp.arange(experts, dtype=ids.dtype)


def sorted_by_expert(ids: Array, experts: int, capacity: int | None) -> Sorted:
    """Sort choices by their expert, in the order of tokens; ids out of range and above capacity are of no expert."""
    count = ids.size
    ids = jnp.where((ids >= 0) & (ids < experts), ids, experts).reshape(-1)
    counted = _is_expert(ids, experts)
    sizes = counted.astype(jnp.int32).sum(0)
    if capacity is not None:
        rank = jnp.where(counted, jnp.cumsum(counted.astype(jnp.int32), axis=0), 0).sum(1)
        ids = jnp.where(rank > capacity, experts, ids)
        sizes = jnp.minimum(sizes, capacity)
    numbers = jnp.arange(count, dtype=jnp.int32)
    _, order = lax.sort((ids, numbers), num_keys=1, is_stable=True)
    _, place = lax.sort((order, numbers), num_keys=1)
    return Sorted(order=order, place=place, sizes=typical(sizes, typical_sizes(count, experts, capacity)))


def typical_sizes(count: int, experts: int, capacity: int | None) -> Any:
    """Return rows of each expert that a router might send: drawn at random, all experts equally likely."""
    sizes = np.random.default_rng(0).multinomial(count, np.full(experts, 1 / experts))
    return np.minimum(sizes, count if capacity is None else capacity).astype(np.int32)
