"""Compute grouped products and their gradient, by Pallas or by XLA; each is the other's derivative."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.cuts import axes_of, cut_like
from systolic.ops.engine.derivative import bilinear, fused_after_sum
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.linear import linear, perturbed
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

    def lhs_cotangent(
        self, cotangent: Array, lhs: Array, rhs: Array, rest: Grouping, residual: Array | None = None
    ) -> Array:
        product = self.product.anew(transpose_rhs=not self.product.transpose_rhs, dtype_out=lhs.dtype.name)
        cotangent = cotangent.astype(lhs.dtype)
        if residual is None:
            return multiply(product, cotangent, rhs, rest)
        if explicit_mesh([cotangent, rhs]) is not None:
            return residual + multiply(product, cotangent, rhs, rest)
        return multiply_fused(product, cotangent, rhs, rest, Fused(residual=residual))

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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def multiply_both(
    product: GroupedProduct, lhs: Array, rhs: Array, up: Array, grouping: Grouping
) -> tuple[Array, Array]:
    """Return `multiply` by both matrices. Of its two gradients in lhs, the second product's kernel adds the first."""
    return multiply(product, lhs, rhs, grouping), multiply(product, lhs, up, grouping)


@functools.partial(multiply_both.defjvp, symbolic_zeros=True)
def _tangents_of_both(
    product: GroupedProduct, primals: tuple[Array, Array, Array, Grouping], tangents: tuple[Any, ...]
) -> tuple[Any, Any]:
    *arrays, grouping = primals
    outs = multiply_both(product, *primals)
    leaves, structure = jax.tree.flatten(grouping)
    tangent = _OfBoth(product=product, structure=structure)
    return outs, linear(tangent, [*arrays, *leaves], perturbed(tangents[:3]), outs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfBoth:
    """The derivative of `multiply_both`. Its residuals are lhs, both matrices and the leaves of the grouping."""

    product: GroupedProduct
    structure: Any  # of the grouping

    @property
    def effects(self) -> frozenset[Any]:
        return self.product.backend.effects

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        lhs, *matrices, grouping = self._unpacked(residuals)
        lhs_tangent, *tangents = arguments
        outs = []
        for matrix, tangent in zip(matrices, tangents, strict=True):
            terms = [multiply(self.product, lhs_tangent, matrix, grouping)] if lhs_tangent is not None else []
            terms += [multiply(self.product, lhs, tangent, grouping)] if tangent is not None else []
            shape = lhs.shape[0], matrix.shape[1 if self.product.transpose_rhs else 2]
            outs.append(functools.reduce(jnp.add, terms) if terms else jnp.zeros(shape, self.product.dtype_out))
        return outs

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        lhs, *matrices, grouping = self._unpacked(residuals)
        of_lhs, *of_matrices = arguments
        rules, lhs_cotangent = _Multiply(product=self.product), None
        if of_lhs is not None:
            lhs_cotangent = rules.lhs_cotangent(cotangents[0], lhs, matrices[0], grouping)
            lhs_cotangent = rules.lhs_cotangent(cotangents[1], lhs, matrices[1], grouping, lhs_cotangent)
            lhs_cotangent = cut_like(lhs_cotangent, lhs)
        return [
            lhs_cotangent,
            *(
                None if argument is None else cut_like(rules.rhs_cotangent(cotangent, lhs, matrix, grouping), matrix)
                for argument, cotangent, matrix in zip(of_matrices, cotangents, matrices, strict=True)
            ),
        ]

    def _unpacked(self, residuals: Sequence[Array]) -> Sequence[Any]:
        lhs, rhs, up, *leaves = residuals
        return lhs, rhs, up, self.structure.unflatten(leaves)


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
        if fused.up is None:
            total, up = multiply(plain, lhs, rhs, grouping), None
        else:
            total, up = multiply_both(plain, lhs, rhs, fused.up, grouping)
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
