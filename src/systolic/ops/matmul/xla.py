"""A product by XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.ops.matmul.product import Product, extras_by_side, spec_of


def by_xla(product: Product, *arrays: Array) -> tuple[Array, ...]:
    """The product as plain JAX operations."""
    lhs, rhs, *_ = arrays
    extras = extras_by_side(product, arrays)
    if product.lhs_fn is not None:
        lhs = product.lhs_fn(lhs, *extras["lhs"])
    if product.rhs_fn is not None:
        rhs = product.rhs_fn(rhs, *extras["rhs"])
    # Only dtypes are wanted: sizes may be symbols.
    spec = spec_of(product, [jax.ShapeDtypeStruct((1,) * array.ndim, array.dtype) for array in arrays])
    operands = [array.astype(spec.dtype_multiplied) for array in (lhs, rhs)]
    if product.transpose_lhs:
        operands[0] = operands[0].mT
    if product.transpose_rhs:
        operands[1] = operands[1].mT
    with jax.named_scope("systolic.matmul"):
        total = jnp.matmul(
            *operands,
            precision=lax.Precision[product.precision.upper()],
            preferred_element_type=jnp.dtype(spec.dtype_accumulator),
        )
        outs = product.epilogue(total, *extras["out"])
    return tuple(out.astype(dtype) for out, dtype in zip(outs, product.dtypes_out, strict=True))
