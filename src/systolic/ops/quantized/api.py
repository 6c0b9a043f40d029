"""`systolic.matmul` and `gated_matmul` for quantized operands."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array

from systolic.compat import varying_alike
from systolic.ops.quantized.arguments import canonical
from systolic.ops.quantized.derivative import multiply
from systolic.ops.quantized.product import Operands


def quantized_matmul(lhs: Any, rhs: Any, **arguments: Any) -> Array:
    """Return `(activation(lhs @ rhs.dequantize() + bias) + residual) · out_scale`, or the gated product.

    Args and errors: see `arguments.canonical`.
    """
    call = canonical(lhs, rhs, **arguments)
    # Under `shard_map` a derivative is summed over the devices whose rows or columns meet a common operand.
    leaves, structure = jax.tree.flatten(call.operands)
    operands: Operands = jax.tree.unflatten(structure, varying_alike(leaves))
    fn = functools.partial(multiply, call.product)
    if operands.values.ndim > 2:
        fn = jax.vmap(fn, (jax.tree.map(lambda _: 0, operands)._replace(bias=None, out_scale=None),))
    with jax.named_scope("systolic"):
        return fn(operands).reshape(call.shape).astype(call.dtype)
