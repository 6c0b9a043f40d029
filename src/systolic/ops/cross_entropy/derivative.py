"""Statistics of logits, differentiable in both modes: everything else of a loss is arithmetic on one number a row.

    lse = log Σ exp(logits)        picked = logits[label]        total = Σ logits

Between both passes there are x, w and a number for each row, from which the backward pass computes logits again; logits
too if `Loss.keeps` them. Kernels compute the statistics and their gradients. Tangents and the derivatives of gradients
are plain JAX in chunks of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import zero_from_primal

from systolic.compat import varying_alike
from systolic.ops.cross_entropy.loss import Loss
from systolic.ops.cross_entropy.pallas import gradients_by_pallas, statistics_by_pallas
from systolic.ops.cross_entropy.xla import gradients_by_xla, statistics_by_xla
from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.derivative import fused_after_sum
from systolic.ops.engine.dispatch import dispatched, each_of_batch, one_at_a_time
from systolic.ops.engine.linear import jvp_of_moving, linear, perturbed

Statistics = tuple[Array, Array, Array]


def statistics(loss: Loss, x: Array, w: Array, labels: Array) -> Statistics:
    """Return log-sum-exp, the label's logit and the sum of logits of each row, float32 [m].

    Args:
      x: [m, k].
      w: [k, n] of the same dtype.
      labels: [m] of int32, below n; a negative one is not a label, and its logit is 0.
    """
    x, w, labels = varying_alike([x, w, labels])
    return _statistics(loss, False, x, w, labels)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _statistics(loss: Loss, keep_logits: bool, x: Array, w: Array, labels: Array) -> Any:
    """Return the statistics, and the logits if they are kept: these have no derivative, because nothing reads it."""
    return _forward(loss, keep_logits, x, w, labels)


@functools.partial(_statistics.defjvp, symbolic_zeros=True)
def _statistics_tangent(loss: Loss, keep_logits: bool, primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, w, labels = primals
    keeps = loss.keeps(x.shape[0], w.shape[1], x.dtype.name)
    lse, picked, total, *logits = _statistics(loss, keeps, x, w, labels)
    outs = lse, picked, total
    out_tangents = linear(_Tangent(product=loss), [x, w, labels, lse, *logits], perturbed(tangents[:2]), outs)
    if keep_logits:
        return (*outs, *logits), (*out_tangents, zero_from_primal(logits[0], symbolic_zeros=True))
    return outs, out_tangents


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tangent(OfProduct):
    """The derivative of the statistics in x and w, for `engine.linear`. Residuals are the gradients' operands."""

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        x, w, labels, *_ = residuals

        def plain(x: Array, w: Array) -> Any:
            return statistics_by_xla(self.product, False, x, w, labels)

        return jvp_of_moving(plain, [x, w], arguments)[1]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        x, w, labels, lse, *logits = residuals
        loss = self.product.anew()  # the caller's tiles are the forward kernel's; this one keeps more in VMEM

        def kernel(operands: Any) -> Any:
            return one_at_a_time(functools.partial(_backward, loss), *operands)

        def plain(operands: Any) -> Any:
            x, w, labels, _, cotangents, *_ = operands
            return gradients_by_xla(loss, x, w, labels, None, cotangents)

        gradients = fused_after_sum(kernel, plain, True, (x, w, labels, lse, tuple(cotangents), *logits))
        return [None if argument is None else gradient for argument, gradient in zip(arguments, gradients, strict=True)]


def _forward(loss: Loss, keep_logits: bool, *operands: Array) -> Any:
    """Compute the statistics; under `vmap` in one call of more rows if w is the same for all, else call after call."""

    def run(*operands: Array) -> Any:
        pallas: Any = functools.partial(statistics_by_pallas, loss, keep_logits)
        xla: Any = functools.partial(statistics_by_xla, loss, keep_logits)
        return dispatched(loss.backend, pallas, xla, *operands)

    @custom_vmap
    def once(*operands: Array) -> Any:
        return run(*operands)

    @once.def_vmap
    def _(size: int, mapped: Any, x: Array, w: Array, labels: Array) -> tuple[Any, Any]:
        if mapped[1]:
            results = each_of_batch(run, size, mapped, (x, w, labels))
        else:
            x, labels = (
                array if is_mapped else jnp.broadcast_to(array, (size, *array.shape))
                for array, is_mapped in ((x, mapped[0]), (labels, mapped[2]))
            )
            joined = _forward(loss, keep_logits, x.reshape(-1, x.shape[-1]), w, labels.reshape(-1))
            results = tuple(part.reshape(size, -1, *part.shape[1:]) for part in joined)
        return results, jax.tree.map(lambda _: True, results)

    return once(*operands)


def _backward(loss: Loss, *operands: Any) -> Any:
    pallas: Any = functools.partial(gradients_by_pallas, loss)
    xla: Any = functools.partial(gradients_by_xla, loss)
    return dispatched(loss.backend, pallas, xla, *operands)
