"""Computes grouped products and their gradient, by Pallas or by XLA; each is the other's derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.ops.engine.cuts import axes_of, cut_like
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.grouped.pallas import gradient_by_pallas, product_by_pallas
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.grouped.sharded import sharded_finish, sharded_gradient, sharded_product
from systolic.ops.grouped.xla import finished, gradient_by_xla, product_by_xla, rows_of


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping) -> Array:
    """`lhs[rows of g] @ rhs[g]`; differentiable in reverse mode, any number of times."""
    return _product(product, lhs, rhs, grouping, Fused())


def _multiply_forward(
    product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping
) -> tuple[Array, tuple[Array, Array, Grouping]]:
    return multiply(product, lhs, rhs, grouping), (lhs, rhs, grouping)


def _multiply_backward(
    product: GroupedProduct, residuals: tuple[Array, Array, Grouping], cotangent: Array
) -> tuple[Array, Array, None]:
    lhs, rhs, grouping = residuals
    given = cotangent.astype(lhs.dtype)
    to_lhs = product.anew(transpose_rhs=not product.transpose_rhs, dtype_out=lhs.dtype.name)
    group_axes = next(axes_of(rhs))
    to_rhs = product.anew(transpose_rhs=False, dtype_out=rhs.dtype.name, group_axes=group_axes)
    sides = (given, lhs) if product.transpose_rhs else (lhs, given)
    of_lhs, of_rhs = multiply(to_lhs, given, rhs, grouping), gradient(to_rhs, rhs.shape[0], *sides, grouping)
    return cut_like(of_lhs, lhs), cut_like(of_rhs, rhs), None


multiply.defvjp(_multiply_forward, _multiply_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gradient(product: GroupedProduct, groups: int, lhs: Array, cotangent: Array, grouping: Grouping) -> Array:
    """`lhs[rows of g]ᵀ @ cotangent[rows of g]`; differentiable likewise."""
    return _gradient(product, groups, lhs, cotangent, grouping)


def _gradient_forward(
    product: GroupedProduct, groups: int, lhs: Array, cotangent: Array, grouping: Grouping
) -> tuple[Array, tuple[Array, Array, Grouping]]:
    return gradient(product, groups, lhs, cotangent, grouping), (lhs, cotangent, grouping)


def _gradient_backward(
    product: GroupedProduct, groups: int, residuals: tuple[Array, Array, Grouping], change: Array
) -> tuple[Array, Array, None]:
    lhs, cotangent, grouping = residuals
    matrices = change.astype(lhs.dtype)
    to_lhs = product.anew(transpose_rhs=True, dtype_out=lhs.dtype.name)
    to_cotangent = product.anew(transpose_rhs=False, dtype_out=cotangent.dtype.name)
    of_lhs = multiply(to_lhs, cotangent, matrices, grouping)
    of_cotangent = multiply(to_cotangent, lhs, matrices, grouping)
    return cut_like(of_lhs, lhs), cut_like(of_cotangent, cotangent), None


gradient.defvjp(_gradient_forward, _gradient_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_fused(product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused) -> Array:
    """`activation(lhs[rows of g] @ rhs[g] + bias[g]) · row_scale + residual`, in one kernel.

    Where it is differentiated it is one only if the derivative does not need the sum.
    """
    return _product(product, lhs, rhs, grouping, fused)


def _fused_forward(
    product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused
) -> tuple[Array, Callable[..., Any]]:
    """A derivative of what is not linear needs the sum, so that is stored, and XLA does the rest."""

    def in_two(lhs: Array, rhs: Array, fused: Fused) -> Array:
        one = product.plain.anew(dtype_out=_kept_dtype(lhs))
        total: Any = multiply(one, lhs, rhs, grouping)
        up: Any = multiply(one, lhs, fused.up, grouping) if fused.up is not None else None
        mesh = explicit_mesh([total])
        if mesh is not None:
            return sharded_finish(mesh, product, total, up, rhs.shape[0], grouping, fused)
        return finished(product, total, up, rows_of(lhs.shape[0], rhs.shape[0], grouping), fused)

    out, back = jax.vjp(in_two, lhs, rhs, fused)
    return (_product(product, lhs, rhs, grouping, fused) if product.is_linear(fused) else out), back


def _fused_backward(
    _product: GroupedProduct, back: Callable[..., Any], cotangent: Array
) -> tuple[Array, Array, None, Fused]:
    lhs, rhs, fused = back(cotangent)
    return lhs, rhs, None, fused


multiply_fused.defvjp(_fused_forward, _fused_backward)


def _kept_dtype(lhs: Array) -> str:
    return "float32" if lhs.dtype == jnp.float32 else "bfloat16"


def _product(product: GroupedProduct, *given: Any) -> Array:
    def whole(*given: Any) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(given))
        return _multiplied(product, *given) if mesh is None else sharded_product(_multiplied, mesh, product, *given)

    return one_at_a_time(whole, *given)


def _multiplied(product: GroupedProduct, *given: Any) -> Array:
    by_pallas, by_xla = (functools.partial(by, product) for by in (product_by_pallas, product_by_xla))
    return dispatched(product.backend, by_pallas, by_xla, *given)


def _gradient(product: GroupedProduct, groups: int, *given: Any) -> Array:
    def whole(*given: Any) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(given))
        if mesh is None:
            return _differentiated(product, groups, *given)
        return sharded_gradient(_differentiated, mesh, product, groups, *given)

    return one_at_a_time(whole, *given)


def _differentiated(product: GroupedProduct, groups: int, *given: Any) -> Array:
    if not groups:  # which the shapes of the arrays do not say
        return gradient_by_xla(product, groups, *given)
    by_pallas, by_xla = (functools.partial(by, product, groups) for by in (gradient_by_pallas, gradient_by_xla))
    return dispatched(product.backend, by_pallas, by_xla, *given)
