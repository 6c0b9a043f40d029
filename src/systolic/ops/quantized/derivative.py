"""Compute products with quantized weights, by Pallas or by XLA, and their derivatives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.cuts import cut_like
from systolic.ops.engine.derivative import fused_after_sum
from systolic.ops.engine.dispatch import dispatched, each_of_batch
from systolic.ops.engine.linear import linear, perturbed
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


def multiply(product: QuantizedProduct, operands: Operands) -> Array:
    """Return the product, differentiable in both modes with respect to everything but values of few bits.

    The derivative ignores the rounding of rows that the kernel quantizes (straight-through estimator).
    """
    if product.is_plain(operands):
        return _plain(product, operands)

    def in_two(operands: Operands) -> Array:
        halves = product.apart(operands)
        totals: Any = [multiply(product.plain, weight) for weight in each_weight(halves)]
        mesh = explicit_mesh(totals)
        if mesh is not None:
            return sharded_finish(mesh, product, totals, halves)
        return finished(product, totals, halves)

    # The derivative of an activation needs the sum, and the derivative of a gated product both sums.
    return fused_after_sum(functools.partial(_batched, product), in_two, True, operands)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _plain(product: QuantizedProduct, operands: Operands) -> Array:
    return _batched(product, operands)


@functools.partial(_plain.defjvp, symbolic_zeros=True)
def _plain_tangent(product: QuantizedProduct, primals: tuple[Operands], tangents: tuple[Operands]) -> tuple[Array, Any]:
    (operands,) = primals
    out = _plain(product, operands)
    leaves, structure = jax.tree.flatten(operands)
    differentiable = differentiated(operands)
    changes = [
        change if array is not None else None
        for array, change, is_there in zip(differentiable, tangents[0], operands, strict=True)
        if is_there is not None
    ]
    arguments = [None if change is None else perturbed([change])[0] for change in changes]
    if all(argument is None for argument in arguments):
        return out, jnp.zeros_like(out)
    return out, linear(_PlainTangent(product=product, structure=structure), leaves, arguments, [out])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainTangent(OfProduct):
    """The derivative of `_plain` for `engine.linear`. Its residuals are the operands."""

    product: QuantizedProduct
    structure: Any  # of the operands

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        operands, tangents = (self.structure.unflatten(arrays) for arrays in (residuals, arguments))
        # The product is linear in rows, values and scales alike: one product with each tangent in its place.
        terms = [
            _plain(self._product_of(name), operands._replace(**{name: tangent}))
            for name, tangent in tangents._asdict().items()
            if tangent is not None
        ]
        return [functools.reduce(jnp.add, terms)]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        operands: Operands = self.structure.unflatten(residuals)
        mesh = explicit_mesh(residuals)
        differentiate = functools.partial(_cotangents, self.product)
        if mesh is None:
            sums = differentiate(operands, cotangents[0], lambda partial_sum, _: partial_sum)
        else:
            sums = sharded_cotangents(differentiate, mesh, self.product, operands, cotangents[0])
            sums = Operands(*map(cut_like, sums, operands))
        flat = [cotangent for cotangent, operand in zip(sums, operands, strict=True) if operand is not None]
        return [
            cotangent if argument is not None else None for cotangent, argument in zip(flat, arguments, strict=True)
        ]

    def _product_of(self, name: str) -> QuantizedProduct:
        """Return the product with a tangent in place of an operand: the tangent of rows is not rounded."""
        return self.product.anew(**({"quantize_lhs": None} if name == "lhs" else {}))


def _cotangents(product: QuantizedProduct, operands: Operands, cotangent: Array, summed: Summed) -> Operands:
    """Return the cotangents of floats, and of all scales; `summed` adds the other devices' parts of a sum."""
    values, scales, rows = operands.values, operands.scales, quantized_rows(product, operands)
    dtype = operands.lhs.dtype if operands.lhs_scales is None else jnp.dtype("float32")
    scaled = cotangent.astype(dtype)
    weight = weight_of(operands, dtype)
    to_rows = summed(jnp.matmul(scaled, weight.mT, preferred_element_type=jnp.float32), "n")
    # XLA leaves these out if derivatives of scales are not used.
    left = operands.lhs if rows is None else rows.numbers.astype(dtype)
    to_weight = summed(jnp.matmul(left.mT, scaled, preferred_element_type=jnp.float32), "m")
    blocks, n = scales.shape
    products = (to_weight * values.astype(jnp.float32)).reshape(blocks, values.shape[0] // blocks, n)
    to_scales = summed(products.sum(1), "scales").astype(scales.dtype)
    to_values = None
    if differentiated(operands).values is not None:  # a weight that is not quantized: its scales are one
        to_values = to_weight.astype(values.dtype)
    if operands.lhs_scales is None:
        return Operands(to_rows.astype(dtype), to_values, to_scales)
    m, blocks = operands.lhs_scales.shape
    row_scales = (to_rows * operands.lhs.astype(jnp.float32)).reshape(m, blocks, values.shape[0] // blocks)
    return Operands(None, to_values, to_scales, lhs_scales=summed(row_scales.sum(-1), "lhs_scales"))


def _batched(product: QuantizedProduct, operands: Operands) -> Array:
    """Run one kernel for rows of a batch that share a weight; else one call after another."""

    @custom_vmap
    def call(operands: Operands) -> Array:
        mesh = explicit_mesh(jax.tree.leaves(operands))
        return _multiplied(product, operands) if mesh is None else sharded_product(_multiplied, mesh, product, operands)

    @call.def_vmap
    def _(size: int, mapped: Sequence[Operands], operands: Operands) -> tuple[Array, bool]:
        is_mapped = mapped[0]
        if not any(getattr(is_mapped, name) for name in OF_COLUMNS):
            row_arrays = {}
            for name in ("lhs", "residual", "lhs_scales"):
                if (array := getattr(operands, name)) is not None:
                    batched = array if getattr(is_mapped, name) else jnp.broadcast_to(array, (size, *array.shape))
                    row_arrays[name] = batched.reshape(size * batched.shape[1], array.shape[-1])
            out = _batched(product, operands._replace(**row_arrays))
            return out.reshape(size, operands.lhs.shape[-2], out.shape[-1]), True
        return each_of_batch(functools.partial(_batched, product), size, (is_mapped,), (operands,)), True

    return call(operands)


def _multiplied(product: QuantizedProduct, operands: Operands) -> Array:
    backend = product.backend
    if backend.implementation is None and backend.chip is not None and not backend.chip.unpacks_bytes:
        return by_xla(product, operands)
    runs = (functools.partial(run, product) for run in (by_pallas, by_xla))
    return dispatched(backend, *runs, operands)
