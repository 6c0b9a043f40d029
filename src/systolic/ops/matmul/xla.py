"""A product by XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.functions import finished
from systolic.ops.matmul.product import Product, spec_of
from systolic.spec import Operands


def by_xla(product: Product, operands: Operands) -> tuple[Array, ...]:
    """The product as plain JAX operations."""
    # Only dtypes are wanted: sizes may be symbols.
    spec = spec_of(product, operands.map(lambda array: jax.ShapeDtypeStruct((1,) * array.ndim, array.dtype)))
    functions = product.functions
    lhs = functions.lhs(operands.lhs, *operands.lhs_args) if functions.lhs is not None else operands.lhs
    rhs = functions.rhs(operands.rhs, *operands.rhs_args) if functions.rhs is not None else operands.rhs
    lhs, rhs = lhs.astype(spec.dtype_multiplied), rhs.astype(spec.dtype_multiplied)
    with jax.named_scope("systolic.matmul"):
        total = jnp.matmul(
            lhs.mT if product.transpose_lhs else lhs,
            rhs.mT if product.transpose_rhs else rhs,
            precision=lax.Precision[product.precision.upper()],
            preferred_element_type=jnp.dtype(spec.dtype_accumulator),
        )
        outs = finished(total, operands, spec.epilogue, functions, product.dtype_out)
    return tuple(out.astype(dtype) for out, dtype in zip(outs, spec.dtypes_out, strict=True))
