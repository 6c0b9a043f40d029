"""The programs of MLPs: `systolic.gated_matmul` and `systolic.matmul` with x as its residual, against plain JAX.

For experts `systolic.grouped_matmul`, gated and with x as its residual, against `jax.lax.ragged_dot`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.bench.layers import LayersSpec
from systolic.chips import Chip
from systolic.ops.gated import gated_matmul
from systolic.ops.grouped import grouped_matmul
from systolic.ops.matmul import matmul
from systolic.ops.op_programs import RacedPrograms


def raced(spec: LayersSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Return both programs. Arguments are x, all weights, and in the backward pass the cotangent of the result.

    After these come the experts' numbers of rows, whose values a simulation has to know.
    """
    shapes = (spec.m, spec.k), *spec.weights, *([spec.result] if spec.backward else [])
    arguments: tuple[Any, ...] = tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype)) for shape in shapes)
    ours, xla, network = functools.partial(_ours, implementation, chip), plain, in_a_row
    if spec.experts:
        arguments += (np.array(spec.sizes, np.int32),)
        ours, xla, network = functools.partial(_our_experts, implementation, chip), _plain_experts, _experts_in_a_row
    return RacedPrograms(
        spec=spec,
        arguments=arguments,
        ours=functools.partial(network, spec, ours),
        xla=functools.partial(network, spec, xla),
    )


def in_a_row(spec: LayersSpec, mlp: Callable[..., Array], x: Array, *operands: Array) -> Any:
    """Run the MLPs; if the spec asks for gradients, return x's and all weights' gradients too."""
    weights_per_layer = len(spec.weights) // spec.layers

    def network(x: Array, *weights: Array) -> Array:
        for first in range(0, len(weights), weights_per_layer):
            x = mlp(x, *weights[first : first + weights_per_layer])
        return x

    if not spec.backward:
        return network(x, *operands)
    *weights, cotangent = operands
    out, back = jax.vjp(network, x, *weights)
    return out, back(cotangent)


def _experts_in_a_row(spec: LayersSpec, block: Callable[..., Array], *operands: Array) -> Any:
    *arrays, sizes = operands
    return in_a_row(spec, functools.partial(block, sizes), *arrays)


def _ours(implementation: Any, chip: Chip, x: Array, w_gate: Array, w_up: Array, *w_down: Array) -> Array:
    h = gated_matmul(x, w_gate, w_up, implementation=implementation, chip=chip)
    return matmul(h, *w_down, residual=x, implementation=implementation, chip=chip) if w_down else h


def plain(x: Array, w_gate: Array, w_up: Array, *w_down: Array) -> Array:
    h = jax.nn.silu(x @ w_gate) * (x @ w_up)
    return x + h @ w_down[0] if w_down else h


def _our_experts(
    implementation: Any, chip: Chip, sizes: Array, x: Array, gate: Array, up: Array, *down: Array
) -> Array:
    on = {"implementation": implementation, "chip": chip}
    h = grouped_matmul(x, gate, sizes, up=up, activation="silu", **on)
    return grouped_matmul(h, down[0], sizes, residual=x, **on) if down else h


def _plain_experts(sizes: Array, x: Array, gate: Array, up: Array, *down: Array) -> Array:
    product = functools.partial(lax.ragged_dot, preferred_element_type=x.dtype)
    h = jax.nn.silu(product(x, gate, sizes)) * product(x, up, sizes)
    return x + product(h, down[0], sizes) if down else h
