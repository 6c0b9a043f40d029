"""The programs of MLPs: `systolic.gated_matmul` and `systolic.matmul` with x as its residual, beside plain JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.bench.layers import LayersSpec
from systolic.chips import Chip
from systolic.op import RacedPrograms
from systolic.ops.gated import gated_matmul
from systolic.ops.matmul import matmul


def raced(spec: LayersSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Both programs. Arguments are x, all weights, and in the backward pass the cotangent of the result."""
    shapes = (spec.m, spec.k), *spec.weights, *([spec.result] if spec.backward else [])
    ours = functools.partial(_ours, implementation, chip)
    return RacedPrograms(
        spec=spec,
        arguments=tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype)) for shape in shapes),
        ours=functools.partial(in_a_row, spec, ours),
        xla=functools.partial(in_a_row, spec, plain),
    )


def in_a_row(spec: LayersSpec, mlp: Callable[..., Array], x: Array, *given: Array) -> Any:
    """So many MLPs, and where the spec asks for gradients, those of x and of all weights too."""
    each = len(spec.weights) // spec.layers

    def network(x: Array, *weights: Array) -> Array:
        for first in range(0, len(weights), each):
            x = mlp(x, *weights[first : first + each])
        return x

    if not spec.backward:
        return network(x, *given)
    *weights, cotangent = given
    out, back = jax.vjp(network, x, *weights)
    return out, back(cotangent)


def _ours(implementation: Any, chip: Chip, x: Array, w_gate: Array, w_up: Array, *w_down: Array) -> Array:
    h = gated_matmul(x, w_gate, w_up, implementation=implementation, chip=chip)
    return matmul(h, *w_down, residual=x, implementation=implementation, chip=chip) if w_down else h


def plain(x: Array, w_gate: Array, w_up: Array, *w_down: Array) -> Array:
    """An MLP in plain JAX; without `w_down`, its first half."""
    h = jax.nn.silu(x @ w_gate) * (x @ w_up)
    return x + h @ w_down[0] if w_down else h
