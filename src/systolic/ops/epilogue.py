"""What happens to the sum before it is stored, bias, activation, residual, scale, cast; and what functions cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.ops.functions.elementwise import elementwise
from systolic.spec import OperandFn, SpecError

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
# What one of these costs in vector operations, at a guess; anything else is one.
_DEAR = {"exp": 8, "exp2": 7, "log": 10, "log1p": 12, "tanh": 12, "logistic": 12, "erf": 20, "div": 6, "rsqrt": 6}
_DEAR |= {"sqrt": 6, "sin": 20, "cos": 20, "pow": 20, "integer_pow": 2}
_FREE = {"broadcast_in_dim", "reshape", "squeeze", "pjit", "jit", "custom_jvp_call", "copy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Vector operations and transcendental functions that a function takes an element."""

    ops: int
    transcendentals: int


def activation_of(activation: str | Fn | None, *, in_kernel: bool = True) -> tuple[str, Fn | None]:
    """Name and function.

    Raises:
      SpecError: no activation of that name; a function that fails on float32, or is not elementwise.
    """
    if activation is None:
        return "", None
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SpecError(f"activation={activation!r} is not known; use a function, or one of {known}")
        return activation, ACTIVATIONS[activation]
    name = getattr(activation, "__name__", type(activation).__name__)
    tile = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return name, elementwise(activation, "activation", [tile], in_kernel=in_kernel)


def work_of(fn: Fn, *args: jax.ShapeDtypeStruct) -> Work:
    """What `fn` does to each element of its first argument, read off its jaxpr."""
    ops = transcendentals = 0

    def visit(jaxpr: Any) -> None:
        nonlocal ops, transcendentals
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            inner = [value for value in equation.params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr")]
            for value in inner:
                visit(getattr(value, "jaxpr", value))
            if inner or name in _FREE:
                continue
            size = max((math.prod(out.aval.shape) for out in equation.outvars), default=0)
            if size >= math.prod(args[0].shape):
                ops += _DEAR.get(name, 1)
                transcendentals += name in _DEAR and name != "integer_pow"

    visit(jax.make_jaxpr(fn)(*args).jaxpr)
    return Work(ops=ops, transcendentals=transcendentals)


def operand_fn(fn: Fn | None, operand: Any, beside: Sequence[Any]) -> OperandFn | None:
    """What a function makes of an operand, and what it costs; all of them arrays, or what has a shape and a dtype."""
    if fn is None:
        return None
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (operand, *beside)]
    return OperandFn(dtype=jax.eval_shape(fn, *shapes).dtype.name, ops=work_of(fn, *shapes).ops)


def epilogue_of(
    *, bias: bool, activation: Fn | None, residual: bool, scale: bool, dtype_out: str, keep_sum: bool
) -> Fn:
    """`(activation(sum + bias) + residual) · scale`, cast; and with `keep_sum` also `sum + bias`.

    Everything but the sum of integers alone is computed in float32. A result that is an integer is rounded to the
    nearest, ties to even, and saturates, whatever it is made of.
    """

    def epilogue(total: Array, *extras: Array) -> tuple[Array, ...]:
        read = iter(extras)
        fused = bias or residual or scale or activation is not None
        value = total.astype(jnp.float32) if fused else total
        if bias:
            value = value + next(read).astype(jnp.float32)
        before = value
        if activation is not None:
            value = activation(value)
        if residual:
            value = value + next(read).astype(jnp.float32)
        if scale:
            value = value * next(read).astype(jnp.float32)
        out = as_dtype(value, dtype_out)
        return (out, before) if keep_sum else (out,)

    return epilogue


def as_dtype(value: Array, dtype: str) -> Array:
    """A cast. To integers it saturates; a float is rounded to the nearest, ties to even, and NaN is 0."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return value.astype(dtype)
    limits = jnp.iinfo(dtype)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.clip(value, limits.min, limits.max).astype(dtype)
    # Chips need not agree on what a float out of the integers' range becomes: none reaches that cast. The largest int32
    # is no float32, so the largest float32 below 2^31 stands for it.
    largest = np.nextafter(np.float32(limits.max + 1), np.float32(0)) if limits.bits > 24 else limits.max
    number = jnp.where(value == value, jnp.round(value), 0.0)
    whole = jnp.clip(number, limits.min, largest).astype(jnp.int32)
    return jnp.where(number > largest, limits.max, whole).astype(dtype)
