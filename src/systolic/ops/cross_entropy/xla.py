"""Statistics of logits and their gradients by XLA, in chunks of rows whose logits are in memory at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.compat import varying_alike
from systolic.ops.cross_entropy.loss import Loss

# Float32 logits of a chunk: few chunks, because each reads all of w, in little memory.
_CHUNK_BYTES = 512 * 2**20


def statistics_by_xla(loss: Loss, keep_logits: bool, x: Array, w: Array, labels: Array) -> tuple[Array, ...]:
    """Return log-sum-exp, the label's logit (0 for a negative label) and the sum of logits of each row, float32.

    The sum is zero if `loss.total` is False. With `keep_logits` the logits before their cap come last, [m, n] in x's
    dtype, and the statistics are theirs.
    """

    def chunk(carry: tuple[()], operands: tuple[Array, Array]) -> tuple[tuple[()], tuple[Array, ...]]:
        x, labels = operands
        products = _dot(loss, x, w, (1, 0))
        kept_logits = (products.astype(x.dtype),) if keep_logits else ()
        logits = _soft_capped(loss, kept_logits[0] if kept_logits else products)
        picked = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[:, None], axis=1, mode="clip")[:, 0]
        total = logits.sum(1) if loss.total else varying_alike([jnp.zeros(len(x), jnp.float32), logits])[0]
        return carry, (jax.nn.logsumexp(logits, axis=1), jnp.where(labels < 0, 0.0, picked), total, *kept_logits)

    return _by_chunks(chunk, (), w, (x, labels))[1]


def gradients_by_xla(
    loss: Loss,
    x: Array,
    w: Array,
    labels: Array,
    lse: Array | None,
    cotangents: tuple[Array, Array, Array],
    *logits: Array,
) -> tuple[Array, Array]:
    """Return the gradients of x and w for cotangents of the three statistics, from logits kept or computed again.

    Without a log-sum-exp it is computed from the logits, so that the gradients have derivatives of their own.
    """

    def chunk(dw: Array, operands: Any) -> tuple[Array, Array]:
        x, labels, lse, (dlse, dpicked, dtotal), *kept_logits = operands
        logits = _soft_capped(loss, kept_logits[0] if kept_logits else _dot(loss, x, w, (1, 0)))
        is_label = lax.broadcasted_iota(jnp.int32, logits.shape, 1) == labels[:, None]
        probabilities = jax.nn.softmax(logits, axis=1) if lse is None else jnp.exp(logits - lse[:, None])
        errors = dlse[:, None] * probabilities + jnp.where(is_label, dpicked[:, None], 0.0)
        errors = errors + dtotal[:, None] if loss.total else errors
        if loss.soft_cap is not None:
            errors = errors * (1 - jnp.square(logits / loss.soft_cap))
        errors = errors.astype(x.dtype)
        dx = _dot(loss, errors, w, (1, 1)).astype(x.dtype)
        return dw + _dot(loss, x, errors, (0, 0)), dx

    operands = (x, labels, lse, cotangents, *logits)
    zeros, *_ = varying_alike([jnp.zeros(w.shape, jnp.float32), w, *jax.tree.leaves(operands)])
    dw, dx = _by_chunks(chunk, zeros, w, operands)
    return dx, dw.astype(w.dtype)


def _by_chunks(chunk: Any, carry: Any, w: Array, operands: Any) -> tuple[Any, Any]:
    """Return `lax.scan` of chunks of rows, whose results are joined; the last chunk may be shorter."""
    m = len(operands[0])
    rows = max(min(m, _CHUNK_BYTES // (4 * w.shape[1])), 1)
    chunked_rows = m // rows * rows
    chunk = jax.checkpoint(chunk, prevent_cse=False)  # higher derivatives compute logits again, too
    chunks = jax.tree.map(lambda part: part[:chunked_rows].reshape(-1, rows, *part.shape[1:]), operands)
    carry, results = lax.scan(chunk, carry, chunks)
    results = jax.tree.map(lambda part: part.reshape(chunked_rows, *part.shape[2:]), results)
    if chunked_rows < m:
        carry, last = chunk(carry, jax.tree.map(lambda part: part[chunked_rows:], operands))
        results = jax.tree.map(lambda *parts: jnp.concatenate(parts), results, last)
    return carry, results


def _soft_capped(loss: Loss, products: Array) -> Array:
    logits = products.astype(jnp.float32)
    return logits if loss.soft_cap is None else loss.soft_cap * jnp.tanh(logits / loss.soft_cap)


def _dot(loss: Loss, lhs: Array, rhs: Array, contracted: tuple[int, int]) -> Array:
    return lax.dot_general(
        lhs,
        rhs,
        (((contracted[0],), (contracted[1],)), ((), ())),
        precision=lax.Precision[loss.precision.upper()],
        preferred_element_type=jnp.float32,
    )
