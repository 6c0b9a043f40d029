"""Products with quantized weights by XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.epilogue import apply_epilogue
from systolic.ops.quantized.array import Quantized
from systolic.ops.quantized.product import Operands, QuantizedProduct, each_weight
from systolic.ops.quantized.quantize import dequantize, quantize
from systolic.spec import LARGEST, parts_of_k


class ScaledRows(NamedTuple):
    """Rows of lhs as they are multiplied: they represent `values · scales`."""

    values: Array  # [m, k]
    scales: Array  # [m, blocks] float32

    @property
    def numbers(self) -> Array:
        return self.values.astype(jnp.float32) * jnp.repeat(
            self.scales, self.values.shape[1] // max(self.scales.shape[1], 1), axis=1
        )


def by_xla(product: QuantizedProduct, operands: Operands) -> Array:
    """Compute the product. With rows of floats the weight is dequantized first, rounded to their dtype.

    With quantized rows values are multiplied, whose sums are exact if both are integers, and the sums are scaled.
    """
    operands = product.apart(operands)
    rows = quantized_rows(product, operands)
    totals = []
    for weight_operands in each_weight(operands):
        if rows is None:
            weight = weight_of(weight_operands, weight_operands.lhs.dtype)
            totals.append(jnp.matmul(weight_operands.lhs, weight, preferred_element_type=jnp.float32))
        else:
            totals.append(product_of_values(rows, weight_operands.values, weight_operands.scales))
    return finished(product, totals, operands)


def weight_of(operands: Operands, dtype: Any) -> Array:
    """Return the dequantized weight, rounded to `dtype`."""
    arrays = operands
    if arrays.values.dtype.name not in LARGEST:
        return arrays.values.astype(dtype)  # not quantized
    return dequantize(Quantized(arrays.values, arrays.scales), dtype)


def quantized_rows(product: QuantizedProduct, operands: Operands) -> ScaledRows | None:
    """Return the rows as values and scales; None if they are floats."""
    if operands.lhs_scales is not None:
        return ScaledRows(operands.lhs, operands.lhs_scales)
    if product.quantize_lhs is None:
        return None
    quantized_rows = quantize(operands.lhs, product.quantize_lhs, axis=-1)
    return ScaledRows(quantized_rows.values, quantized_rows.scales)


def product_of_values(rows: ScaledRows, values: Array, scales: Array, *, as_stored: bool = False) -> Array:
    """Return the product in float32: of values for each block, whose sums are scaled and added.

    Sums of integers are int32 for as many products as an int32 surely holds, and these sums are added in float32.

    Args:
      as_stored: multiply floats in the dtype of rows, which XLA converts if the chip's units do not take it; else in
        bfloat16.
    """
    (m, k), n, blocks = rows.values.shape, values.shape[1], scales.shape[0]
    integers = all(jnp.issubdtype(array.dtype, jnp.integer) for array in (rows.values, values))
    multiplied, summed = (jnp.int8, jnp.int32) if integers else (jnp.bfloat16, jnp.float32)
    if as_stored and not integers:
        multiplied = (
            rows.values.dtype
        )  # weights of other formats are cast to it, which may round: this is only for races
    block = k // blocks
    left = rows.values.astype(multiplied).reshape(m, blocks, block)
    right = values.astype(multiplied).reshape(blocks, block, n)
    sums: Any = 0.0
    for part in parts_of_k(block) if integers else [slice(0, block)]:
        sums += lax.dot_general(
            left[:, :, part], right[:, part], (((2,), (1,)), ((1,), (0,))), preferred_element_type=summed
        ).astype(jnp.float32)
    return (sums * scales.astype(jnp.float32)[:, None, :] * rows.scales.T[:, :, None]).sum(0)


def finished(product: QuantizedProduct, totals: Sequence[Array], operands: Operands) -> Array:
    """Apply the epilogue to the sum, or to both sums of a gated product."""
    total, *up = totals
    return apply_epilogue(
        total,
        product.dtype_out,
        bias=operands.bias,
        activation=product.function,
        up=up[0] if up else None,
        residual=operands.residual,
        scale=operands.out_scale,
    )
