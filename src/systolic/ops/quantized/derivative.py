"""Computes products with quantized weights, by Pallas or by XLA, and their derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from systolic.ops.engine.cuts import cut_like
from systolic.ops.engine.dispatch import dispatched, each_of_batch
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.quantized.pallas import by_pallas
from systolic.ops.quantized.product import (
    OF_COLUMNS,
    Operands,
    QuantizedProduct,
    differentiated,
    each_weight,
)
from systolic.ops.quantized.sharded import Summed, sharded_cotangents, sharded_finish, sharded_product
from systolic.ops.quantized.xla import by_xla, finished, quantized_rows, weight_of


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(product: QuantizedProduct, operands: Operands) -> Array:
    """The product, differentiable in reverse mode with regard to all but values of few bits.

    The derivative goes straight through the rounding of rows that the kernel quantizes.
    """
    return _batched(product, operands)


def _forward(product: QuantizedProduct, operands: Operands) -> tuple[Array, Callable[..., Any] | Operands]:
    if product.is_plain(operands):
        return multiply(product, operands), operands
    # The derivative of the activation needs the sum, and that of a gated product both, so they are stored, and XLA does
    # the rest.
    moving = differentiated(operands)

    def in_two(moving: Operands) -> Array:
        given = (one if one is not None else still for one, still in zip(moving, operands, strict=True))
        its = product.apart(Operands(*given))
        totals: Any = [multiply(product.plain, weight) for weight in each_weight(its)]
        mesh = explicit_mesh(totals)
        if mesh is not None:
            return sharded_finish(mesh, product, totals, its)
        return finished(product, totals, its)

    return jax.vjp(in_two, moving)


def _backward(product: QuantizedProduct, kept: Callable[..., Any] | Operands, cotangent: Array) -> tuple[Operands]:
    if not isinstance(kept, Operands):
        return kept(cotangent)
    mesh = explicit_mesh(jax.tree.leaves(kept))
    differentiate = functools.partial(_cotangents, product)
    if mesh is None:
        return (differentiate(kept, cotangent, lambda whole, _: whole),)
    found = sharded_cotangents(differentiate, mesh, product, kept, cotangent)
    return (Operands(*map(cut_like, found, kept)),)


def _cotangents(product: QuantizedProduct, kept: Operands, cotangent: Array, summed: Summed) -> Operands:
    """Cotangents of floats, and of all scales, of a plain product.

    Args:
      summed: adds what other devices have of a sum.
    """
    values, scales, rows = kept.values, kept.scales, quantized_rows(product, kept)
    dtype = kept.lhs.dtype if kept.lhs_scales is None else jnp.dtype("float32")
    given = cotangent.astype(dtype)
    weight = weight_of(kept, dtype)
    to_rows = summed(jnp.matmul(given, weight.mT, preferred_element_type=jnp.float32), "n")
    # XLA leaves these out where nobody asks for derivatives of scales.
    left = kept.lhs if rows is None else rows.numbers.astype(dtype)
    to_weight = summed(jnp.matmul(left.mT, given, preferred_element_type=jnp.float32), "m")
    blocks, n = scales.shape
    each = (to_weight * values.astype(jnp.float32)).reshape(blocks, values.shape[0] // blocks, n)
    to_scales = summed(each.sum(1), "scales").astype(scales.dtype)
    to_values = None
    if differentiated(kept).values is not None:  # a weight that is not quantized, whose scales are one
        to_values = to_weight.astype(values.dtype)
    if kept.lhs_scales is None:
        return Operands(to_rows.astype(dtype), to_values, to_scales)
    m, blocks = kept.lhs_scales.shape
    of_rows = (to_rows * kept.lhs.astype(jnp.float32)).reshape(m, blocks, values.shape[0] // blocks)
    return Operands(None, to_values, to_scales, lhs_scales=summed(of_rows.sum(-1), "lhs_scales"))


multiply.defvjp(_forward, _backward)


def _batched(product: QuantizedProduct, operands: Operands) -> Array:
    """One kernel for rows of a batch that share a weight; else one after another."""

    @custom_vmap
    def call(operands: Operands) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(operands))
        return _multiplied(product, operands) if mesh is None else sharded_product(_multiplied, mesh, product, operands)

    @call.def_vmap
    def _(size: int, mapped: Sequence[Operands], operands: Operands) -> tuple[Array, bool]:
        its = mapped[0]
        if not any(getattr(its, name) for name in OF_COLUMNS):
            of_rows = {}
            for name in ("lhs", "residual", "lhs_scales"):
                if (array := getattr(operands, name)) is not None:
                    every = array if getattr(its, name) else jnp.broadcast_to(array, (size, *array.shape))
                    of_rows[name] = every.reshape(size * every.shape[1], array.shape[-1])
            out = _batched(product, operands._replace(**of_rows))
            return out.reshape(size, operands.lhs.shape[-2], out.shape[-1]), True
        return each_of_batch(functools.partial(_batched, product), size, (its,), (operands,)), True

    return call(operands)


def _multiplied(product: QuantizedProduct, operands: Operands) -> Array:
    backend = product.backend
    if backend.implementation is None and backend.chip is not None and not backend.chip.unpacks_bytes:
        return by_xla(product, operands)
    by = (functools.partial(run, product) for run in (by_pallas, by_xla))
    return dispatched(backend, *by, operands)
