"""The epilogue of a product: everything that is computed from its sum before the result is stored.

    out = ((activation(sum + bias) · up · row_scale) + residual) · scale

Every kernel, and XLA in place of it, calls `apply_epilogue`. `outputs` adds what gradients of dense and gated products
need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.spec import Epilogue, Operands, Pairing

Fn = Callable[..., Any]
FusedArray = Array | Callable[[], Array] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """The functions that a spec names: elementwise functions that broadcast. None if the spec has no such name.

    Attributes:
      lhs, rhs: functions of an operand, followed by the operands of its prologue.
      activation: function of the sum and the bias, in float32.
      primal: function of the operand `primal`, at which its derivative is taken.
    """

    lhs: Fn | None = None
    rhs: Fn | None = None
    activation: Fn | None = None
    primal: Fn | None = None

    def swapped(self) -> Functions:
        """Return the functions of the transposed product: lhs and rhs change places."""
        return Functions(lhs=self.rhs, rhs=self.lhs, activation=self.activation, primal=self.primal)


def outputs(
    totals: tuple[Array, ...],
    operands: Operands,
    epilogue: Epilogue,
    functions: Functions,
    dtype_out: str,
    pairing: Pairing | None,
) -> tuple[Array, ...]:
    """Return all outputs, made of all sums; see `finished` and `spec.GatedSpec`."""
    if pairing == "gated":
        return gated(totals, epilogue, functions, dtype_out)
    return tuple(out for total in totals for out in finished(total, operands, epilogue, functions, dtype_out))


def gated(totals: tuple[Array, ...], epilogue: Epilogue, functions: Functions, dtype_out: str) -> tuple[Array, ...]:
    """Return activation(gate) · up; with `epilogue.kept_sum` also its derivatives with regard to up and to gate."""
    gate, up = (total.astype(jnp.float32) for total in totals)
    activation = functions.activation or (lambda value: value)
    if not epilogue.kept_sum:
        return (as_dtype(activation(gate) * up, dtype_out),)
    value, back = jax.vjp(activation, gate)
    return as_dtype(value * up, dtype_out), value, *back(up)


def finished(
    total: Array, operands: Operands, epilogue: Epilogue, functions: Functions, dtype_out: str
) -> tuple[Array, ...]:
    """Return the sum as it is stored; with `epilogue.kept_sum` also the sum with the bias, which the caller casts.

    Everything but the sum of integers alone is computed in float32. An integer result is rounded to the nearest, ties
    to even, and saturates.

    Args:
      operands: the operands of the output; they broadcast to the sum.
    """
    if functions.primal is not None:
        value, back = jax.vjp(functions.primal, operands.primal)
        return (back(total.astype(value.dtype))[0].astype(dtype_out),)
    value = total if epilogue.is_identity else total.astype(jnp.float32)
    if operands.bias is not None:
        value = value + operands.bias.astype(jnp.float32)
    stored = apply_epilogue(
        value, dtype_out, activation=functions.activation, residual=operands.residual, scale=operands.scale
    )
    return (stored, value) if epilogue.kept_sum else (stored,)


def apply_epilogue(
    total: Array,
    dtype_out: str,
    *,
    bias: FusedArray = None,
    activation: Fn | None = None,
    up: FusedArray = None,
    row_scale: FusedArray = None,
    residual: FusedArray = None,
    scale: FusedArray = None,
) -> Array:
    """Return `((activation(total + bias) · up · row_scale) + residual) · scale`, computed in float32, in `dtype_out`.

    Args:
      total: the sum of products; only cast if nothing is applied to it.
      bias, up, row_scale, residual, scale: arrays that broadcast to the sum; None where there is none. A kernel passes
        functions that load an array where it is used: loaded sooner, it takes registers (7,925 cycles in place of 7,918
        for int8 weights on v5e).
    """
    if any(operand is not None for operand in (bias, activation, up, row_scale, residual, scale)):
        total = total.astype(jnp.float32)
    if bias is not None:
        total = total + _loaded(bias)
    if activation is not None:
        total = activation(total)
    for factor in (up, row_scale):
        if factor is not None:
            total = total * _loaded(factor)
    if residual is not None:
        total = total + _loaded(residual)
    if scale is not None:
        total = total * _loaded(scale)
    return as_dtype(total, dtype_out)


def _loaded(operand: Array | Callable[[], Array]) -> Array:
    return (operand() if callable(operand) else operand).astype(jnp.float32)


def as_dtype(value: Array, dtype: str) -> Array:
    """Cast. A cast to integers saturates; a float is rounded to the nearest, ties to even, and NaN is 0."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return value.astype(dtype)
    limits = jnp.iinfo(dtype)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.clip(value, limits.min, limits.max).astype(dtype)
    # Chips may cast a float out of the integers' range differently: none reaches that cast. The largest int32
    # is not a float32, so the largest float32 below 2^31 replaces it.
    largest = np.nextafter(np.float32(limits.max + 1), np.float32(0)) if limits.bits > 24 else limits.max
    number = jnp.where(value == value, jnp.round(value), 0.0)
    integer = jnp.clip(number, limits.min, largest).astype(jnp.int32)
    return jnp.where(number > largest, limits.max, integer).astype(dtype)
