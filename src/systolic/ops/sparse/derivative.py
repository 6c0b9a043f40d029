"""Computes block-sparse products and their derivatives, by Pallas or by XLA; they are each other's derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax import Array

from systolic.ops.engine.cuts import cut_like
from systolic.ops.engine.dispatch import Run, dispatched, one_at_a_time
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.sparse.pallas import product_by_pallas, sampled_by_pallas
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.ops.sparse.sharded import sharded_finish, sharded_product, sharded_sample, whole
from systolic.ops.sparse.xla import blocks_of, finished, product_by_xla, sampled_by_xla
from systolic.spec import accumulator_dtype


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(product: SparseProduct, blocks: Array, dense: Array, places: Places) -> Array:
    """The sparse matrix times a dense one, or a dense one times it; differentiable in reverse mode to any order."""
    return _product(product, blocks, dense, None, places)


def _multiply_forward(
    product: SparseProduct, blocks: Array, dense: Array, places: Places
) -> tuple[Array, tuple[Array, Array, Places]]:
    return multiply(product, blocks, dense, places), (blocks, dense, places)


def _multiply_backward(
    product: SparseProduct, residuals: tuple[Array, Array, Places], cotangent: Array
) -> tuple[Array, Array, None]:
    blocks, dense, places = residuals
    given = cotangent.astype(blocks.dtype)
    to_dense = product.with_planned_tiles(transpose_sparse=not product.transpose_sparse, dtype_out=dense.dtype.name)
    back: Any = multiply(to_dense, blocks, given, places)
    # Of blocks that are stored transposed, the derivative is that of the transposed product.
    left, right = (given, dense) if product.kind == "dsd" else (dense.mT, given.mT)
    left, right = (right, left) if product.transpose_sparse else (left, right)
    to_blocks = product.with_planned_tiles(
        kind="sdd", transpose_sparse=False, transpose_rhs=True, dtype_out=blocks.dtype.name
    )
    found: Any = sample(to_blocks, left, right, places)
    return cut_like(found, blocks), cut_like(back, dense), None


multiply.defvjp(_multiply_forward, _multiply_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sample(product: SparseProduct, lhs: Array, rhs: Array, places: Places) -> Array:
    """Blocks of the product of dense matrices, or a matrix with them; differentiable likewise."""
    return _run(
        functools.partial(_dispatched, sampled_by_pallas, sampled_by_xla), sharded_sample, product, lhs, rhs, places
    )


def _sample_forward(
    product: SparseProduct, lhs: Array, rhs: Array, places: Places
) -> tuple[Array, tuple[Array, Array, Places]]:
    return sample(product, lhs, rhs, places), (lhs, rhs, places)


def _sample_backward(
    product: SparseProduct, residuals: tuple[Array, Array, Places], cotangent: Array
) -> tuple[Array, Array, None]:
    lhs, rhs, places = residuals
    given = whole(cotangent.astype(lhs.dtype))
    blocks = blocks_of(product, given, places) if product.dense_out else given
    dense = rhs if product.transpose_rhs else rhs.mT
    to_lhs = product.with_planned_tiles(
        kind="dsd", transpose_rhs=False, dense_out=False, lower=None, upper=None, dtype_out=lhs.dtype.name
    )
    # lhsᵀ · sparse, from sparseᵀ · lhs: that reads lhs as it is stored.
    to_rhs = replace(to_lhs, transpose_sparse=True, dtype_out=rhs.dtype.name)
    found: Any = multiply(to_lhs, blocks, dense, places)
    back: Any = multiply(to_rhs, blocks, lhs, places)
    return cut_like(found, lhs), cut_like(back if product.transpose_rhs else back.mT, rhs), None


sample.defvjp(_sample_forward, _sample_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_fused(product: SparseProduct, blocks: Array, dense: Array, bias: Any, places: Places) -> Array:
    """`activation(lhs @ rhs + bias)`, in one kernel where nothing is differentiated."""
    return _product(product, blocks, dense, bias, places)


def _fused_forward(
    product: SparseProduct, blocks: Array, dense: Array, bias: Any, places: Places
) -> tuple[Array, Callable[..., Any]]:
    """The derivative of the activation needs the sum, so that is stored, not rounded, and XLA does the rest."""
    sums = product.with_planned_tiles(dtype_out=accumulator_dtype(blocks.dtype.name), activation="", function=None)

    def in_two(blocks: Array, dense: Array, bias: Any) -> Array:
        total: Any = multiply(sums, blocks, dense, places)
        mesh = explicit_mesh([total])
        return finished(product, total, bias) if mesh is None else sharded_finish(mesh, product, total, bias)

    return jax.vjp(in_two, blocks, dense, bias)


def _fused_backward(
    _product: SparseProduct, back: Callable[..., Any], cotangent: Array
) -> tuple[Array, Array, Any, None]:
    return (*back(cotangent), None)


multiply_fused.defvjp(_fused_forward, _fused_backward)


def _product(product: SparseProduct, *given: Any) -> Array:
    run = functools.partial(_dispatched, product_by_pallas, product_by_xla)
    return _run(run, sharded_product, product, *given)


def _run(run: Run, cut: Run, product: SparseProduct, *given: Any) -> Array:
    def once(*given: Any) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(given))
        return run(product, *given) if mesh is None else cut(run, mesh, product, *given)

    return one_at_a_time(once, *given)


def _dispatched(pallas: Run, xla: Run, product: SparseProduct, *given: Any) -> Array:
    if 0 in product.grid:
        return xla(product, *given)
    return dispatched(product.backend, functools.partial(pallas, product), functools.partial(xla, product), *given)
