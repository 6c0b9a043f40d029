"""Sums of experts' results, differentiated as sums of rows that are weighted before their last product.

`Σ weight · (hidden @ down)` is `Σ (weight · hidden) @ down`. In the second form the gradient of the weights needs no
results of experts, and no cotangents of results are multiplied by weights: both happen to the narrower hidden rows, in
the operation that differentiates the activation.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from systolic.ops.engine.derivative import fused_after_sum
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.moe.experts import Experts, mlp
from systolic.ops.moe.permuting import Summing, added, combined, in_order_of_experts
from systolic.ops.moe.routing import Sorted


def weighted_sum(
    summing: Summing,
    x: Array,
    experts: Experts,
    weights: Array,
    choices: Sorted,
    activation: Any,
    options: dict[str, Any],
) -> Array:
    """Return each token's weighted sum of what its experts return for its rows of x, which are in their order."""

    def in_order(operands: Any) -> Array:
        x, experts, weights, choices = operands
        with jax.named_scope("experts"):
            results = mlp(x, experts, choices.sizes, activation, options)
        with jax.named_scope("combine"):
            return combined(summing, results, weights, choices)

    def differentiated(operands: Any) -> Array:
        x, experts, weights, choices = operands
        with jax.named_scope("experts"):
            row_scale = in_order_of_experts(weights, choices, x.shape[0])
            results = mlp(x, experts, choices.sizes, activation, options, row_scale=row_scale)
        with jax.named_scope("combine"):
            return added(summing, results, choices, weights.shape[0])

    operands = (x, experts, weights, choices)
    has_other_terms = experts.bias_up is not None or experts.bias_down is not None
    if has_other_terms or not isinstance(experts.down, Array) or explicit_mesh(jax.tree.leaves(operands)) is not None:
        return in_order(operands)
    return fused_after_sum(in_order, differentiated, True, operands)
