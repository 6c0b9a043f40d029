"""`gated_matmul` with its derivatives in forward and reverse mode, computed by the same kernels.

    gate = x @ w_gate          up = x @ w_up          out = activation(gate) · up

When differentiated, the forward kernel also writes both slopes that the cotangent is multiplied by.

    dgate = dout · (up · activation'(gate))           dup = dout · activation(gate)
    dx = dgate @ w_gateᵀ + dup @ w_upᵀ                dw_gate = xᵀ @ dgate          dw_up = xᵀ @ dup

dgate and dup are never stored: one kernel computes dx, another both weights' gradients, from blocks of dout and slopes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.kernels.epilogue import Functions
from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.cuts import Axes, out_cut_of
from systolic.ops.engine.linear import linear, perturbed
from systolic.ops.engine.shapes import broadcast_shapes
from systolic.ops.matmul.across_chips import gathers
from systolic.ops.matmul.compute import compute
from systolic.ops.matmul.jvp import multiplied_by, sum_tangent
from systolic.ops.matmul.named import function_named
from systolic.ops.matmul.product import Product, kept_dtype, output_shape
from systolic.ops.matmul.vjp import summed
from systolic.spec import MatmulSpec, Operands


def multiply(product: Product, operands: Operands) -> Array:
    """Return the result, [*batch, m, n], differentiable with respect to every array."""
    return multiplied_by(_multiply, product, operands)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _multiply(product: Product, operands: Operands) -> Array:
    return compute(product, _complete(product, operands))[0]


def _complete(product: Product, operands: Operands) -> Operands:
    """Return the operands of the kernel: an array of both weights is the right-hand side of both products."""
    return operands._replace(up=operands.rhs) if product.side_by_side else operands


@functools.partial(_multiply.defjvp, symbolic_zeros=True)
def _with_tangent(product: Product, primals: tuple[Operands], tangents: tuple[Operands]) -> tuple[Array, Any]:
    (operands,) = primals
    complete = _complete(product, operands)
    computed = replace(product, kept_sum=kept_dtype(operands))
    computed = replace(computed, keeps_lhs=gathers(computed, complete))
    out, up_slope, gate_slope, *whole_x = compute(computed, complete)
    count = 2 if product.side_by_side else 3  # x, and one or two arrays of weights
    x, *weights = list(operands)[:count]
    tangent = _Tangent(product=product, x_cut=out_cut_of(operands.lhs))
    # The rows of all devices, if a kernel has gathered them, are for the gradients of weights.
    residuals = [*(whole_x or [x]), *weights, gate_slope, up_slope]
    return out, linear(tangent, residuals, perturbed(list(tangents[0])[:count]), [out])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tangent(OfProduct):
    """The derivative of `_multiply` for `ops.linear`, with respect to x and both weights; both slopes are residuals."""

    product: Product
    x_cut: tuple[Axes, ...] | None  # over a mesh with explicit axes; the residual may have the rows of all devices

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        x, *weights, gate_slope, up_slope = residuals
        dx, *dweights = arguments
        single = self.product.anew(pairing=None, side_by_side=False)
        if self.product.side_by_side:
            weights = jnp.split(weights[0], 2, axis=-1)
            dweights = [None] * 2 if dweights[0] is None else jnp.split(dweights[0], 2, axis=-1)
        terms = [
            total * slope.astype(jnp.float32)
            for weight, dweight, slope in zip(weights, dweights, (gate_slope, up_slope), strict=True)
            if (total := sum_tangent(single, Operands(lhs=x, rhs=weight), Operands(lhs=dx, rhs=dweight))) is not None
        ]
        shape = output_shape(single, Operands(lhs=x, rhs=weights[0]))
        return [jnp.broadcast_to(functools.reduce(jnp.add, terms), shape).astype(self.product.dtype_out)]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        x, *weights, gate_slope, up_slope = residuals
        wanted_x, *weights_wanted = (argument is not None for argument in arguments)
        (dout,) = cotangents
        dx = _dx(self.product, x, self.x_cut, weights, dout, (gate_slope, up_slope)) if wanted_x else None
        slopes_wanted = weights_wanted * 2 if self.product.side_by_side else weights_wanted
        slopes = [slope for slope, is_wanted in zip((gate_slope, up_slope), slopes_wanted, strict=True) if is_wanted]
        dweights = iter(_dweights(self.product, x, weights[0], dout, slopes) if slopes else ())
        return [dx, *(next(dweights) if is_wanted else None for is_wanted in weights_wanted)]


def _dx(
    product: Product,
    x: Array,
    cut: tuple[Axes, ...] | None,
    weights: Sequence[Array],
    dout: Array,
    slopes: tuple[Array, ...],
) -> Array:
    gate, up = (weights[0], weights[0]) if product.side_by_side else weights
    (dx,) = compute(
        product.anew(
            dtype_out=_dtype_out(x, dout, gate),
            transpose_rhs=True,
            functions=Functions(lhs=_slopes(x, gate)),
            activation="",
            pairing="added",
            out_cut=None if dout.shape[:-2] != x.shape[:-2] else cut,
        ),
        Operands(lhs=dout, lhs_args=slopes, rhs=gate, up=up),
    )
    return summed(dx, x)


def _dweights(product: Product, x: Array, weight: Array, dout: Array, slopes: Sequence[Array]) -> list[Array]:
    dweights = compute(
        product.anew(
            dtype_out=_dtype_out(weight, dout, x),
            transpose_lhs=True,
            functions=Functions(rhs=_slopes(x, weight)),
            activation="",
            pairing="apart" if len(slopes) > 1 else None,
            out_cut=None if dout.shape[:-2] != weight.shape[:-2] else out_cut_of(weight),
        ),
        Operands(lhs=x, rhs=dout, rhs_args=tuple(slopes)),
    )
    return [summed(dweight, weight) for dweight in dweights]


def _slopes(x: Array, weight: Array) -> Any:
    return function_named("slopes", MatmulSpec.of(1, 1, 1, kept_dtype(Operands(lhs=x, rhs=weight))).dtype_multiplied)


def _dtype_out(like: Array, first: Array, second: Array) -> str:
    """Return the dtype of a gradient: float32 if it must still be summed over a batch that its operand lacks."""
    reduced = broadcast_shapes(first.shape[:-2], second.shape[:-2]) != like.shape[:-2]
    return "float32" if reduced else like.dtype.name
