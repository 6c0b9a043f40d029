"""Chooses each token's experts, by a kernel or by XLA's `lax.top_k`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.interpreted import tracing_for
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.target import explicit_mesh, without_kernel
from systolic.ops.moe.kernel.top_k import largest_logits
from systolic.ops.moe.routing import is_expert
from systolic.ops.moe.top_k_schedule import TopKSchedule, why_no_kernel


def chosen_experts(backend: Backend, logits: Array, top_k: int, renormalize: bool) -> tuple[Array, Array]:
    """Return the experts of each token, [tokens, k], and their weights in float32."""
    logits = logits.astype(jnp.float32)
    values, ids = largest(backend, lax.stop_gradient(logits), top_k)
    chosen = _selected(logits, values, ids)
    if renormalize:
        return ids, jax.nn.softmax(chosen, axis=1)
    return ids, jnp.exp(chosen - jax.nn.logsumexp(logits, axis=1, keepdims=True))


def largest(backend: Backend, logits: Array, top_k: int) -> tuple[Array, Array]:
    """Return `lax.top_k` of float32 logits, [tokens, experts]."""
    if not backend.in_kernel or explicit_mesh([logits]) is not None:
        return _by_xla(top_k, logits)
    reason = why_no_kernel(logits.shape[1], top_k)
    if reason is not None:
        return _by_xla(top_k, without_kernel(logits, reason))
    by_pallas, by_xla = functools.partial(_by_pallas, backend, top_k), functools.partial(_by_xla, top_k)
    return one_at_a_time(functools.partial(dispatched, backend, by_pallas, by_xla), logits)


def _by_xla(top_k: int, logits: Array) -> tuple[Array, Array]:
    values, ids = lax.top_k(logits, top_k)
    return values, ids


@functools.partial(jax.jit, static_argnums=(0, 1))
def _by_pallas(backend: Backend, top_k: int, logits: Array) -> tuple[Array, Array]:
    chip = backend.chip
    assert chip is not None  # else XLA computes it
    with tracing_for(chip):
        values, ids = largest_logits(
            backend.on_tpu(logits), top_k=top_k, schedule=TopKSchedule.of(*logits.shape), interpret=backend.interpret
        )
    return values.T, ids.T


@jax.custom_jvp
def _selected(logits: Array, values: Array, ids: Array) -> Array:
    """Return `values`, the logits of `ids`. Their gradient is no scatter, which a TPU does element by element."""
    return values


@_selected.defjvp
def _selected_tangent(primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Any]) -> tuple[Array, Array]:
    (_, values, ids), (tangent, *_) = primals, tangents
    return values, jnp.where(is_expert(ids, tangent.shape[1]), tangent[:, None, :], 0).sum(2)
