"""Activations by name, and the cost of functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from systolic.compat.jaxprs import equations, functions_inside
from systolic.ops.functions.elementwise import elementwise
from systolic.spec import SpecError
from systolic.support.choices import unknown_name

Fn = Callable[..., Any]

# Names of activations. GELU is the tanh approximation, as in `jax.nn.gelu`.
ACTIVATIONS: dict[str, Fn] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
}
# Vector operations of each of these primitives, at a guess; any other primitive is one.
_COSTS = {"exp": 8, "exp2": 7, "log": 10, "log1p": 12, "tanh": 12, "logistic": 12, "erf": 20, "div": 6, "rsqrt": 6}
_COSTS |= {"sqrt": 6, "sin": 20, "cos": 20, "pow": 20, "integer_pow": 2}
_FREE = {"broadcast_in_dim", "reshape", "squeeze", "copy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCount:
    """Vector operations and transcendental functions that a function takes for each element."""

    total: int
    transcendentals: int


def activation_of(activation: str | Fn | None, *, in_kernel: bool = True) -> tuple[str, Fn | None]:
    """Return the name and the function of an activation; raise SpecError if it is unknown, or not elementwise."""
    if activation is None:
        return "", None
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise SpecError(f"{unknown_name('activation=', activation, ACTIVATIONS)}, or pass a function")
        return activation, ACTIVATIONS[activation]
    name = getattr(activation, "__name__", type(activation).__name__)
    tile = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return name, elementwise(activation, "activation", [tile], in_kernel=in_kernel)


def op_count_of(fn: Fn, *args: jax.ShapeDtypeStruct) -> OpCount:
    """Count the operations of `fn` on each element of its first argument, from its jaxpr."""
    op_count = transcendentals = 0
    for equation in equations(jax.make_jaxpr(fn)(*args)):
        name = equation.primitive.name
        size = max((math.prod(out.aval.shape) for out in equation.outvars), default=0)
        if not functions_inside(equation) and name not in _FREE and size >= math.prod(args[0].shape):
            op_count += _COSTS.get(name, 1)
            transcendentals += name in _COSTS and name != "integer_pow"
    return OpCount(total=op_count, transcendentals=transcendentals)
