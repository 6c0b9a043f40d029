"""Products across chips by XLA: a collective and a product, one after the other."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.ops.collective.product import RingProduct
from systolic.ops.collective.wire import decoded, packed, scales_of, unpacked
from systolic.ops.quantized.array import Quantized
from systolic.spec import accumulator_dtype


def by_xla(
    product: RingProduct, x: Array, weights: tuple[Array | Quantized, ...], bias: Array | None
) -> tuple[Array, ...]:
    """Return the results of `product`, the gathered rows last if it keeps them; quantized weights are dequantized."""
    w = dequantized(weights, x.dtype)
    wire_dtype = product.wire_dtype
    if product.kind == "gather":
        gathered = lax.all_gather(x if wire_dtype is None else packed(x, wire_dtype), product.axis_name, tiled=True)
        dtype, scales = accumulator_dtype(x.dtype.name), 1.0
        if wire_dtype is not None:
            codes, scales = gathered[:, : x.shape[1]], scales_of(gathered[:, x.shape[1] :])
            gathered = decoded(codes, wire_dtype).astype(x.dtype)
        outs = product.finished(tuple(_dot(product, gathered, side, dtype) * scales for side in w), bias)
        return (*outs, gathered) if product.keeps_x else outs
    if product.weight_cut is not None:
        is_first = (product.weight_cut == "k") != product.transpose_rhs
        gather = functools.partial(lax.all_gather, axis_name=product.axis_name, axis=0 if is_first else 1, tiled=True)
        dtype = accumulator_dtype(x.dtype.name)
        return product.finished(tuple(_dot(product, x, gather(side), dtype) for side in w), bias)
    axis = 1 if product.transpose_rhs else 0
    w_all = w[0] if len(w) == 1 else jnp.concatenate(w, axis)
    if wire_dtype is not None:
        # Each device's product is rounded once, and goes to where it is added.
        products = packed(_dot(product, x, w_all, "float32"), wire_dtype)
        products = unpacked(lax.all_to_all(products, product.axis_name, 0, 0, tiled=True), wire_dtype)
        return product.finished((products.reshape(product.devices, -1, products.shape[1]).sum(0),), bias)
    # The kernel's sums, too, travel in the dtype of the result.
    partial_sum = _dot(product, x, w_all, product.dtype_out)
    return product.finished((lax.psum_scatter(partial_sum, product.axis_name, tiled=True),), bias)


def all_summed(product: RingProduct, x: Array, w: Array | Quantized, bias: Array | None) -> Array:
    """Return the result that `by_xla` scatters, with all rows on every device."""
    (matrix,) = dequantized((w,), x.dtype)
    partial_sum = _dot(product, x, matrix, product.dtype_out)
    return product.finished((lax.psum(partial_sum, product.axis_name),), bias)[0]


def dequantized(weights: tuple[Array | Quantized, ...], dtype: Any) -> tuple[Array, ...]:
    return tuple(side.dequantize(dtype) if isinstance(side, Quantized) else side for side in weights)


def _dot(product: RingProduct, x: Array, w: Array, dtype: Any) -> Array:
    precision = lax.Precision[product.precision.upper()]
    w = w.T if product.transpose_rhs else w
    return jnp.matmul(x, w, precision=precision, preferred_element_type=jnp.dtype(dtype))
