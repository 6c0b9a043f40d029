"""Attention that computes every score at once: the reference of attention kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def attention_plain(q, k, v, *, seen=None, scale=None, bias=0.0, cap=None):
    """Softmax attention over [..., heads, length, depth].

    Args:
      seen: the keys that each query sees: "causal", or anything that broadcasts to [length, length].
      scale: of the scores; None: by the depth.
      bias: added to the scores before they are scaled.
      cap: soft limit of the scores.
    """
    scores = (jnp.einsum("...qd,...kd->...qk", q, k) + bias) * (scale or q.shape[-1] ** -0.5)
    if cap is not None:
        scores = cap * jnp.tanh(scores / cap)
    if seen is not None:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if isinstance(seen, str) else seen
        scores = jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores), v)


def weights(out):
    """Different weights, one per element, for the sum that a gradient is taken of."""
    return jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)


def gradient(fn, arguments: int = 3):
    """The gradient of a weighted sum of a function's result, by its first arguments."""

    def loss(*given):
        out = fn(*given)
        return (out.astype(jnp.promote_types(out.dtype, jnp.float32)) * weights(out)).sum()

    return jax.grad(loss, tuple(range(arguments)))
