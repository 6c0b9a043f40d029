"""Computes products with quantised weights, by Pallas or by XLA, and their derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from systolic.ops.cuts import cut_like
from systolic.ops.dispatch import dispatched, each_of_batch
from systolic.ops.quantised.array import Quantized
from systolic.ops.quantised.pallas import by_pallas
from systolic.ops.quantised.product import Operands, QuantizedProduct
from systolic.ops.quantised.quantize import dequantize
from systolic.ops.quantised.sharded import Summed, sharded_cotangents, sharded_finish, sharded_product
from systolic.ops.quantised.xla import by_xla, finished, quantised_rows
from systolic.ops.target import explicit_mesh


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(product: QuantizedProduct, operands: Operands) -> Array:
    """The product, differentiable in reverse mode with regard to all but the values.

    The derivative goes straight through the rounding of rows that the kernel quantises.
    """
    return _batched(product, operands)


def _forward(product: QuantizedProduct, operands: Operands) -> tuple[Array, Callable[..., Any] | Operands]:
    if product.function is None and operands.bias is None and operands.residual is None:
        return multiply(product, operands), operands
    # The derivative of the activation needs the sum, so that is stored, and XLA does the rest.
    plain = product.plain

    def in_two(lhs: Array, scales: Array, bias: Any, residual: Any, lhs_scales: Any) -> Array:
        of_product = operands._replace(lhs=lhs, scales=scales, bias=None, residual=None, lhs_scales=lhs_scales)
        total: Any = multiply(plain, of_product)
        mesh = explicit_mesh([total])
        if mesh is not None:
            return sharded_finish(mesh, product, total, bias, residual)
        return finished(product, total, operands._replace(bias=bias, residual=residual))

    its = operands
    return jax.vjp(in_two, its.lhs, its.scales, its.bias, its.residual, its.lhs_scales)


def _backward(product: QuantizedProduct, kept: Callable[..., Any] | Operands, cotangent: Array) -> tuple[Operands]:
    if not isinstance(kept, Operands):
        lhs, scales, bias, residual, lhs_scales = kept(cotangent)
        return (Operands(lhs, None, scales, bias, residual, lhs_scales),)
    mesh = explicit_mesh(jax.tree.leaves(kept))
    differentiate = functools.partial(_cotangents, product)
    if mesh is None:
        return (differentiate(kept, cotangent, lambda whole, _: whole),)
    found = sharded_cotangents(differentiate, mesh, product, kept, cotangent)
    return (Operands(*map(cut_like, found, kept)),)


def _cotangents(product: QuantizedProduct, kept: Operands, cotangent: Array, summed: Summed) -> Operands:
    """Of floats beside the weight, and of all scales.

    Args:
      summed: adds what other devices have of a sum.
    """
    values, scales, rows = kept.values, kept.scales, quantised_rows(product, kept)
    dtype = kept.lhs.dtype if kept.lhs_scales is None else jnp.dtype("float32")
    given = cotangent.astype(dtype)
    weight = dequantize(Quantized(values, scales), dtype)
    to_rows = summed(jnp.matmul(given, weight.mT, preferred_element_type=jnp.float32), "n")
    # XLA leaves these out where nobody asks for derivatives of scales.
    left = kept.lhs if rows is None else rows.numbers.astype(dtype)
    to_weight = summed(jnp.matmul(left.mT, given, preferred_element_type=jnp.float32), "m")
    each = (to_weight * values.astype(jnp.float32)).reshape(scales.shape[0], -1, scales.shape[1])
    to_scales = summed(each.sum(1), "scales").astype(scales.dtype)
    if kept.lhs_scales is None:
        return Operands(to_rows.astype(dtype), None, to_scales)
    of_rows = (to_rows * kept.lhs.astype(jnp.float32)).reshape(*kept.lhs_scales.shape, -1)
    return Operands(None, None, to_scales, lhs_scales=summed(of_rows.sum(-1), "lhs_scales"))


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
        if not (its.values or its.scales or its.bias):
            of_rows = {}
            for name in ("lhs", "residual", "lhs_scales"):
                if (array := getattr(operands, name)) is not None:
                    every = array if getattr(its, name) else jnp.broadcast_to(array, (size, *array.shape))
                    of_rows[name] = every.reshape(-1, array.shape[-1])
            out = _batched(product, operands._replace(**of_rows))
            return out.reshape(size, -1, out.shape[-1]), True
        return each_of_batch(functools.partial(_batched, product), size, (its,), (operands,)), True

    return call(operands)


def _multiplied(product: QuantizedProduct, operands: Operands) -> Array:
    by = (functools.partial(run, product) for run in (by_pallas, by_xla))
    return dispatched(product.backend, *by, operands)
