"""`systolic.matmul` with a quantised right-hand side, which it calls."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array

from systolic.ops.matmul.product import Backend
from systolic.ops.quantised.arguments import canonical
from systolic.ops.quantised.compute import multiply
from systolic.ops.quantised.product import Operands


def quantised_matmul(
    lhs: Any,
    rhs: Any,
    *,
    bias: Any,
    activation: Any,
    residual: Any,
    preferred_element_type: Any,
    backend: Backend,
    refused: dict[str, Any],
) -> Array:
    """`activation(lhs @ rhs.dequantize() + bias) + residual`, in one kernel on a TPU.

    Raises:
      SpecError: as `canonical`.
    """
    call = canonical(
        lhs,
        rhs,
        bias=bias,
        activation=activation,
        residual=residual,
        preferred_element_type=preferred_element_type,
        backend=backend,
        refused=refused,
    )
    operands = call.operands
    fn = functools.partial(multiply, call.product)
    if operands.values.ndim > 2:
        fn = jax.vmap(fn, (Operands(0, 0, 0, None, None if operands.residual is None else 0),))
    with jax.named_scope("systolic"):
        return fn(operands).reshape(call.shape).astype(call.dtype)
