"""Recorded gated linear units: XLA's activation(x @ weights[:, 0]) * (x @ weights[:, 1])."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array

from systolic.validation.errors import OpError
from systolic.validation.recorded.arguments import Arguments, DotPrecision
from systolic.validation.recorded.call import Call

_ACTIVATIONS = {"jax._src.nn.functions.silu": "silu", "jax._src.nn.functions.sigmoid": "sigmoid"}


def gated_linear_unit_call(arguments: Arguments) -> Call:
    arguments.only("x", "weights", "activation", "precision")
    x, weights = arguments.array("x"), arguments.array("weights", 3)
    if x.shape[-1:] != weights.shape[:1] or weights.shape[1] != 2:
        raise OpError(f"x {x.shape} and weights {weights.shape} are no [..., k] and [k, 2, n]")
    activation = _ACTIVATIONS[arguments.text("activation", *_ACTIVATIONS)]
    precision = arguments.precision("precision")
    return Call(functools.partial(gated_linear_unit, activation=activation, precision=precision), (x, weights))


def gated_linear_unit(x: Array, weights: Array, *, activation: str, precision: DotPrecision) -> Array:
    """Return the gated linear unit of x[..., k] and weights[k, 2, n] by one product, in the dtype of x."""
    sums = jnp.einsum("...k,kjn->...jn", x, weights, precision=precision)
    gate, projection = jnp.split(jax.lax.collapse(sums, -2).astype(jnp.float32), 2, axis=-1)
    return (getattr(jax.nn, activation)(gate) * projection).astype(x.dtype)
