"""Compute grouped products and their gradient, by Pallas or by XLA; each is the other's derivative."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.cuts import axes_of
from systolic.ops.engine.derivative import bilinear, fused_after_sum
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.grouped.codes import in_floats
from systolic.ops.grouped.pallas import gradient_by_pallas, product_by_pallas
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.grouped.sharded import sharded_finish, sharded_gradient, sharded_product
from systolic.ops.grouped.xla import finished, gradient_by_xla, product_by_xla, rows_of
from systolic.ops.quantized.quantize import fake_quantize, quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class _Multiply(OfProduct):
    """`lhs[rows of g] @ rhs[g]`, for `engine.derivative`."""

    product: GroupedProduct

    def multiply(self, lhs: Array, rhs: Array, rest: Grouping) -> Array:
        return _product(self.product, lhs, rhs, rest, Fused())

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Grouping) -> Array:
        product = self.product.anew(transpose_rhs=not self.product.transpose_rhs, dtype_out=lhs.dtype.name)
        return multiply(product, cotangent.astype(lhs.dtype), rhs, rest)

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Grouping) -> Array:
        product = self.product.anew(transpose_rhs=False, dtype_out=rhs.dtype.name, group_axes=next(axes_of(rhs)))
        rows = cotangent.astype(lhs.dtype)
        sides = (rows, lhs) if self.product.transpose_rhs else (lhs, rows)
        return gradient(product, rhs.shape[0], *sides, rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradient(OfProduct):
    """`lhs[rows of g]ᵀ @ rhs[rows of g]`, for `engine.derivative`."""

    product: GroupedProduct
    groups: int

    def multiply(self, lhs: Array, rhs: Array, rest: Grouping) -> Array:
        return _gradient(self.product, self.groups, lhs, rhs, rest)

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Grouping) -> Array:
        product = self.product.anew(transpose_rhs=True, dtype_out=lhs.dtype.name)
        return multiply(product, rhs, cotangent.astype(lhs.dtype), rest)

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Grouping) -> Array:
        product = self.product.anew(transpose_rhs=False, dtype_out=rhs.dtype.name)
        return multiply(product, lhs, cotangent.astype(lhs.dtype), rest)


def multiply(product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping) -> Array:
    """Return `lhs[rows of g] @ rhs[g]`, differentiable in both modes, any number of times."""
    return bilinear(_Multiply(product=product), lhs, rhs, grouping)


def gradient(product: GroupedProduct, groups: int, lhs: Array, rhs: Array, grouping: Grouping) -> Array:
    """Return `lhs[rows of g]ᵀ @ rhs[rows of g]` for each group, differentiable in both modes, any number of times."""
    return bilinear(_Gradient(product=product, groups=groups), lhs, rhs, grouping)


def multiply_fused(product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused) -> Array:
    """Return `activation(lhs[rows of g] @ rhs[g] + bias[g]) · row_scale + residual`, in one kernel.

    When it is differentiated, it is one kernel only if the derivative does not need the sum.
    """

    if fused.rhs_scale is not None:
        return _multiply_codes(product, (lhs, rhs, grouping, fused))

    # The grouping is an operand: a function in `jax.jit` that closed over it could not be differentiated outside.
    def kernel(operands: tuple[Array, Array, Grouping, Fused]) -> Array:
        lhs, rhs, grouping, fused = operands
        return _product(product, lhs, rhs, grouping, fused)

    def in_two(operands: tuple[Array, Array, Grouping, Fused]) -> Array:
        lhs, rhs, grouping, fused = operands
        plain = product.plain.anew(dtype_out=_kept_dtype(lhs))
        total = multiply(plain, lhs, rhs, grouping)
        up = multiply(plain, lhs, fused.up, grouping) if fused.up is not None else None
        mesh = explicit_mesh([total])
        if mesh is not None:
            return sharded_finish(mesh, product, total, up, rhs.shape[0], grouping, fused)
        return finished(product, total, up, rows_of(lhs.shape[0], rhs.shape[0], grouping), fused)

    return fused_after_sum(kernel, in_two, not product.is_linear(fused), (lhs, rhs, grouping, fused))


def _multiply_codes(product: GroupedProduct, operands: tuple[Array, Array, Grouping, Fused]) -> Array:
    """Multiply by quantized right-hand sides; where it is differentiated, by their floats.

    The derivative ignores the rounding of rows that are quantized (straight-through estimator).
    """
    row_format, unrounded = product.quantize_lhs, replace(product, quantize_lhs=None)

    def kernel(operands: tuple[Array, Array, Grouping, Fused]) -> Array:
        lhs, rhs, grouping, fused = operands
        if row_format is not None:
            rows = quantize(lhs, row_format, axis=-1)
            lhs, fused = rows.values, fused._replace(lhs_scale=rows.scales[:, 0])
        return _product(unrounded, lhs, rhs, grouping, fused)

    def floats(operands: tuple[Array, Array, Grouping, Fused]) -> Array:
        lhs, rhs, grouping, fused = operands
        if row_format is not None:
            lhs = fake_quantize(lhs, row_format, axis=-1)
        rhs, fused = in_floats(product, lhs, rhs, fused)
        return multiply_fused(unrounded, lhs, rhs, grouping, fused)

    return fused_after_sum(kernel, floats, True, operands)


def _kept_dtype(lhs: Array) -> str:
    return "float32" if lhs.dtype == jnp.float32 else "bfloat16"


def _product(product: GroupedProduct, *operands: Any) -> Array:
    def whole(*operands: Any) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(operands))
        return (
            _multiplied(product, *operands) if mesh is None else sharded_product(_multiplied, mesh, product, *operands)
        )

    return one_at_a_time(whole, *operands)


def _multiplied(product: GroupedProduct, *operands: Any) -> Array:
    by_pallas, by_xla = (functools.partial(run, product) for run in (product_by_pallas, product_by_xla))
    return dispatched(product.backend, by_pallas, by_xla, *operands)


def _gradient(product: GroupedProduct, groups: int, *operands: Any) -> Array:
    def whole(*operands: Any) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(operands))
        if mesh is None:
            return _differentiated(product, groups, *operands)
        return sharded_gradient(_differentiated, mesh, product, groups, *operands)

    return one_at_a_time(whole, *operands)


def _differentiated(product: GroupedProduct, groups: int, *operands: Any) -> Array:
    if not groups:  # which the shapes of the arrays do not show
        return gradient_by_xla(product, groups, *operands)
    by_pallas, by_xla = (functools.partial(run, product, groups) for run in (gradient_by_pallas, gradient_by_xla))
    return dispatched(product.backend, by_pallas, by_xla, *operands)
