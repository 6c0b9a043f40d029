"""What `matmul` computes, as a record, the arrays that it takes, and the product of both.

sum = lhs_fn(lhs) @ rhs_fn(rhs)          z = sum + bias          out = (activation(z) + residual) · scale
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import Array

from systolic.ops.epilogue import epilogue_of
from systolic.ops.matmul.compute import compute
from systolic.ops.matmul.product import Product, Where
from systolic.ops.shapes import broadcast_shapes
from systolic.spec import PrecisionName, Side

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """What `matmul` was asked for, but for the arrays."""

    where: Where
    precision: PrecisionName
    dtype_out: str
    transpose_lhs: bool
    transpose_rhs: bool
    lhs_fn: Fn | None
    rhs_fn: Fn | None
    activation: Fn | None
    activation_name: str


class Operands(NamedTuple):
    """The arrays, all with the same number of dimensions; see `product.py`."""

    lhs: Array
    rhs: Array
    bias: Array | None
    residual: Array | None
    scale: Array | None
    lhs_args: tuple[Array, ...]
    rhs_args: tuple[Array, ...]


def evaluated(formula: Formula, operands: Operands, *, keep_sum: bool) -> tuple[Array, ...]:
    """The result, [*batch, m, n], and with `keep_sum` also z, as it is kept for the derivative."""
    around = {"bias": operands.bias, "residual": operands.residual, "scale": operands.scale}
    given = {name: array for name, array in around.items() if array is not None}
    names = ["bias"] if "bias" in given else []
    names += [formula.activation_name] if formula.activation is not None else []
    names += [name for name in ("residual", "scale") if name in given]
    beside: tuple[Side, ...] = (
        *("lhs" for _ in operands.lhs_args),
        *("rhs" for _ in operands.rhs_args),
        *("out" for _ in given),
    )
    product = Product(
        where=formula.where,
        precision=formula.precision,
        dtypes_out=(formula.dtype_out, *([kept_dtype(operands)] if keep_sum else [])),
        epilogue=_epilogue(
            bias="bias" in given,
            activation=formula.activation,
            residual="residual" in given,
            scale="scale" in given,
            dtype_out=formula.dtype_out,
            keep_sum=keep_sum,
        ),
        epilogue_name=", ".join(names),
        transpose_lhs=formula.transpose_lhs,
        transpose_rhs=formula.transpose_rhs,
        lhs_fn=formula.lhs_fn,
        rhs_fn=formula.rhs_fn,
        beside=beside,
    )
    return compute(product, operands.lhs, operands.rhs, *operands.lhs_args, *operands.rhs_args, *given.values())


@functools.lru_cache(maxsize=256)
def _epilogue(*, bias: bool, activation: Fn | None, residual: bool, scale: bool, dtype_out: str, keep_sum: bool) -> Fn:
    # The same function for the same formula, so that records of products compare equal.
    return epilogue_of(
        bias=bias, activation=activation, residual=residual, scale=scale, dtype_out=dtype_out, keep_sum=keep_sum
    )


def kept_dtype(operands: Operands) -> str:
    """The dtype in which the sum is kept for the backward pass: the operands', as a network keeps its activations."""
    return "float32" if "float32" in (operands.lhs.dtype.name, operands.rhs.dtype.name) else "bfloat16"


def output_shape(formula: Formula, operands: Operands) -> tuple[int, ...]:
    """[*batch, m, n]."""
    lhs, rhs = operands.lhs.shape, operands.rhs.shape
    batch = broadcast_shapes(*(array.shape[:-2] for array in jax.tree.leaves(operands)))
    return *batch, lhs[-1 if formula.transpose_lhs else -2], rhs[-2 if formula.transpose_rhs else -1]
