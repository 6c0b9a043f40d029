"""Compute products across chips by Pallas or XLA, and their derivatives: each product is the other's derivative.

The cotangent of the x of all-gather × matmul is a matmul × reduce-scatter with the transposed weights, and the other
way round. The cotangent of the weights needs rows of all devices, which XLA gathers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.compat import all_gather_alike
from systolic.ops.collective.arguments import Call
from systolic.ops.collective.choice import RingChoice, chosen
from systolic.ops.collective.noted import noted
from systolic.ops.collective.pallas import by_pallas, sizes_of
from systolic.ops.collective.product import Kind, RingProduct
from systolic.ops.collective.wire import packed, unpacked
from systolic.ops.collective.xla import all_summed, by_xla
from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.derivative import bilinear, fused_after_sum
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.dtypes import fused_array
from systolic.ops.quantized.array import Quantized
from systolic.schedule import IllegalTilesError

_MIRRORED: dict[Kind, Kind] = {"gather": "scatter", "scatter": "gather"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Multiply(OfProduct):
    """A product without epilogue, for `engine.derivative`."""

    product: RingProduct

    def multiply(self, lhs: Array, rhs: Array, rest: Any) -> Array:
        return _product(self.product, lhs, rhs, None)

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Any) -> Array:
        return multiply(self._mirrored(lhs), cotangent.astype(lhs.dtype), rhs.T)

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Any) -> Array:
        rows = cotangent.astype(lhs.dtype)
        gather = functools.partial(lax.all_gather, axis_name=self.product.axis_name, tiled=True)
        left, right = (gather(lhs), rows) if self.product.kind == "gather" else (lhs, gather(rows))
        precision = lax.Precision[self.product.precision.upper()]
        return jnp.matmul(left.T, right, precision=precision, preferred_element_type=rhs.dtype)

    def _mirrored(self, lhs: Array) -> RingProduct:
        return replace(self.product, kind=_MIRRORED[self.product.kind], dtype_out=lhs.dtype.name, wire_dtype=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MultiplyScaled(_Multiply):
    """A product with a quantized weight: linear in x and in the scales, while the values are the rest."""

    def multiply(self, lhs: Array, rhs: Array, rest: Array) -> Array:
        return _product(self.product, lhs, Quantized(rest, rhs), None)

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Array) -> Array:
        if self.product.kind == "scatter" or rhs.shape[0] > 1:
            # Each device has scales of its own, by which rows would be multiplied after they were gathered.
            return _Multiply.lhs_cotangent(self, cotangent, lhs, Quantized(rest, rhs).dequantize(lhs.dtype), rest)
        mirrored = replace(self._mirrored(lhs), transpose_rhs=not self.product.transpose_rhs)
        unit_scales = jnp.ones_like(rhs[:, :1])
        return multiply(mirrored, (cotangent * rhs).astype(lhs.dtype), Quantized(rest, unit_scales))

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Array) -> Array:
        to_weight = _Multiply.rhs_cotangent(self, cotangent, lhs, rhs.astype(jnp.float32), rest)
        (to_scales,) = jax.vjp(lambda scales: Quantized(rest, scales).dequantize(), rhs)[1](to_weight)
        return to_scales


def computed(call: Call) -> Array:
    """Return the result of a call, as the caller expects it."""
    if call.is_plain:
        out = multiply(call.product, call.x, call.w)
    else:
        out = multiply_fused(call.product, call.x, call.w, call.bias)
    return out.reshape(call.shape).astype(call.dtype)


def all_reduced(call: Call, row_shape: tuple[int, ...], bias: Any) -> Array:
    """Return all rows of the sum of a call that scatters them, without the rows of its padding.

    Args:
      row_shape: of the caller's x, without k.
      bias: the caller's, which is the same on all devices, also for the check of what varies over a mesh.
    """
    product, axis_name = call.product, call.product.axis_name
    choice = _choice(product, call.x, call.w, all_reduces=True)
    by_psum = product.backend.implementation == "xla" if choice is None else choice.xla_is_faster
    if by_psum and product.wire_dtype is None:
        x = call.x if choice is None else noted(call.x, choice)
        bias = None if bias is None else fused_array(bias, "bias")
        out = all_summed(product, x[: math.prod(row_shape)], call.w, bias)
        return out.reshape(*row_shape, -1).astype(call.dtype)
    parts = computed(call)
    gathered = (
        all_gather_alike(parts, axis_name)
        if product.wire_dtype is None
        else all_gathered(axis_name, product.wire_dtype, parts)
    )
    return gathered[: row_shape[0]]


def multiply(product: RingProduct, x: Array, w: Array | Quantized) -> Array:
    """Return the product, differentiable in both modes, any number of times, but not with respect to values."""
    if isinstance(w, Quantized):
        return bilinear(_MultiplyScaled(product=product), x, w.scales, w.values)
    return bilinear(_Multiply(product=product), x, w, ())


def multiply_fused(product: RingProduct, x: Array, w: Array | Quantized, bias: Array | None) -> Array:
    """Return `activation(product + bias)`, in one kernel unless the derivative needs the sum."""

    def in_two(operands: tuple[Array, Array | Quantized, Array | None]) -> Array:
        x, w, bias = operands
        kept_dtype = "float32" if x.dtype == jnp.float32 else product.dtype_out
        return product.finished((multiply(replace(product.plain, dtype_out=kept_dtype), x, w),), bias)[0]

    def kernel(operands: tuple[Array, Array | Quantized, Array | None]) -> Array:
        return _product(product, *operands)

    return fused_after_sum(kernel, in_two, bool(product.activation), (x, w, bias))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def all_gathered(axis_name: str, wire_dtype: str, parts: Array) -> Array:
    """Return the rows of all devices, the same on each, which travel in eight bits; the derivative does not round."""
    gathered = all_gather_alike(packed(parts.reshape(-1, parts.shape[-1]), wire_dtype), axis_name)
    return unpacked(gathered, wire_dtype).astype(parts.dtype).reshape(-1, *parts.shape[1:])


@all_gathered.defjvp
def _all_gathered_tangent(
    axis_name: str, wire_dtype: str, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    return all_gathered(axis_name, wire_dtype, *primals), all_gather_alike(tangents[0], axis_name)


def _product(product: RingProduct, x: Array, w: Array | Quantized, bias: Array | None) -> Array:
    def faster(x: Array, w: Array | Quantized, bias: Array | None) -> Array:
        choice = _choice(product, x, w)
        if choice is None:
            return results(product, x, (w,), bias)[0]
        # If no kernel is legal, `results` warns.
        compute = by_xla if choice.xla_is_faster else results
        return compute(product, noted(x, choice), (w,), bias)[0]

    return one_at_a_time(faster, x, w, bias)


def _choice(product: RingProduct, x: Array, w: Array | Quantized, *, all_reduces: bool = False) -> RingChoice | None:
    """Return the choice for a product of `jax.shard_map`; None if the caller has chosen, or if no chip is known."""
    backend = product.backend
    if backend.implementation is not None or backend.chip is None:
        return None
    try:
        in_ring_order = product.ring == tuple(range(product.devices))
        sizes = sizes_of(product, x, (w,))
        choice = chosen(sizes, backend.chip, all_reduces=all_reduces, in_ring_order=in_ring_order)
    except IllegalTilesError as error:
        choice = RingChoice(by_kernel=False, reason=str(error))
    if product.wire_dtype is not None and choice.spec is not None:
        reason = f"the call sets wire_dtype={product.wire_dtype}, which chooses the kernel"
        return RingChoice(by_kernel=True, reason=reason, product=choice.product, spec=choice.spec)
    return replace(choice, by_xla_alone=not choice.by_kernel)


def results(product: RingProduct, x: Array, w: tuple[Array | Quantized, ...], bias: Array | None) -> tuple[Array, ...]:
    """Return the results of a product without derivative, by Pallas or by XLA."""
    pallas, xla = (functools.partial(run, product) for run in (by_pallas, by_xla))
    return dispatched(product.backend, pallas, xla, x, w, bias)
