"""Products across chips by XLA: a collective and a product, one after the other."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.epilogue import apply_epilogue
from systolic.ops.collective.product import RingProduct
from systolic.spec import accumulator_dtype


def by_xla(product: RingProduct, x: Array, w: Array, bias: Array | None) -> Array:
    if product.kind == "gather":
        gathered = lax.all_gather(x, product.axis_name, tiled=True)
        return finished(product, _dot(product, gathered, w, accumulator_dtype(x.dtype.name)), bias)
    # The kernel's sums, too, travel in the dtype of the result.
    partial_sum = _dot(product, x, w, product.dtype_out)
    return finished(product, lax.psum_scatter(partial_sum, product.axis_name, tiled=True), bias)


def finished(product: RingProduct, total: Array, bias: Array | None) -> Array:
    """Apply what follows the sum."""
    return apply_epilogue(total, product.dtype_out, bias=bias, activation=product.function)


def _dot(product: RingProduct, x: Array, w: Array, dtype: Any) -> Array:
    precision = lax.Precision[product.precision.upper()]
    return jnp.matmul(x, w, precision=precision, preferred_element_type=jnp.dtype(dtype))
