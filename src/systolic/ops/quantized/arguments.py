"""Check the arguments of a product with quantized operands, and bring them into canonical form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import fused_array, given_dtype, operand, result_dtype, stored_dtype
from systolic.ops.engine.shapes import broadcast_shapes, broadcasts_to
from systolic.ops.quantized.array import Quantized, from_qwix, is_qarray, require_quantized
from systolic.ops.quantized.product import Operands, QuantizedProduct
from systolic.ops.quantized.spec import ROW_FORMATS
from systolic.spec import LARGEST, QuantizationError, SpecError, format_named

# Rows in a format that no kernel takes are cast to one that holds each of its numbers.
_ROWS_CAST_TO = {"float4_e2m1fn": "float8_e5m2", "float8_e4m3b11fnuz": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in canonical form, and the shape and dtype that its caller expects."""

    product: QuantizedProduct
    operands: Operands  # with a batched weight all have its batch dimension
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    array: Array  # [..., m, k]
    scales: Array | None  # [..., m, blocks]
    is_vector: bool  # one row, whose dimension the result does not have
    dtype: str  # of the result, unless the caller names another


def is_quantized(value: Any) -> bool:
    return isinstance(value, Quantized) or is_qarray(value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weight:
    """A right-hand side; one that is not quantized has scales of one."""

    values: Array  # [..., k, n]
    scales: Array  # [..., blocks, n]


def canonical(
    lhs: Any,
    rhs: Any,
    *,
    activation: Any,
    quantize_lhs: Any,
    preferred_element_type: Any,
    backend: Backend,
    refused: dict[str, Any],
    bias: Any = None,
    residual: Any = None,
    out_scale: Any = None,
    up: Any = None,
    gated: bool = False,
) -> Call:
    """Check the arguments.

    Args:
      refused: arguments that a quantized product does not take, by name, as the caller gave them.
      up: the second weight of a gated product; None: its columns follow the columns of rhs.

    Raises:
      SpecError: shapes or dtypes that do not match, or an argument of `refused` that is not None.
      QuantizationError: a QArray with a zero point, or a format to which rows are not quantized.
    """
    for name, value in refused.items():
        if value is not None and value is not False and value != ():
            raise SpecError(f"{name} does not go with a quantized operand; leave it out, or dequantize the operand")
    weight = _weight(rhs, "w_gate" if gated else "rhs")
    second = None if up is None else _second(up, weight)
    rows = _rows_of_floats(lhs) if not is_quantized(lhs) else _quantized_rows(lhs, quantize_lhs)
    left = rows.array
    *batch_rhs, k, columns = weight.values.shape
    n, rest = divmod(columns, 2) if gated and up is None else (columns, 0)
    if rest:
        raise SpecError(f"w_gate has {columns} columns and there is no w_up: an array of both needs an even number")
    *batch_lhs, m, inner = left.shape
    shapes = f"lhs{list(left.shape)} and rhs{list(weight.values.shape)}"
    if k != inner:
        raise SpecError(f"{shapes} have k={inner} and k={k}: they have to agree")
    try:
        batch = broadcast_shapes(tuple(batch_lhs), tuple(batch_rhs))
    except ValueError as error:
        raise SpecError(f"batch dimensions of {shapes} do not broadcast") from error
    shape = (*batch, *(() if rows.is_vector else (m,)), n)
    name, function = activation_of(activation, in_kernel=backend.in_kernel)
    multiplied = stored_dtype(rows.dtype)
    dtype_out = result_dtype((multiplied, multiplied), (rows.dtype, rows.dtype), preferred_element_type)
    product = QuantizedProduct(
        backend=backend,
        dtype_out=stored_dtype(dtype_out),
        activation=name,
        function=function,
        quantize_lhs=None if quantize_lhs is None else row_format_named(quantize_lhs),
        gated=gated,
    )

    def scales_of(weight: _Weight) -> tuple[Array, Array | None]:
        return _in_blocks_of_both(_every_scale(weight, tuple(batch_rhs)), rows.scales, k)

    scales, lhs_scales = scales_of(weight)
    operands = Operands(
        lhs=left,
        values=weight.values,
        scales=scales,
        bias=None if bias is None else _row(bias, "bias", n),
        residual=None if residual is None else _residual(residual, shape, (*batch, m, n)),
        lhs_scales=lhs_scales,
        out_scale=None if out_scale is None else _row(out_scale, "out_scale", n),
        up_values=None if second is None else second.values,
        up_scales=None if second is None else scales_of(second)[0],
    )
    return Call(product=product, operands=_flat(operands, batch), shape=shape, dtype=dtype_out)


def _weight(rhs: Any, name: str) -> _Weight:
    if is_quantized(rhs):
        values, scales = _codes_and_scales(rhs, name)
        weight = _Weight(values=values, scales=scales)
    else:
        values = operand(rhs, name)
        if values.dtype.name not in (*LARGEST, "float32", "bfloat16"):
            raise SpecError(f"{name} is {values.dtype.name}; beside a quantized lhs use floats or a Quantized")
        weight = _Weight(values=values, scales=jnp.ones((1,) * values.ndim, jnp.float32))
    if weight.values.ndim < 2:
        raise SpecError(f"{name} is of shape {list(weight.values.shape)}; it has to be a matrix [k, n]")
    return weight


def _codes_and_scales(value: Any, name: str) -> tuple[Array, Array]:
    """Return the arrays of a `Quantized` or a QArray, which may have been cast or cut since its construction."""
    array = value if isinstance(value, Quantized) else from_qwix(value)
    require_quantized(array)
    for part in ("values", "scales"):
        given_dtype(getattr(array, part), f"{name}.{part}")
    return jnp.asarray(array.values), jnp.asarray(array.scales)


def _second(up: Any, gate: _Weight) -> _Weight:
    up_weight = _weight(up, "w_up")
    forms = [
        tuple((list(array.shape), array.dtype.name) for array in (weight.values, weight.scales))
        for weight in (gate, up_weight)
    ]
    if forms[0] != forms[1]:
        described = " and ".join(f"values {values} with scales {scales}" for values, scales in forms)
        raise SpecError(f"w_gate and w_up are {described}; both weights need the same shapes and dtypes")
    return up_weight


def _rows_of_floats(lhs: Any) -> _Rows:
    stored, left = given_dtype(lhs, "lhs"), operand(lhs, "lhs")
    if left.dtype.name not in ("float32", "bfloat16"):
        raise SpecError(
            f"lhs is {left.dtype.name}; beside a quantized rhs it has to be bfloat16, float32 or a Quantized"
        )
    is_vector = left.ndim == 1
    return _Rows(array=left[None] if is_vector else left, scales=None, is_vector=is_vector, dtype=stored)


def _quantized_rows(lhs: Any, quantize_lhs: Any) -> _Rows:
    """Return the values of rows, and a scale for each row or for each of its blocks."""
    if quantize_lhs is not None:
        raise SpecError(f"quantize_lhs={quantize_lhs!r}, but lhs is quantized; leave one of them out")
    values, scales = _codes_and_scales(lhs, "lhs")
    if values.ndim == 0:
        raise SpecError("lhs is a scalar; matmul takes vectors and matrices. Use * for scalars")
    dtype, is_vector = scales.dtype.name, values.ndim == 1
    if is_vector:
        values, scales = values[None], scales[None]
    values = values.astype(_ROWS_CAST_TO.get(values.dtype.name, values.dtype))
    if (m := values.shape[-2]) and scales.shape[-2] != m:
        scales = jnp.repeat(scales, m // scales.shape[-2], axis=-2)
    scales = jnp.broadcast_to(scales, (*values.shape[:-1], scales.shape[-1]))
    return _Rows(array=values, scales=scales.astype(jnp.float32), is_vector=is_vector, dtype=dtype)


def row_format_named(name: Any) -> str:
    format_name = format_named(name)
    if format_name not in ROW_FORMATS:
        raise QuantizationError(f"quantize_lhs={name!r}; rows are quantized to {', '.join(ROW_FORMATS)}")
    return format_name


def _in_blocks_of_both(scales: Array, lhs_scales: Array | None, k: int) -> tuple[Array, Array | None]:
    """Return scales of the same blocks of k on both sides; one scale a row stays one. With k = 0 all are ones."""
    if not k:
        rows = None if lhs_scales is None else jnp.ones((*lhs_scales.shape[:-1], 1), jnp.float32)
        return jnp.ones((*scales.shape[:-2], 1, scales.shape[-1]), scales.dtype), rows
    if lhs_scales is None or lhs_scales.shape[-1] <= 1 or scales.shape[-2] == lhs_scales.shape[-1]:
        return scales, lhs_scales
    ours, others = scales.shape[-2], lhs_scales.shape[-1]
    blocks = k // math.gcd(k // max(ours, 1), k // others)
    return jnp.repeat(scales, blocks // ours, axis=-2), jnp.repeat(lhs_scales, blocks // others, axis=-1)


def _every_scale(weight: _Weight, batch: tuple[int, ...]) -> Array:
    """Return a scale for each column, which takes little memory next to the weight."""
    scales, n = weight.scales, weight.values.shape[-1]
    if scales.shape[-1] != n:
        scales = jnp.repeat(scales, n // scales.shape[-1], axis=-1) if n else scales[..., :0]
    return jnp.broadcast_to(scales, (*batch, *scales.shape[-2:])) if scales.shape[:-2] != batch else scales


def _row(value: Any, name: str, n: int) -> Array:
    return jnp.broadcast_to(_fused(value, name, (n,)), (n,))


def _fused(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    array = fused_array(value, name)
    if not broadcasts_to(array.shape, shape):
        raise SpecError(f"{name} of shape {list(array.shape)} does not broadcast to {list(shape)}")
    return array


def _residual(value: Any, shape: tuple[int, ...], full: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(_fused(value, "residual", shape), shape).reshape(full)


def _flat(operands: Operands, batch: tuple[int, ...]) -> Operands:
    """Return the batch of lhs as rows if there is one weight; else one batch dimension for all."""
    arrays = operands
    if arrays.values.ndim == 2:

        def as_rows(array: Array | None) -> Array | None:
            return None if array is None else array.reshape(math.prod(array.shape[:-1]), array.shape[-1])

        return arrays._replace(
            lhs=as_rows(arrays.lhs), residual=as_rows(arrays.residual), lhs_scales=as_rows(arrays.lhs_scales)
        )

    def batched(array: Array | None) -> Array | None:
        if array is None:
            return None
        return jnp.broadcast_to(array, (*batch, *array.shape[-2:])).reshape(math.prod(batch), *array.shape[-2:])

    return Operands(
        lhs=batched(arrays.lhs),
        values=batched(arrays.values),
        scales=batched(arrays.scales),
        bias=arrays.bias,
        residual=batched(arrays.residual),
        lhs_scales=batched(arrays.lhs_scales),
        out_scale=arrays.out_scale,
        up_values=batched(arrays.up_values),
        up_scales=batched(arrays.up_scales),
    )
