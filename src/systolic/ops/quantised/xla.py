"""Products with quantised weights by XLA."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from systolic.kernels.functions import as_dtype
from systolic.ops.quantised.array import Quantized
from systolic.ops.quantised.product import Operands, QuantizedProduct
from systolic.ops.quantised.quantize import dequantize


def by_xla(product: QuantizedProduct, operands: Operands) -> Array:
    """The product with the weight dequantised first, rounded to the dtype of lhs."""
    weight = dequantize(Quantized(operands.values, operands.scales), operands.lhs.dtype)
    total = jnp.matmul(operands.lhs, weight, preferred_element_type=jnp.float32)
    return finished(product, total, operands)


def finished(product: QuantizedProduct, total: Array, operands: Operands) -> Array:
    """What is done to the sum."""
    if operands.bias is not None:
        total = total + operands.bias.astype(jnp.float32)
    if product.function is not None:
        total = product.function(total)
    if operands.residual is not None:
        total = total + operands.residual.astype(jnp.float32)
    return as_dtype(total, product.dtype_out)
