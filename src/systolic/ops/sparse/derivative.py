"""Compute block-sparse products and their derivatives, by Pallas or by XLA; each is the other's derivative."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import Array

from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.derivative import bilinear, fused_after_sum
from systolic.ops.engine.dispatch import Run, dispatched, one_at_a_time
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.sparse.pallas import product_by_pallas, sampled_by_pallas
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.ops.sparse.sharded import sharded_finish, sharded_product, sharded_sample, whole
from systolic.ops.sparse.xla import blocks_of, finished, product_by_xla, sampled_by_xla
from systolic.spec import accumulator_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Multiply(OfProduct):
    """The product of a sparse matrix, whose blocks are lhs, and a dense one, for `engine.derivative`."""

    product: SparseProduct

    def multiply(self, lhs: Array, rhs: Array, rest: Places) -> Array:
        return _product(self.product, lhs, rhs, None, rest)

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Places) -> Array:
        product, rows = self.product, cotangent.astype(lhs.dtype)
        # The derivative of blocks that are stored transposed is the derivative of the transposed product.
        left, right = (rows, rhs) if product.kind == "dsd" else (rhs.mT, rows.mT)
        left, right = (right, left) if product.transpose_sparse else (left, right)
        to_blocks = product.anew(kind="sdd", transpose_sparse=False, transpose_rhs=True, dtype_out=lhs.dtype.name)
        return sample(to_blocks, left, right, rest)

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Places) -> Array:
        turned = not self.product.transpose_sparse
        product = self.product.anew(transpose_sparse=turned, dtype_out=rhs.dtype.name)
        return multiply(product, lhs, cotangent.astype(lhs.dtype), rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample(OfProduct):
    """Blocks of the product of dense matrices, or a matrix with them, for `engine.derivative`."""

    product: SparseProduct

    def multiply(self, lhs: Array, rhs: Array, rest: Places) -> Array:
        run = functools.partial(_dispatched, sampled_by_pallas, sampled_by_xla)
        return _run(run, sharded_sample, self.product, lhs, rhs, rest)

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Places) -> Array:
        dense = rhs if self.product.transpose_rhs else rhs.mT
        return multiply(self._sparse(lhs), self._blocks(cotangent, lhs, rest), dense, rest)

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Places) -> Array:
        # lhsᵀ · sparse, from sparseᵀ · lhs, which reads lhs as it is stored.
        product = replace(self._sparse(rhs), transpose_sparse=True)
        transposed = multiply(product, self._blocks(cotangent, lhs, rest), lhs, rest)
        return transposed if self.product.transpose_rhs else transposed.mT

    def _sparse(self, operand: Array) -> SparseProduct:
        """Return the product of the cotangent's blocks that makes the cotangent of an operand."""
        return self.product.anew(
            kind="dsd", transpose_rhs=False, dense_out=False, lower=None, upper=None, dtype_out=operand.dtype.name
        )

    def _blocks(self, cotangent: Array, lhs: Array, places: Places) -> Array:
        cotangent = whole(cotangent.astype(lhs.dtype))
        return blocks_of(self.product, cotangent, places) if self.product.dense_out else cotangent


def multiply(product: SparseProduct, blocks: Array, dense: Array, places: Places) -> Array:
    """Return the sparse matrix times a dense one, or a dense one times it; differentiable in both modes."""
    return bilinear(_Multiply(product=product), blocks, dense, places)


def sample(product: SparseProduct, lhs: Array, rhs: Array, places: Places) -> Array:
    """Return blocks of the product of dense matrices, or a matrix with them; differentiable in both modes."""
    return bilinear(_Sample(product=product), lhs, rhs, places)


def multiply_fused(product: SparseProduct, blocks: Array, dense: Array, bias: Any, places: Places) -> Array:
    """Return `activation(lhs @ rhs + bias)`, in one kernel if nothing is differentiated."""
    # The sum is stored as it is, not rounded.
    sums = product.anew(dtype_out=accumulator_dtype(blocks.dtype.name), activation="", function=None)

    def kernel(operands: tuple[Array, Array, Any]) -> Array:
        return _product(product, *operands, places)

    def in_two(operands: tuple[Array, Array, Any]) -> Array:
        blocks, dense, bias = operands
        total = multiply(sums, blocks, dense, places)
        mesh = explicit_mesh([total])
        return finished(product, total, bias) if mesh is None else sharded_finish(mesh, product, total, bias)

    return fused_after_sum(kernel, in_two, True, (blocks, dense, bias))


def _product(product: SparseProduct, *operands: Any) -> Array:
    run = functools.partial(_dispatched, product_by_pallas, product_by_xla)
    return _run(run, sharded_product, product, *operands)


def _run(run: Run, cut: Run, product: SparseProduct, *operands: Any) -> Array:
    def once(*operands: Any) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(operands))
        return run(product, *operands) if mesh is None else cut(run, mesh, product, *operands)

    return one_at_a_time(once, *operands)


def _dispatched(pallas: Run, xla: Run, product: SparseProduct, *operands: Any) -> Array:
    if 0 in product.grid:
        return xla(product, *operands)
    return dispatched(product.backend, functools.partial(pallas, product), functools.partial(xla, product), *operands)
