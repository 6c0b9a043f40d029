"""Derivatives that ops share, in forward and in reverse mode, in any order.

- `bilinear` differentiates a product that is linear in each of two arrays, by products of the same kind.
- `fused_after_sum` differentiates a kernel's operations on the sum of a product: a derivative needs the sum, so the
  kernel stores it, and XLA computes the rest.

Residuals are the operands themselves, so that no value made of them (a weight in a wider dtype, for example) stays in
memory between the forward and the backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax import Array

from systolic.ops.engine.cuts import cut_like
from systolic.ops.engine.linear import jvp_of_moving, linear, perturbed


class Bilinear(Protocol):
    """A product of two arrays that is linear in each; a hashable record.

    `rest` is a tree of arrays that have no derivative, such as the sizes of groups.
    """

    @property
    def effects(self) -> frozenset[Any]: ...

    def multiply(self, lhs: Array, rhs: Array, rest: Any) -> Array: ...

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Any) -> Array:
        """Return the cotangent of lhs, in the dtype of lhs, by a product that is differentiable itself."""
        ...

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Any) -> Array:
        """Return the cotangent of rhs, in the dtype of rhs, by a product that is differentiable itself."""
        ...


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def bilinear(product: Bilinear, lhs: Array, rhs: Array, rest: Any) -> Array:
    """Return `product.multiply(lhs, rhs, rest)`, differentiable in lhs and rhs."""
    return product.multiply(lhs, rhs, rest)


@functools.partial(bilinear.defjvp, symbolic_zeros=True)
def _bilinear_tangent(
    product: Bilinear, primals: tuple[Array, Array, Any], tangents: tuple[Any, Any, Any]
) -> tuple[Array, Any]:
    lhs, rhs, rest = primals
    out = bilinear(product, lhs, rhs, rest)
    leaves, structure = jax.tree.flatten(rest)
    tangent = _BilinearTangent(product=product, structure=structure)
    return out, linear(tangent, [lhs, rhs, *leaves], perturbed(tangents[:2]), [out])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _BilinearTangent:
    """The derivative of `bilinear`, as `engine.linear` takes it. Its residuals are lhs, rhs and the leaves of rest."""

    product: Bilinear
    structure: Any  # of the rest

    @property
    def effects(self) -> frozenset[Any]:
        return self.product.effects

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        lhs, rhs, rest = self._unpacked(residuals)
        lhs_tangent, rhs_tangent = arguments
        terms = []
        if lhs_tangent is not None:
            terms.append(bilinear(self.product, lhs_tangent, rhs, rest))
        if rhs_tangent is not None:
            terms.append(bilinear(self.product, lhs, rhs_tangent, rest))
        return [functools.reduce(jax.numpy.add, terms)]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        lhs, rhs, rest = self._unpacked(residuals)
        cotangent, rules = cotangents[0], (self.product.lhs_cotangent, self.product.rhs_cotangent)
        return [
            None if argument is None else cut_like(rule(cotangent, lhs, rhs, rest), operand)
            for argument, rule, operand in zip(arguments, rules, (lhs, rhs), strict=True)
        ]

    def _unpacked(self, residuals: Sequence[Array]) -> tuple[Array, Array, Any]:
        lhs, rhs, *leaves = residuals
        return lhs, rhs, self.structure.unflatten(leaves)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def fused_after_sum(
    kernel: Callable[[Any], Array], in_two: Callable[[Any], Array], needs_sum: bool, operands: Any
) -> Array:
    """Return `kernel(operands)`, with the derivatives of `in_two(operands)`.

    Args:
      in_two: computes the same by a product whose sum is stored, and the rest by XLA.
      needs_sum: False if the derivative is linear in the sum, so that the kernel runs where it is differentiated too.
    """
    del in_two, needs_sum
    return kernel(operands)


@functools.partial(fused_after_sum.defjvp, symbolic_zeros=True)
def _fused_tangent(
    kernel: Callable[[Any], Array],
    in_two: Callable[[Any], Array],
    needs_sum: bool,
    primals: tuple[Any],
    tangents: tuple[Any],
) -> tuple[Array, Any]:
    leaves, structure = jax.tree.flatten(primals[0])
    changes = perturbed(structure.flatten_up_to(tangents[0]))
    out, tangent = jvp_of_moving(lambda *arrays: in_two(structure.unflatten(arrays)), leaves, changes)
    return (out if needs_sum else kernel(primals[0])), tangent
