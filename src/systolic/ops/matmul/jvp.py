"""`matmul` with its derivative, in forward and in reverse mode, by products of the same kind.

    sum = lhs_fn(lhs) @ rhs_fn(rhs)          z = sum + bias          out = (activation(z) + residual) · scale

The tangent of the output is linear in the tangents of the operands. `ops.linear` makes one equation of it, which JAX
transposes by `vjp.py`: that is the backward pass. Both modes work, in any order. In a derivative of a derivative, the
products are differentiated by XLA (`compute.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from jax import Array

from systolic.compat import varying_alike
from systolic.ops.engine.backend import OfProduct
from systolic.ops.engine.cuts import Axes, axes_of, cut_like, out_cut_of
from systolic.ops.engine.linear import jvp_of_moving, linear, perturbed
from systolic.ops.engine.shapes import fold, is_symbolic
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.matmul.across_chips import gathers
from systolic.ops.matmul.compute import compute
from systolic.ops.matmul.product import Fn, Product, kept_dtype, output_shape
from systolic.ops.matmul.vjp import operand_cotangents
from systolic.spec import Operands

_OPERANDS: tuple[Literal["lhs", "rhs"], ...] = ("lhs", "rhs")


def multiply(product: Product, operands: Operands) -> Array:
    """Return the result, [*batch, m, n], differentiable with regard to every array."""
    return multiplied_by(_multiply, product, operands)


def multiplied_by(rule: Callable[[Product, Operands], Any], product: Product, operands: Operands) -> Array:
    """Return the result of a differentiable function of matrices, for operands of any batch."""
    operands, batch = folded(product, operands)
    if batch is not None and product.out_cut is not None:
        product = replace(product, out_cut=(product.out_cut[0], product.out_cut[-1]))
    leaves, structure = jax.tree.flatten(operands)
    # Under `shard_map` a gradient varies over every axis over which any operand does. Making all of them vary is
    # differentiable: the gradient of an operand that is the same everywhere is summed there.
    out = cast(Array, rule(product, jax.tree.unflatten(structure, varying_alike(leaves))))
    return out if batch is None else out.reshape(*batch, -1, out.shape[-1])


def folded(product: Product, operands: Operands) -> tuple[Operands, tuple[int, ...] | None]:
    """Return a batch that shares rhs as one matrix, so that the gradient of rhs is one product, not a sum of many."""
    if is_symbolic(operands) or any(0 in array.shape for array in operands.present()):
        return operands, None
    # JAX joins cut dimensions only if the first of them alone is cut.
    cuts = (product.out_cut or (), *(tuple(axes_of(array)) for array in operands.present()))
    if explicit_mesh(operands.present()) and any(any(cut[1:-1]) for cut in cuts):
        return operands, None
    return fold(product.transpose_lhs, operands)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _multiply(product: Product, operands: Operands) -> Array:
    return compute(product, operands)[0]


@functools.partial(_multiply.defjvp, symbolic_zeros=True)
def _with_tangent(product: Product, primals: tuple[Operands], tangents: tuple[Operands]) -> tuple[Array, Any]:
    (operands,) = primals
    leaves, structure = jax.tree.flatten(operands)
    keeps = product.functions.activation is not None or operands.scale is not None
    computed = replace(product, kept_sum=kept_dtype(operands)) if keeps else product
    computed = replace(computed, keeps_lhs=gathers(computed, operands))
    out, *residuals = compute(computed, operands)
    tangent = _Tangent(product=product, structure=structure)
    if computed.keeps_lhs:  # the rows of all devices are for the gradient of rhs
        tangent, leaves[0] = replace(tangent, lhs_cut=out_cut_of(operands.lhs)), residuals.pop()
    return out, linear(tangent, [*leaves, *residuals], perturbed(jax.tree.leaves(tangents[0])), [out])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tangent(OfProduct):
    """The derivative of `_multiply` for `ops.linear`. Its residuals are the operands and, if it is kept, z."""

    product: Product
    structure: Any  # of `Operands`
    lhs_cut: tuple[Axes, ...] | None = None  # the cuts of lhs, where the residual has the rows of all devices

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        operands, z = self._unpacked(residuals)
        return [_output_tangent(self.product, operands, z, self.structure.unflatten(arguments))]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        operands, z = self._unpacked(residuals)
        is_wanted = self.structure.unflatten([argument is not None for argument in arguments])
        cotangents_in = operand_cotangents(self.product, operands, z, is_wanted, *cotangents, lhs_cut=self.lhs_cut)
        lhs, *others = self.structure.flatten_up_to(cotangents_in)
        lhs = lhs if self.lhs_cut is not None else cut_like(lhs, operands.lhs)
        return [lhs, *map(cut_like, others, residuals[1 : self.structure.num_leaves])]

    def _unpacked(self, residuals: Sequence[Array]) -> tuple[Operands, Array | None]:
        count = self.structure.num_leaves
        return self.structure.unflatten(residuals[:count]), next(iter(residuals[count:]), None)


def _output_tangent(product: Product, operands: Operands, z: Array | None, tangents: Operands) -> Array:
    """Return the tangent of the output, from the tangents of the operands, which are None if they are zero."""
    dvalue = sum_tangent(product, operands, tangents)
    if tangents.bias is not None:
        dvalue = _added(dvalue, tangents.bias.astype(jnp.float32))
    value = None if z is None else z.astype(jnp.float32)
    if product.functions.activation is not None:
        assert value is not None
        if dvalue is None:
            value = product.functions.activation(value)
        else:
            value, dvalue = jax.jvp(product.functions.activation, (value,), (jnp.broadcast_to(dvalue, value.shape),))
    if tangents.residual is not None:
        dvalue = _added(dvalue, tangents.residual.astype(jnp.float32))
    dout = dvalue
    if operands.scale is not None and dvalue is not None:
        dout = dvalue * operands.scale.astype(jnp.float32)
    if tangents.scale is not None:
        assert value is not None
        if operands.residual is not None:
            value = value + operands.residual.astype(jnp.float32)
        dout = _added(dout, value * tangents.scale.astype(jnp.float32))
    assert dout is not None
    return jnp.broadcast_to(dout, output_shape(product, operands)).astype(product.dtype_out)


def sum_tangent(product: Product, operands: Operands, tangents: Operands) -> Array | None:
    """Return dlhs @ rhs + lhs @ drhs in float32: a product for each changing operand, the second added to the first."""
    total = None
    for side in _OPERANDS:
        change = _operand_tangent(side, product, operands, tangents)
        if change is None:
            continue
        functions = replace(product.functions, activation=None, **{side: None})
        linear = product.anew(dtype_out="float32", activation="", functions=functions)
        alone = {side: change, f"{side}_args": (), "bias": None, "residual": total, "scale": None}
        (total,) = compute(linear, operands._replace(**alone))
    return total


def _operand_tangent(
    side: Literal["lhs", "rhs"], product: Product, operands: Operands, tangents: Operands
) -> Array | None:
    fn: Fn | None = getattr(product.functions, side)
    arrays, changes = ([getattr(tree, side), *getattr(tree, f"{side}_args")] for tree in (operands, tangents))
    if fn is None or all(change is None for change in changes):
        return changes[0]
    return jvp_of_moving(fn, arrays, changes)[1]


def _added(total: Array | None, term: Array) -> Array:
    return term if total is None else total + term
