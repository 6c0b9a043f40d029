"""Check the arguments of `gated_matmul`, and turn them into a product with a second right-hand side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import given_dtype, operand, stored_dtype
from systolic.ops.engine.shapes import WHOLE_BLOCK_COLUMNS
from systolic.ops.matmul.arguments import Call, Given
from systolic.ops.matmul.arguments import canonical as canonical_matmul
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
    """Check the arguments, and return them as `ops.matmul.arguments` does; raise SpecError if they do not match."""
    side_by_side = False
    gate_words = _words("w_gate", w_gate)
    if w_gate.ndim < 2:
        raise SpecError(f"{gate_words}: a weight needs rows and columns")
    if w_up is None:
        n, rest = divmod(w_gate.shape[-1], 2)
        if rest:
            raise SpecError(f"{gate_words} and no w_up: an array of both weights needs an even number of columns")
        side_by_side = n % WHOLE_BLOCK_COLUMNS == 0
        if not side_by_side:
            w_gate, w_up = w_gate[..., :n], w_gate[..., n:]
    elif gate_words.removeprefix("w_gate") != (up_words := _words("w_up", w_up)).removeprefix("w_up"):
        raise SpecError(f"{gate_words}, {up_words}: both weights need the same shape and dtype")

    def call(weight: Any) -> Call:
        return canonical_matmul(
            Given(name="lhs", value=x),
            Given(name="rhs", value=weight),
            activation=activation,
            precision=precision,
            preferred_element_type=preferred_element_type,
            backend=backend,
        )

    first = call(w_gate)
    dtype = "float32" if preferred_element_type is None and first.dtype == "int32" else first.dtype
    return replace(
        first,
        product=replace(
            first.product,
            dtype_out=stored_dtype(dtype),
            pairing="gated",
            side_by_side=side_by_side,
        ),
        operands=first.operands if side_by_side else first.operands._replace(up=call(w_up).operands.rhs),
        shape=(*first.shape[:-1], first.shape[-1] // 2) if side_by_side else first.shape,
        dtype=dtype,
    )


def _words(name: str, value: Any) -> str:
    return f"{name} of shape {list(operand(value, name).shape)} and {given_dtype(value, name)}"
