"""`systolic.matmul` with quantised operands, which it calls."""

from __future__ import annotations

import functools

import jax
from jax import Array

from systolic.ops.quantised.arguments import Call
from systolic.ops.quantised.compute import multiply


def quantised_matmul(call: Call) -> Array:
    """`activation(lhs @ rhs.dequantize() + bias) + residual`, in one kernel on a TPU."""
    operands = call.operands
    fn = functools.partial(multiply, call.product)
    if operands.values.ndim > 2:
        fn = jax.vmap(fn, (jax.tree.map(lambda _: 0, operands)._replace(bias=None),))
    with jax.named_scope("systolic"):
        return fn(operands).reshape(call.shape).astype(call.dtype)
