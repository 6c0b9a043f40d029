"""Statistics of logits, differentiable in reverse mode: everything else of a loss is arithmetic on one number a row.

    lse = log Σ exp(logits)        picked = logits[label]        total = Σ logits

Between both passes there are x, w and a number for each row, from which the backward pass computes logits again; logits
too if `Loss.keeps` them.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap

from systolic.compat import varying_alike
from systolic.ops.cross_entropy.loss import Loss
from systolic.ops.cross_entropy.pallas import gradients_by_pallas, statistics_by_pallas
from systolic.ops.cross_entropy.xla import gradients_by_xla, statistics_by_xla
from systolic.ops.engine.dispatch import dispatched, each_of_batch

Statistics = tuple[Array, Array, Array]


def statistics(loss: Loss, x: Array, w: Array, labels: Array) -> Statistics:
    """Return log-sum-exp, the label's logit and the sum of logits of each row, float32 [m].

    Args:
      x: [m, k].
      w: [k, n] of the same dtype.
      labels: [m] of int32, below n; a negative one is no label, and its logit is 0.
    """
    x, w, labels = varying_alike([x, w, labels])
    return _statistics(loss, x, w, labels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _statistics(loss: Loss, x: Array, w: Array, labels: Array) -> Statistics:
    return _forward(loss, False, x, w, labels)


def _with_residuals(loss: Loss, x: Array, w: Array, labels: Array) -> tuple[Statistics, tuple[Array, ...]]:
    keep_logits = loss.keeps(x.shape[0], w.shape[1], x.dtype.name)
    lse, picked, total, *logits = _forward(loss, keep_logits, x, w, labels)
    return (lse, picked, total), (x, w, labels, lse, *logits)


def _gradients(loss: Loss, residuals: tuple[Array, ...], cotangents: Statistics) -> tuple[Array, Array, Any]:
    x, w, labels, lse, *logits = residuals

    # The caller's tiles are the forward kernel's; this one keeps more in VMEM.
    dx, dw = _batchable(_backward, None)(loss.anew(), x, w, labels, lse, tuple(cotangents), *logits)
    return dx, dw, np.zeros(labels.shape, jax.dtypes.float0)


_statistics.defvjp(_with_residuals, _gradients)


def _forward(loss: Loss, keep_logits: bool, *given: Array) -> Any:
    def run(loss: Loss, *given: Array) -> Any:
        pallas: Any = functools.partial(statistics_by_pallas, loss, keep_logits)
        xla: Any = functools.partial(statistics_by_xla, loss, keep_logits)
        return dispatched(loss.backend, pallas, xla, *given)

    return _batchable(run, (True, False, True))(loss, *given)


def _backward(loss: Loss, *given: Any) -> Any:
    pallas: Any = functools.partial(gradients_by_pallas, loss)
    xla: Any = functools.partial(gradients_by_xla, loss)
    return dispatched(loss.backend, pallas, xla, *given)


def _batchable(run: Any, by_rows: tuple[bool, ...] | None) -> Any:
    """Return a function under `vmap`: one call of more rows if w is the same for all, else one call after another.

    Args:
      by_rows: True for arrays and results with a row for each token; None if a batch of calls cannot be one call.
    """

    def call(loss: Loss, *given: Any) -> Any:
        @custom_vmap
        def once(*given: Any) -> Any:
            return run(loss, *given)

        @once.def_vmap
        def _(size: int, mapped: Any, *given: Any) -> tuple[Any, Any]:
            if by_rows is not None and not mapped[1]:
                x, w, labels = given
                x, labels = (
                    array if is_mapped else jnp.broadcast_to(array, (size, *array.shape))
                    for array, is_mapped in ((x, mapped[0]), (labels, mapped[2]))
                )
                joined = call(loss, x.reshape(-1, x.shape[-1]), w, labels.reshape(-1))
                return tuple(part.reshape(size, -1, *part.shape[1:]) for part in joined), (True,) * len(joined)
            results = each_of_batch(lambda *one: run(loss, *one), size, mapped, given)
            return results, jax.tree.map(lambda _: True, results)

        return once(*given)

    return call
