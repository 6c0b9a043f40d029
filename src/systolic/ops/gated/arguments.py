"""What `gated_matmul` was given: checked, and brought into the form of a product with a second right-hand side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from systolic.ops.dtypes import given_dtype, operand
from systolic.ops.matmul.arguments import Call, Given
from systolic.ops.matmul.arguments import canonical as canonical_matmul
from systolic.ops.matmul.product import Backend
from systolic.spec import SpecError


def canonical(
    x: Any,
    w_gate: Any,
    w_up: Any,
    *,
    activation: str | Callable[..., Any] | None,
    precision: Any,
    preferred_element_type: Any,
    backend: Backend,
) -> Call:
    """As `ops.matmul.arguments.canonical`.

    Raises:
      SpecError: shapes or dtypes that do not go together, an activation that is not elementwise.
    """
    gate, up = (
        (f"{name} of shape {list(operand(value, name).shape)} and {given_dtype(value, name)}", value)
        for name, value in (("w_gate", w_gate), ("w_up", w_up))
    )
    if w_gate.shape != w_up.shape or given_dtype(w_gate, "w_gate") != given_dtype(w_up, "w_up"):
        raise SpecError(f"{gate[0]}, {up[0]}: both weights need the same shape and dtype")
    left = Given(name="lhs", value=x, transposed=False, fn=None, args=())

    def call(weight: Any) -> Call:
        return canonical_matmul(
            left,
            Given(name="rhs", value=weight, transposed=False, fn=None, args=()),
            bias=None,
            residual=None,
            out_scale=None,
            activation=activation,
            precision=precision,
            preferred_element_type=preferred_element_type,
            backend=backend,
        )

    found = call(w_gate)
    dtype = "float32" if preferred_element_type is None and found.dtype == "int32" else found.dtype
    return replace(
        found,
        product=replace(
            found.product, dtype_out="float32" if dtype == "float16" else dtype, pairing="gated", activation=found.product.activation
        ),
        operands=found.operands._replace(up=call(w_up).operands.rhs),
        dtype=dtype,
    )
