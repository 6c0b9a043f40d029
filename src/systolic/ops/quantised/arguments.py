"""What `matmul` was given with quantised operands: checked, and brought into the one form that the rest works on."""

from __future__ import annotations

import math
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
from systolic.spec import ROW_FORMATS, QuantizationError, SpecError, format_named

# Rows in a format that no kernel takes are cast to one that holds each of its numbers.
_ROWS_CAST_TO = {"float4_e2m1fn": "float8_e5m2", "float8_e4m3b11fnuz": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in canonical form, and the shape and dtype that its caller expects."""

    product: QuantizedProduct
    operands: Operands  # of a batched weight all have its batch dimension
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """The left-hand side."""

    array: Array  # [..., m, k]
    scales: Array | None  # [..., m, blocks]
    is_vector: bool  # one row, whose dimension the result does not have
    dtype: str  # of the result, where nobody says another


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
    quantize_lhs: Any,
    preferred_element_type: Any,
    backend: Backend,
    refused: dict[str, Any],
) -> Call:
    """Checks everything.

    Args:
      refused: arguments of `matmul` by their names that a quantised product does not take, as they were given.

    Raises:
      SpecError: shapes or dtypes that do not go together, or an argument of `refused` that is given.
      QuantizationError: a QArray that has a zero point, or a format to which rows are not quantised.
    """
    if not is_quantised(rhs):
        its = "lhs is quantised and rhs is not" if is_quantised(lhs) else f"quantize_lhs={quantize_lhs!r}"
        raise SpecError(f"{its}; quantize rhs too, or dequantize lhs, or swap both transposed")
    for name, value in refused.items():
        if value is not None and value is not False and value != ():
            raise SpecError(f"{name} does not go with a quantised rhs; leave it out, or dequantize the weight")
    weight = rhs if isinstance(rhs, Quantized) else from_qwix(rhs)
    if weight.ndim < 2:
        raise SpecError(f"rhs is quantised and of shape {list(weight.shape)}; it has to be a matrix [k, n]")
    rows = _rows_of_floats(lhs) if not is_quantised(lhs) else _quantised_rows(lhs, quantize_lhs)
    left = rows.array
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
    shape = (*batch, *(() if rows.is_vector else (m,)), n)
    name, function = activation_of(activation, in_kernel=backend.implementation != "xla" and bool(backend.chip))
    multiplied = "float32" if rows.dtype == "float16" else rows.dtype
    dtype_out = result_dtype((multiplied, multiplied), (rows.dtype, rows.dtype), preferred_element_type)
    product = QuantizedProduct(
        backend=backend,
        dtype_out="float32" if dtype_out == "float16" else dtype_out,
        activation=name,
        function=function,
        quantize_lhs=None if quantize_lhs is None else _row_format(quantize_lhs),
    )
    scales = weight.scales
    # A scale for all columns, or for some, is one for each of them: a row of them is little beside the weight.
    scales = jnp.repeat(scales, n // scales.shape[-1], axis=-1) if n and scales.shape[-1] != n else scales
    scales, lhs_scales = _in_blocks_of_both(scales, rows.scales, k)
    operands = Operands(
        lhs=left,
        values=weight.values,
        scales=_every_matrix(scales, tuple(batch_rhs)),
        bias=None if bias is None else jnp.broadcast_to(_fused(bias, "bias", (n,)), (n,)),
        residual=None if residual is None else _residual(residual, shape, (*batch, m, n)),
        lhs_scales=lhs_scales,
    )
    return Call(product=product, operands=_flat(operands, batch), shape=shape, dtype=dtype_out)


def _rows_of_floats(lhs: Any) -> _Rows:
    stored, left = given_dtype(lhs, "lhs"), operand(lhs, "lhs")
    if left.dtype.name not in ("float32", "bfloat16"):
        raise SpecError(
            f"lhs is {left.dtype.name}; beside a quantised rhs it has to be bfloat16, float32 or a Quantized"
        )
    is_vector = left.ndim == 1
    return _Rows(array=left[None] if is_vector else left, scales=None, is_vector=is_vector, dtype=stored)


def _quantised_rows(lhs: Any, quantize_lhs: Any) -> _Rows:
    """Values of rows, and a scale for each row, or for each of its blocks."""
    if quantize_lhs is not None:
        raise SpecError(f"quantize_lhs={quantize_lhs!r}, but lhs is quantised; leave one of them out")
    its = lhs if isinstance(lhs, Quantized) else from_qwix(lhs)
    values, scales = its.values, its.scales
    is_vector = its.ndim == 1
    if is_vector:
        values, scales = values[None], scales[None]
    values = values.astype(_ROWS_CAST_TO.get(values.dtype.name, values.dtype))
    if (m := values.shape[-2]) and scales.shape[-2] != m:
        scales = jnp.repeat(scales, m // scales.shape[-2], axis=-2)
    scales = jnp.broadcast_to(scales, (*values.shape[:-1], scales.shape[-1]))
    return _Rows(array=values, scales=scales.astype(jnp.float32), is_vector=is_vector, dtype=its.scales.dtype.name)


def _row_format(name: Any) -> str:
    found = format_named(name)
    if found not in ROW_FORMATS:
        raise QuantizationError(f"quantize_lhs={name!r}; rows are quantised to {', '.join(ROW_FORMATS)}")
    return found


def _in_blocks_of_both(scales: Array, lhs_scales: Array | None, k: int) -> tuple[Array, Array | None]:
    """Scales of the same blocks of k on both sides, but for one scale a row, which stays one."""
    if lhs_scales is None or lhs_scales.shape[-1] <= 1 or scales.shape[-2] == lhs_scales.shape[-1]:
        return scales, lhs_scales
    ours, others = scales.shape[-2], lhs_scales.shape[-1]
    blocks = k // math.gcd(k // max(ours, 1), k // others)
    return jnp.repeat(scales, blocks // ours, axis=-2), jnp.repeat(lhs_scales, blocks // others, axis=-1)


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
        every = [
            None if one is None else one.reshape(-1, one.shape[-1]) for one in (its.lhs, its.residual, its.lhs_scales)
        ]
        return its._replace(lhs=every[0], residual=every[1], lhs_scales=every[2])

    def batched(one: Array | None) -> Array | None:
        return None if one is None else jnp.broadcast_to(one, (*batch, *one.shape[-2:])).reshape(-1, *one.shape[-2:])

    return Operands(
        lhs=batched(its.lhs),
        values=batched(its.values),
        scales=batched(its.scales),
        bias=its.bias,
        residual=batched(its.residual),
        lhs_scales=batched(its.lhs_scales),
    )
