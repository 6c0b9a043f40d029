"""What `gated_matmul` was given: checked, and brought into the form of a product with a second right-hand side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import given_dtype, operand
from systolic.ops.matmul.arguments import Call, Given
from systolic.ops.matmul.arguments import canonical as canonical_matmul
from systolic.spec import SpecError

# Columns of which each weight of one array has to have a multiple, so that blocks do not reach into the other one.
_WHOLE_BLOCKS = 256


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
    side_by_side = False
    said = _said("w_gate", w_gate)
    if w_gate.ndim < 2:
        raise SpecError(f"{said}: a weight needs rows and columns")
    if w_up is None:
        n, rest = divmod(w_gate.shape[-1], 2)
        if rest:
            raise SpecError(f"{said} and no w_up: an array of both weights needs an even number of columns")
        side_by_side = n % _WHOLE_BLOCKS == 0
        if not side_by_side:
            w_gate, w_up = w_gate[..., :n], w_gate[..., n:]
    elif said.removeprefix("w_gate") != (said_up := _said("w_up", w_up)).removeprefix("w_up"):
        raise SpecError(f"{said}, {said_up}: both weights need the same shape and dtype")

    def call(weight: Any) -> Call:
        return canonical_matmul(
            Given(name="lhs", value=x, transposed=False, fn=None, args=()),
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
            found.product,
            dtype_out="float32" if dtype == "float16" else dtype,
            pairing="gated",
            side_by_side=side_by_side,
        ),
        operands=found.operands if side_by_side else found.operands._replace(up=call(w_up).operands.rhs),
        shape=(*found.shape[:-1], found.shape[-1] // 2) if side_by_side else found.shape,
        dtype=dtype,
    )


def _said(name: str, value: Any) -> str:
    return f"{name} of shape {list(operand(value, name).shape)} and {given_dtype(value, name)}"
