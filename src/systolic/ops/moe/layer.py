"""Computes a layer of experts: rows are sorted by expert, multiplied in groups, and added up for each token."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import Array, lax

from systolic.ops.engine.backend import backend_of
from systolic.ops.grouped import grouped_matmul
from systolic.ops.moe.arguments import Call
from systolic.ops.moe.permuting import combined, spread
from systolic.ops.moe.routing import sorted_by_expert


class Experts(NamedTuple):
    """The weights of the experts of this device."""

    gate: Any
    up: Any
    down: Any
    bias_gate: Any
    bias_up: Any
    bias_down: Any


def experts_sum(call: Call, experts: Experts, activation: Any, options: dict[str, Any]) -> Array:
    """Return the weighted sum of what each token's experts return, those of this device: [tokens, d]."""
    here = experts.gate.shape[0]
    if not call.ids.shape[0]:
        return call.x
    backend = backend_of(options["implementation"], options["chip"], None)
    with jax.named_scope("sort"):
        ids = call.ids if call.first_expert is None else call.ids - call.first_expert
        choices = sorted_by_expert(ids, here, call.capacity)
    rows = ids.size if call.capacity is None else min(ids.size, here * call.capacity)
    with jax.named_scope("gather"):
        x = spread(backend, call.x, choices, rows)
    options = {**options, "rows_per_group": max(ids.size // call.experts, 1)}
    with jax.named_scope("experts"):
        results = _mlp(x, experts, choices.sizes, activation, options)
    with jax.named_scope("combine"):
        return combined(backend, results, call.weights, choices, call.x.dtype.name)


def _mlp(x: Array, experts: Experts, sizes: Array, activation: Any, options: dict[str, Any]) -> Array:
    first = {"bias": experts.bias_gate, "activation": activation, **options}
    if experts.up is None or experts.bias_up is None:
        hidden = grouped_matmul(x, experts.gate, sizes, up=experts.up, **first)
    else:  # the gated kernel has a bias for the first product only
        hidden = grouped_matmul(x, experts.gate, sizes, **first)
        hidden *= grouped_matmul(x, experts.up, sizes, bias=experts.bias_up, **options)
    return grouped_matmul(hidden, experts.down, sizes, bias=experts.bias_down, **options)


def over_devices(call: Call, experts: Experts, axis: str, activation: Any, options: dict[str, Any]) -> Array:
    """Return the sum for this device's tokens, whose experts are on all devices of a mesh axis.

    Every device gets all tokens, and adds up what its experts return. A token with many experts is needed on most
    devices anyway, and a gathered token travels once where an exchange sends it once for each expert.
    """
    with jax.named_scope("all_gather"):
        x, ids, weights = (lax.all_gather(array, axis, tiled=True) for array in (call.x, call.ids, call.weights))
    everyone = Call(
        x=x,
        ids=ids,
        weights=weights,
        experts=call.experts,
        first_expert=call.first_expert,
        capacity=call.capacity,
    )
    part = experts_sum(everyone, experts, activation, options)
    with jax.named_scope("reduce_scatter"):
        return lax.psum_scatter(part, axis, tiled=True)
