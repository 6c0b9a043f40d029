"""The backward pass of `matmul`: from the cotangent of the output to the cotangents of the operands.

    dz = activation'(z) · scale · dout       dlhs = lhs_fn'(dz @ rhs_fn(rhs)ᵀ)       drhs = rhs_fn'(lhs_fn(lhs)ᵀ @ dz)

Transposes are index maps. A cheap activation's derivative is computed inside both products, from blocks of dout and z;
an expensive one once, before them, because each product would compute it again for every block of the other operand.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.kernels.epilogue import Functions
from systolic.ops.engine.activations import op_count_of
from systolic.ops.engine.cuts import Axes, out_cut_of
from systolic.ops.engine.shapes import broadcast_shapes
from systolic.ops.matmul.across_chips import gathers
from systolic.ops.matmul.compute import compute
from systolic.ops.matmul.product import Fn, Product, kept_dtype
from systolic.spec import MatmulSpec, Operands, Side

# Vector operations an element up to which the activation's derivative is computed inside the products.
_CHEAP_DERIVATIVE_OPS = 6


def operand_cotangents(
    product: Product,
    operands: Operands,
    z: Array | None,
    requested: Operands,
    dout: Array,
    *,
    lhs_cut: tuple[Axes, ...] | None = None,
) -> Operands:
    """Return the cotangents of the requested operands, None for the others.

    Args:
      z: the sum with the bias, kept if there is an activation or a scale.
      requested: for each operand, True if its cotangent is requested; never for integers.
      dout: cotangent of the output.
      lhs_cut: the cuts of lhs over a mesh with explicit axes, if they differ from the array's own cuts.
    """
    wide = dout.astype(jnp.float32)
    scaled = wide if operands.scale is None else wide * operands.scale.astype(jnp.float32)
    dz, source, fn = _derivative(product, operands, z, dout, scaled)
    dscale = None
    if requested.scale:
        assert z is not None
        unscaled = z.astype(jnp.float32)
        unscaled = unscaled if product.functions.activation is None else product.functions.activation(unscaled)
        if operands.residual is not None:
            unscaled = unscaled + operands.residual.astype(jnp.float32)
        dscale = wide * unscaled
    cuts = (out_cut_of(operands.lhs) if lhs_cut is None else lhs_cut), out_cut_of(operands.rhs)
    dlhs, dlhs_args, source = _operand_cotangents("lhs", product, operands, requested, source, fn, cuts[0])
    drhs, drhs_args, _ = _operand_cotangents("rhs", product, operands, requested, source, fn, cuts[1])
    return Operands(
        lhs=dlhs,
        rhs=drhs,
        bias=summed(dz if requested.bias else None, operands.bias),
        residual=summed(scaled if requested.residual else None, operands.residual),
        scale=summed(dscale, operands.scale),
        lhs_args=dlhs_args,
        rhs_args=drhs_args,
    )


def _derivative(
    product: Product, operands: Operands, z: Array | None, dout: Array, scaled: Array
) -> tuple[Array, tuple[Array, ...], Fn | None]:
    """Return dz in float32; and the arrays and the function from which the products get it as an operand."""
    multiplied = MatmulSpec.of(1, 1, 1, kept_dtype(operands)).dtype_multiplied
    if product.functions.activation is None:
        if operands.scale is None:
            source = dout if jnp.issubdtype(dout.dtype, jnp.floating) else scaled
            return scaled, (source.astype(multiplied),), None
        return scaled, (scaled.astype(multiplied),), None
    assert z is not None
    activation = product.functions.activation
    dz = jax.vjp(activation, z.astype(jnp.float32))[1](scaled)[0]
    if operands.scale is None and _derivative_ops(activation) <= _CHEAP_DERIVATIVE_OPS:
        return dz, (dout, z), _derivative_fn(activation, multiplied)
    return dz, (dz.astype(multiplied),), None


@functools.lru_cache(maxsize=256)
def _derivative_fn(activation: Fn, dtype: str) -> Fn:
    def derivative(dout: Array, z: Array) -> Array:
        return jax.vjp(activation, z.astype(jnp.float32))[1](dout.astype(jnp.float32))[0].astype(dtype)

    return derivative


@functools.lru_cache(maxsize=256)
def _derivative_ops(activation: Fn) -> int:
    tile = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return op_count_of(_derivative_fn(activation, "float32"), tile, tile).total


def _operand_cotangents(
    side: Side,
    product: Product,
    operands: Operands,
    requested: Operands,
    source: tuple[Array, ...],
    fn: Fn | None,
    cut: tuple[Axes, ...] | None,
) -> tuple[Any, tuple[Any, ...], tuple[Array, ...]]:
    """Return the cotangents of lhs or rhs, stored like it, and of its function's arguments; None if not requested.

    The last result is `source`, with the rows of all devices if a kernel has gathered them.
    """
    is_lhs = side == "lhs"
    # From the view of lhs: its array and function, and the other operand's array and function.
    own_operands, functions = (
        (operands, product.functions) if is_lhs else (operands.swapped(), product.functions.swapped())
    )
    array, args, own_fn = own_operands.lhs, own_operands.lhs_args, functions.lhs
    transposed, other_transposed = (product.transpose_lhs, product.transpose_rhs)[:: 1 if is_lhs else -1]
    own_requested, args_requested = (
        (requested.lhs, requested.lhs_args) if is_lhs else (requested.rhs, requested.rhs_args)
    )
    if not own_requested and not any(args_requested):
        return None, tuple(None for _ in args), source
    # dz is the left factor of the gradient of lhs, and the right one of rhs's; stored transposed, the other way.
    dz_left = is_lhs != transposed
    # dz is stored as [m, n]; as the left factor it is needed as [m, n] for lhs and [n, m] for rhs, and so on.
    transposes = (is_lhs != dz_left, other_transposed == transposed)
    reduced = broadcast_shapes(source[0].shape[:-2], own_operands.rhs.shape[:-2]) != array.shape[:-2]
    fused = own_fn is not None and not args and not reduced
    is_whole = own_fn is None or fused
    factors = Operands(
        lhs=source[0],
        rhs=own_operands.rhs,
        lhs_args=source[1:],
        rhs_args=own_operands.rhs_args,
        primal=array if fused else None,
    )
    factor_functions = Functions(lhs=fn, rhs=functions.rhs, primal=own_fn if fused else None)
    if not dz_left:
        factors, factor_functions, transposes = factors.swapped(), factor_functions.swapped(), transposes[::-1]
    gradient = product.anew(
        dtype_out=array.dtype.name if is_whole and not reduced else "float32",
        transpose_lhs=transposes[0],
        transpose_rhs=transposes[1],
        functions=factor_functions,
        activation="",
        out_cut=None if reduced else cut,
    )
    gradient = replace(gradient, keeps_lhs=dz_left and gathers(gradient, factors))
    gradient_sum, *whole_source = compute(gradient, factors)
    source = tuple(whole_source) or source
    if is_whole:
        return summed(gradient_sum, array), (), source
    assert own_fn is not None
    through = _through(own_fn, gradient_sum, array, args)
    cotangents_in = [
        cotangent_in if is_wanted else None
        for cotangent_in, is_wanted in zip(through, (own_requested, *args_requested), strict=True)
    ]
    return cotangents_in[0], tuple(cotangents_in[1:]), source


def _through(fn: Fn, cotangent: Array, array: Array, args: tuple[Array, ...]) -> tuple[Any, ...]:
    """Return a cotangent taken back through the function of an operand, over whole arrays."""
    value, back = jax.vjp(fn, array, *args)
    return back(_summed_to(cotangent, value.shape).astype(value.dtype))


def summed(wide: Array | None, like: Array | None) -> Any:
    """Sum over the broadcast dimensions, in the dtype of `like`; None stays None."""
    if wide is None or like is None:
        return None
    return _summed_to(wide, like.shape).astype(like.dtype)


def _summed_to(wide: Array, shape: tuple[int, ...]) -> Array:
    axes = tuple(axis for axis, (size, own_size) in enumerate(zip(wide.shape, shape, strict=True)) if size != own_size)
    return wide.sum(axes, keepdims=True) if axes else wide
