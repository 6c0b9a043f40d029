"""`systolic.matmul` with quantised operands, which it calls."""

from __future__ import annotations

import functools

import jax
from jax import Array

from systolic.ops.quantised.arguments import Call
from systolic.ops.quantised.compute import multiply
from systolic.ops.quantised.product import Operands


def quantised_matmul(call: Call) -> Array:
    """`activation(lhs @ rhs.dequantize() + bias) + residual`, in one kernel on a TPU."""
    operands = call.operands
    fn = functools.partial(multiply, call.product)
    if operands.values.ndim > 2:
        fn = jax.vmap(fn, (Operands(0, 0, 0, None, None if operands.residual is None else 0),))
    with jax.named_scope("systolic"):
        return fn(operands).reshape(call.shape).astype(call.dtype)
