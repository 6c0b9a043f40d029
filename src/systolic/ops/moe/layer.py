"""Computes a layer of experts by the faster form: on one device, or over all devices of a mesh axis."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.ops.engine.backend import Backend, backend_of
from systolic.ops.engine.derivative import fused_after_sum
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.moe.all_to_all.layer import sum_by_all_to_all
from systolic.ops.moe.arguments import Call
from systolic.ops.moe.experts import Experts, mlp, product, stored
from systolic.ops.moe.forms import MoeForm
from systolic.ops.moe.fused.layer import FusedLayer
from systolic.ops.moe.permuting import Summing, spread
from systolic.ops.moe.plan import faster_form
from systolic.ops.moe.ring.gathering import spread_of_all_devices
from systolic.ops.moe.ring.hidden import RingHidden
from systolic.ops.moe.ring.summing import combined_over_devices
from systolic.ops.moe.routing import sorted_by_expert, sorted_with_values
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.moe.weighting import weighted_sum
from systolic.ops.quantized.arguments import row_format_named
from systolic.ops.quantized.array import Quantized
from systolic.schedule import IllegalTilesError


def experts_sum(
    call: Call, experts: Experts, activation: Any, options: dict[str, Any], axis: str | None = None
) -> Array:
    """Return the weighted sum of what each token's experts return, [tokens, d].

    With a mesh axis, x and the result have this device's tokens, the result is summed over the axis's devices, experts
    are this device's, and choices are all devices' tokens'.
    """
    here = experts.gate.shape[0]
    if not call.ids.shape[0]:
        return call.x
    backend = backend_of(options["implementation"], options["chip"], None)
    with jax.named_scope("sort"):
        ids = call.ids if call.first_expert is None else call.ids - call.first_expert
        choices = sorted_by_expert(ids, here, call.capacity, call.experts // here)
    rows = ids.size if call.capacity is None else min(ids.size, here * call.capacity)
    used_rows = min(rows, -(-ids.size * here // call.experts))
    with jax.named_scope("gather"):
        if axis is None:
            x = spread(backend, call.x, choices, rows, used_rows)
        else:
            x = spread_of_all_devices(backend, axis, call.x, choices, rows, used_rows)
    # On one of several devices most rows may be of no group: zeros there would take longer than the product.
    leaves_rest = call.first_expert is not None
    options = {**options, "rows_per_group": -(-ids.size // call.experts), "leaves_rest": leaves_rest}
    summing = Summing(backend=backend, dtype_out=call.x.dtype.name, used_rows=used_rows)
    if axis is None:
        return weighted_sum(summing, x, experts, call.weights, choices, activation, options)
    with jax.named_scope("experts"):
        results = mlp(x, experts, choices.sizes, activation, options)
    with jax.named_scope("combine"):
        return combined_over_devices(summing, axis, results, call.weights, choices)


def on_one_device(
    call: Call, experts: Experts, activation: Any, options: dict[str, Any], form: MoeForm | None
) -> Array:
    """Return the sum for all tokens, by the faster form. Its derivatives are those of sorted rows.

    Raises:
      IllegalTilesError: the form is "fused", and the kernels cannot run; the message has each reason.
    """
    fused = None if form == "sorted" else _fused_layer(call, experts, options, is_required=form is not None)
    if fused is None:
        return experts_sum(call, experts, activation, options)

    def in_order(operands: Any) -> Array:
        arrays, experts = operands
        return experts_sum(replace(call, **arrays), experts, activation, options)

    def by_kernels(operands: Any) -> Array:
        arrays, experts = operands
        return fused.sum(replace(call, **arrays), experts, activation)

    def by_xla(operands: Any) -> Array:
        arrays, experts = operands
        return experts_sum(replace(call, **arrays), experts, activation, {**options, "implementation": "xla"})

    def run(operands: Any) -> Array:
        return one_at_a_time(lambda operands: dispatched(fused.backend, by_kernels, by_xla, operands), operands)

    arrays = {name: getattr(call, name) for name in ("x", "ids", "weights")}
    return fused_after_sum(run, in_order, True, (arrays, experts))


def _fused_layer(call: Call, experts: Experts, options: dict[str, Any], *, is_required: bool) -> FusedLayer | None:
    """Return the kernels of the fused form, or None where XLA computes the layer, or another form is faster."""
    backend = backend_of(options["implementation"], options["chip"], None)
    has_mesh = explicit_mesh([call.x, *jax.tree.leaves(experts)]) is not None
    if backend.chip is None or backend.implementation == "xla" or has_mesh or not call.ids.size:
        return None
    quantize_lhs = options["quantize_lhs"]
    try:
        fused = FusedLayer.of(backend, backend.chip, call, experts, quantizes_rows=quantize_lhs is not None)
    except IllegalTilesError:
        if is_required:
            raise
        return None
    if is_required:
        return fused
    spec = _planned_spec(call, experts, quantize_lhs)
    return fused if spec is not None and faster_form(spec, backend.chip) == "fused" else None


def over_devices(
    call: Call, experts: Experts, axis: str, activation: Any, options: dict[str, Any], form: MoeForm | None
) -> Array:
    """Return the sum for this device's tokens, whose experts are on all devices of a mesh axis, by the faster form."""
    if (form or _faster_form(call, experts, axis, options)) == "all-to-all":
        return sum_by_all_to_all(call, experts, axis, activation, options)
    return _sum_by_all_gather(call, experts, axis, activation, options)


def _faster_form(call: Call, experts: Experts, axis: Any, options: dict[str, Any]) -> MoeForm:
    """Return the form that `plan_moe` would, or all-gather where no kernel runs or it knows no times."""
    chip = backend_of(options["implementation"], options["chip"], None).chip
    no_kernel = options["implementation"] == "xla" or explicit_mesh([call.x]) is not None
    if chip is None or chip.links is None or no_kernel or not isinstance(axis, str) or not call.ids.size:
        return "all-gather"
    devices = lax.axis_size(axis)
    spec = None if devices == 1 else _planned_spec(call, experts, options["quantize_lhs"], devices)
    return "all-gather" if spec is None else faster_form(spec, chip)


def _planned_spec(call: Call, experts: Experts, quantize_lhs: Any, devices: int = 1) -> MoeSpec | None:
    """Return the layer as `plan_moe` knows it, or None where tokens choose more experts than there are."""
    (tokens, top_k), (_, d, f) = call.ids.shape, experts.gate.shape
    if top_k > call.experts:
        return None
    return MoeSpec(
        m=devices * tokens,
        k=d,
        n=f,
        experts=call.experts,
        top_k=top_k,
        dtype=call.x.dtype.name,
        devices=devices,
        **_quantized_as(experts.gate, quantize_lhs),
    )


def _quantized_as(gate: Any, quantize_lhs: Any) -> dict[str, Any]:
    """Return the fields of `MoeSpec` about quantized experts, all of which are taken to be like the first product's."""
    if not isinstance(gate, Quantized):
        return {}
    _, d, f = gate.shape
    _, rows, columns = gate.blocks
    fields = {"dtype_rhs": gate.dtype.name, "quantize_lhs": quantize_lhs and row_format_named(quantize_lhs)}
    if rows != d and math.gcd(d, f) % math.lcm(rows, columns) == 0:
        fields |= {"rhs_block": rows, "scale_columns": columns}
    return fields


def _sum_by_all_gather(call: Call, experts: Experts, axis: str, activation: Any, options: dict[str, Any]) -> Array:
    """Return the sum for this device's tokens: every device gets all tokens, and adds up what its experts return.

    A token with many experts is needed on most devices anyway, and a gathered token travels once where an exchange
    sends it once for each expert.
    """
    backend = backend_of(options["implementation"], options["chip"], None)
    kernel = _ring_kernel(backend, call, experts, axis, options)
    # Flat, since a short row travels as 128 numbers; and one array, since a gather of few bytes takes 12 µs too.
    choices = jnp.stack([call.ids.astype(jnp.float32), call.weights])
    with jax.named_scope("all_gather"):
        # Links are idle while experts are chosen. After that choices go first: behind other tokens on the same links
        # they would arrive too late to be sorted meanwhile.
        neighbors = [] if kernel is None else kernel.neighbors(call.x)
        choices, neighbors = lax.optimization_barrier((choices, neighbors))
        gathered = lax.all_gather(choices.reshape(-1), axis)
        x, neighbors, gathered = lax.optimization_barrier((call.x, neighbors, gathered))
        parts = gathered.reshape(-1, *choices.shape)
        ids, weights = jnp.moveaxis(parts, 1, 0).reshape(2, -1, call.ids.shape[1])
    everyone = Call(
        x=x,
        ids=ids.astype(jnp.int32),
        weights=weights,
        experts=call.experts,
        first_expert=call.first_expert,
        capacity=call.capacity,
        repeats=call.repeats,
    )
    if kernel is None:
        return experts_sum(everyone, experts, activation, options, axis)
    return _while_tokens_travel(kernel, neighbors, everyone, experts, activation, options)


def _ring_kernel(
    backend: Backend, call: Call, experts: Experts, axis: str, options: dict[str, Any]
) -> RingHidden | None:
    """Return the kernel whose products begin while tokens travel, or None where it cannot run."""
    if experts.bias_gate is not None or experts.bias_up is not None or options["quantize_lhs"] is not None:
        return None
    return RingHidden.of(backend, axis, call.x, call.ids.size * lax.axis_size(axis), experts)


def _while_tokens_travel(
    kernel: RingHidden, neighbors: Any, call: Call, experts: Experts, activation: Any, options: dict[str, Any]
) -> Array:
    """Return `experts_sum`, whose first products begin while tokens travel."""

    def in_two(operands: Any) -> Array:
        arrays, experts, _ = operands
        return experts_sum(replace(call, **arrays), experts, activation, options, kernel.axis)

    def fused(operands: Any) -> Array:
        arrays, experts, neighbors = operands
        return _on_ring(kernel, neighbors, replace(call, **arrays), experts, activation, options)

    def run(operands: Any) -> Array:
        return one_at_a_time(lambda operands: dispatched(kernel.backend, fused, in_two, operands), operands)

    arrays = {name: getattr(call, name) for name in ("x", "ids", "weights", "first_expert")}
    return fused_after_sum(run, in_two, True, (arrays, experts, neighbors))


def _on_ring(
    kernel: RingHidden, neighbors: Any, call: Call, experts: Experts, activation: Any, options: dict[str, Any]
) -> Array:
    here = kernel.spec.experts
    with jax.named_scope("sort"):
        ids = call.ids - call.first_expert
        choices, (weights,) = sorted_with_values(ids, here, call.capacity, kernel.spec.devices, call.weights)
    with jax.named_scope("experts"):
        first, down = stored(kernel.chip, experts, call.x)
        operands = None if experts.bias_down is not None else kernel.sum_operands(weights, choices)
        hidden, rows, operands = kernel.hidden(call.x, choices, first, activation, neighbors, operands)
        if operands is not None:
            return kernel.sums(hidden, down, operands, repeats=call.repeats)
        options = {**options, "rows_per_group": -(-call.ids.size // call.experts), "leaves_rest": True}
        results = product(hidden, experts.down, rows.sizes, bias=experts.bias_down, **options)
    with jax.named_scope("combine"):
        summing = Summing(backend=kernel.backend, dtype_out=call.x.dtype.name, used_rows=kernel.spec.mean_rows)
        return combined_over_devices(summing, kernel.axis, results, call.weights, rows)
