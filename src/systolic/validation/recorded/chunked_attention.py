"""Recorded attention of XLA in chunks of queries and keys, as in arXiv:2112.05682."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.validation.recorded.arguments import Arguments
from systolic.validation.recorded.attention import (
    Settings,
    attention_operands,
    attention_settings,
    mask_array,
    repeated_heads,
)
from systolic.validation.recorded.call import Call

# Records name no chunks. tokamax' call of attention uses these; the class that it calls has another default.
_QUERIES, _KEYS = 512, 1024


def chunked_attention_call(arguments: Arguments) -> Call:
    settings = attention_settings(arguments)
    return Call(functools.partial(chunked_attention, settings=settings), attention_operands(arguments))


def chunked_attention(
    q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None, *, settings: Settings
) -> Array:
    """Return attention in the dtype of q. A remainder of queries or keys is a last, smaller chunk."""
    k, v = (repeated_heads(operand, q) for operand in (k, v))
    whole_mask = mask_array(mask, q, k, settings)
    length, kv_length = q.shape[-3], k.shape[-3]

    def of_queries(start: Array | int, count: int) -> Array:
        part_q, part_bias, part_mask = _part(q, start, count, -3), _part(bias, start, count, -2), None
        part_mask = _part(whole_mask, start, count, -2)

        def of_keys(first: Array | int, keys: int, state: Any) -> Any:
            parts = (_part(k, first, keys, -3), _part(v, first, keys, -3))
            return _attend(
                part_q, *parts, _part(part_bias, first, keys, -1), _part(part_mask, first, keys, -1), state, settings
            )

        rows = (*q.shape[:-3], q.shape[-2], count)
        zeros = jnp.zeros((*part_q.shape[:-1], v.shape[-1]), jnp.float32)
        state: Any = (zeros, jnp.full(rows, -jnp.inf), jnp.zeros(rows, jnp.float32))
        if kv_length >= _KEYS:
            state = _stepped(lambda first, state: of_keys(first, _KEYS, state), kv_length // _KEYS, state)
        if rest := kv_length % _KEYS:
            state = of_keys(kv_length - rest, rest, state)
        result, _, sums = state
        return (result / sums.mT[..., None]).astype(q.dtype)

    parts = []
    if length >= _QUERIES:
        step = lambda start, _: (start + _QUERIES, of_queries(start, _QUERIES))  # noqa: E731
        _, chunks = lax.scan(step, init=0, length=length // _QUERIES)
        joined = jnp.moveaxis(chunks, 0, -4)
        parts.append(joined.reshape(*joined.shape[:-4], -1, *joined.shape[-2:]))
    if rest := length % _QUERIES:
        parts.append(of_queries(length - rest, rest))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-3)


def _stepped(step: Any, count: int, state: Any) -> Any:
    """Return the state after steps that each get the first key of their chunk, which is carried along."""

    def body(_: Array, carry: Any) -> Any:
        first, *inner = carry
        return (first + _KEYS, *step(first, tuple(inner)))

    return lax.fori_loop(0, count, body, (0, *state))[1:]


def _attend(
    q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None, state: Any, settings: Settings
) -> tuple[Array, Array, Array]:
    """Return sum, maximum and sum of weights after one more chunk of keys."""
    total, largest, sums = state
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    logits = dot("...qhd,...khd->...hqk", q, k, precision=settings.precisions[0]) * settings.scale
    if bias is not None:
        logits = (logits + bias).astype(logits.dtype)
    if mask is not None:
        logits = jnp.where(mask, logits, float(jnp.finfo(logits.dtype).min))
    new_largest = jnp.maximum(largest, jnp.max(logits, axis=-1))
    weights = jnp.exp(logits - new_largest[..., None])
    correction = jnp.exp(largest - new_largest)
    part = dot("...hqk,...khd->...qhd", weights, v, precision=settings.precisions[1])
    return total * correction.mT[..., None] + part, new_largest, sums * correction + weights.sum(axis=-1)


def _part(array: Any, start: Array | int, count: int, axis: int) -> Any:
    """Return a chunk along an axis; an axis of size 1 is broadcast and stays."""
    if array is None or array.shape[axis] == 1:
        return array
    return jax.lax.dynamic_slice_in_dim(array, start, count, axis)
