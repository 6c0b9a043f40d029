"""What `matmul` was given with a quantised weight: checked, and brought into the one form that the rest works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from systolic.ops.dtypes import fused_array, given_dtype, operand, result_dtype
from systolic.ops.epilogue import activation_of
from systolic.ops.matmul.product import Backend
from systolic.ops.quantised.array import Quantized, from_qwix, is_qarray
from systolic.ops.quantised.product import Operands, QuantizedProduct
from systolic.ops.shapes import broadcast_shapes
from systolic.spec import SpecError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in canonical form, and the shape and dtype that its caller expects."""

    product: QuantizedProduct
    operands: Operands  # of a batched weight all have its batch dimension
    shape: tuple[int, ...]
    dtype: str


def is_quantised(value: Any) -> bool:
    """Whether an operand is a `Quantized`, or a QArray of qwix."""
    return isinstance(value, Quantized) or is_qarray(value)


def canonical(
    lhs: Any,
    rhs: Any,
    *,
    bias: Any,
    activation: Any,
    residual: Any,
    preferred_element_type: Any,
    backend: Backend,
    refused: dict[str, Any],
) -> Call:
    """Checks everything.

    Args:
      refused: arguments of `matmul` by their names that a quantised product does not take, as they were given.

    Raises:
      SpecError: shapes or dtypes that do not go together, or an argument of `refused` that is given.
      QuantizationError: a QArray that has a zero point.
    """
    if is_quantised(lhs):
        raise SpecError("lhs is quantised; matmul takes a quantised rhs: dequantize lhs, or swap both transposed")
    for name, value in refused.items():
        if value is not None and value is not False and value != ():
            raise SpecError(f"{name} does not go with a quantised rhs; leave it out, or dequantize the weight")
    weight = rhs if isinstance(rhs, Quantized) else from_qwix(rhs)
    if weight.ndim < 2:
        raise SpecError(f"rhs is quantised and of shape {list(weight.shape)}; it has to be a matrix [k, n]")
    stored = given_dtype(lhs, "lhs")
    left = operand(lhs, "lhs")
    if left.dtype.name not in ("float32", "bfloat16"):
        raise SpecError(f"lhs is {left.dtype.name}; beside a quantised rhs it has to be bfloat16 or float32")
    is_vector = left.ndim == 1
    left = left[None] if is_vector else left
    *batch_rhs, k, n = weight.shape
    *batch_lhs, m, inner = left.shape
    if k != inner:
        raise SpecError(f"lhs{list(left.shape)} has k={inner}, rhs{list(weight.shape)} has k={k}: they have to agree")
    try:
        batch = broadcast_shapes(tuple(batch_lhs), tuple(batch_rhs))
    except ValueError as error:
        raise SpecError(
            f"batch dimensions of lhs{list(left.shape)} and rhs{list(weight.shape)} do not broadcast"
        ) from error
    shape = (*batch, *(() if is_vector else (m,)), n)
    name, function = activation_of(activation, in_kernel=backend.implementation != "xla" and bool(backend.chip))
    dtype_out = result_dtype((left.dtype.name, left.dtype.name), (stored, stored), preferred_element_type)
    product = QuantizedProduct(
        backend=backend,
        dtype_out="float32" if dtype_out == "float16" else dtype_out,
        activation=name,
        function=function,
    )
    scales = weight.scales
    # A scale for all columns, or for some, is one for each of them: a row of them is little beside the weight.
    scales = jnp.repeat(scales, n // scales.shape[-1], axis=-1) if n and scales.shape[-1] != n else scales
    operands = Operands(
        lhs=left,
        values=weight.values,
        scales=_every_matrix(scales, tuple(batch_rhs)),
        bias=None if bias is None else jnp.broadcast_to(_fused(bias, "bias", (n,)), (n,)),
        residual=None if residual is None else _residual(residual, shape, (*batch, m, n)),
    )
    return Call(product=product, operands=_flat(operands, batch), shape=shape, dtype=dtype_out)


def _every_matrix(scales: Array, batch: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(scales, (*batch, *scales.shape[-2:])) if scales.shape[:-2] != batch else scales


def _fused(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    array = fused_array(value, name)
    try:
        fits = broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise SpecError(f"{name} of shape {list(array.shape)} does not broadcast to {list(shape)}")
    return array


def _residual(value: Any, shape: tuple[int, ...], full: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(_fused(value, "residual", shape), shape).reshape(full)


def _flat(operands: Operands, batch: tuple[int, ...]) -> Operands:
    """The batch of lhs as rows where there is one weight; else one batch dimension of all."""
    its = operands
    if its.values.ndim == 2:
        rows = [None if one is None else one.reshape(-1, one.shape[-1]) for one in (its.lhs, its.residual)]
        return its._replace(lhs=rows[0], residual=rows[1])

    def every(one: Array | None) -> Array | None:
        return None if one is None else jnp.broadcast_to(one, (*batch, *one.shape[-2:])).reshape(-1, *one.shape[-2:])

    return Operands(
        lhs=every(its.lhs),
        values=every(its.values),
        scales=every(its.scales),
        bias=its.bias,
        residual=every(its.residual),
    )
