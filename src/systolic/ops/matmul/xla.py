"""A product by XLA."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.epilogue import outputs
from systolic.ops.matmul.product import Product, spec_of
from systolic.spec import Operands, parts_of_k


def by_xla(product: Product, operands: Operands) -> tuple[Array, ...]:
    # Only dtypes matter here: sizes may be symbols.
    spec = spec_of(product, operands.map(lambda array: jax.ShapeDtypeStruct((1,) * array.ndim, array.dtype)))
    k = operands.lhs.shape[-2 if product.transpose_lhs else -1]
    if isinstance(k, int):
        spec = replace(spec, k=max(k, 1))
    functions = product.functions
    lhs = functions.lhs(operands.lhs, *operands.lhs_args) if functions.lhs is not None else operands.lhs
    rhs = functions.rhs(operands.rhs, *operands.rhs_args) if functions.rhs is not None else operands.rhs
    if product.side_by_side and operands.up is not None:
        rhs, up = jnp.split(rhs, 2, axis=-1)
        operands = operands._replace(up=up)
    # On several devices XLA sums parts in the requested dtype.
    only_cast = spec.epilogue.is_identity and not spec.epilogue.kept_sum and spec.dtype_multiplied == "bfloat16"
    dtype_sum = product.dtype_out if only_cast and product.dtype_out == "bfloat16" else spec.dtype_accumulator
    lefts, rights = jax.tree.leaves(lhs), jax.tree.leaves((rhs, operands.up))

    def multiply(left: Array, right: Array) -> Array:
        left, right = left.astype(spec.dtype_multiplied), right.astype(spec.dtype_multiplied)
        left = left.mT if product.transpose_lhs else left
        right = right.mT if product.transpose_rhs else right

        def dot(left: Array, right: Array, dtype: str) -> Array:
            precision = lax.Precision[product.precision.upper()]
            return jnp.matmul(left, right, precision=precision, preferred_element_type=jnp.dtype(dtype))

        if spec.dtype_dot == "float32" or dtype_sum == "int32":
            return dot(left, right, dtype_sum)
        total = [dot(left[..., at], right[..., at, :], "int32").astype(dtype_sum) for at in parts_of_k(left.shape[-1])]
        return sum(total[1:], start=total[0])

    with jax.named_scope("systolic.matmul"):
        totals = [multiply(*pair) for pair in zip(lefts * (spec.products // len(lefts)), rights, strict=True)]
        if spec.sums < spec.products:
            totals = [totals[0] + totals[1]]
        outs = outputs(tuple(totals), operands, spec.epilogue, functions, product.dtype_out, product.pairing)
    outs = tuple(out.astype(dtype) for out, dtype in zip(outs, spec.dtypes_out, strict=True))
    outs = (jnp.concatenate(outs, axis=-1),) if spec.joined_outputs else outs
    return (*outs, operands.lhs) if product.keeps_lhs else outs
