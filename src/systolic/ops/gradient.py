"""`matmul` with its gradient: both products of the backward pass are products of the same kind.

    sum = lhs_fn(lhs) @ rhs_fn(rhs)          z = sum + bias          out = (activation(z) + residual) · scale

    dz = activation'(z) · scale · dout       dlhs = lhs_fn'(dz @ rhs_fn(rhs)ᵀ)       drhs = rhs_fn'(lhs_fn(lhs)ᵀ @ dz)

Transposes are index maps. A cheap activation's derivative is computed inside both products, from blocks of dout and z;
a dear one once, ahead of them, because each product would compute it again for every block of the other operand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.compat import varying_alike
from systolic.ops.epilogue import epilogue_of, work_of
from systolic.ops.product import Product, Where, compute, fold
from systolic.problem import MatmulProblem, PrecisionName, Side

# Vector operations an element up to which the activation's derivative is computed inside the products.
_CHEAP_DERIVATIVE_OPS = 6

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """What `matmul` was asked for, but for the arrays."""

    where: Where
    precision: PrecisionName
    dtype_out: str
    transpose_lhs: bool
    transpose_rhs: bool
    lhs_fn: Fn | None
    rhs_fn: Fn | None
    activation: Fn | None
    activation_name: str


class Operands(NamedTuple):
    """The arrays, all with the same number of dimensions; see `ops.product`."""

    lhs: Array
    rhs: Array
    bias: Array | None
    residual: Array | None
    scale: Array | None
    lhs_args: tuple[Array, ...]
    rhs_args: tuple[Array, ...]


def multiply(formula: Formula, operands: Operands) -> Array:
    """The result, [*batch, m, n]; differentiable with regard to every array."""
    operands, batch = _folded(formula, operands)
    leaves, structure = jax.tree.flatten(operands)
    # Under `shard_map` a gradient varies over every axis over which any operand does. What makes all of them vary is
    # differentiable: the gradient of an operand that is the same everywhere is summed there.
    out = cast(Array, _multiply(formula, jax.tree.unflatten(structure, varying_alike(leaves))))
    return out if batch is None else out.reshape(*batch, -1, out.shape[-1])


def _folded(formula: Formula, operands: Operands) -> tuple[Operands, tuple[int, ...] | None]:
    """A batch that shares rhs as one matrix, so that the gradient of rhs is one product too, and not a sum of many."""
    around = [array for array in (operands.bias, operands.residual, operands.scale) if array is not None]
    arrays = [operands.lhs, operands.rhs, *operands.lhs_args, *operands.rhs_args, *around]
    if any(0 in array.shape for array in arrays):
        return operands, None
    sides: dict[Side, int] = {"lhs": len(operands.lhs_args), "rhs": len(operands.rhs_args), "out": len(around)}
    flat, batch = fold(formula.transpose_lhs, [side for side, count in sides.items() for _ in range(count)], arrays)
    if batch is None:
        return operands, None
    given = iter(flat)
    return (
        Operands(
            lhs=next(given),
            rhs=next(given),
            lhs_args=tuple(next(given) for _ in operands.lhs_args),
            rhs_args=tuple(next(given) for _ in operands.rhs_args),
            bias=None if operands.bias is None else next(given),
            residual=None if operands.residual is None else next(given),
            scale=None if operands.scale is None else next(given),
        ),
        batch,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(formula: Formula, operands: Operands) -> Array:
    return _forward(formula, operands, keep_sum=False)[0]


def _forward(formula: Formula, operands: Operands, *, keep_sum: bool) -> tuple[Array, ...]:
    around = {"bias": operands.bias, "residual": operands.residual, "scale": operands.scale}
    given = {name: array for name, array in around.items() if array is not None}
    names = ["bias"] if "bias" in given else []
    names += [formula.activation_name] if formula.activation is not None else []
    names += [name for name in ("residual", "scale") if name in given]
    beside: tuple[Side, ...] = (
        *("lhs" for _ in operands.lhs_args),
        *("rhs" for _ in operands.rhs_args),
        *("out" for _ in given),
    )
    product = Product(
        where=formula.where,
        precision=formula.precision,
        dtypes_out=(formula.dtype_out, *([_kept_dtype(operands)] if keep_sum else [])),
        epilogue=_epilogue(
            bias="bias" in given,
            activation=formula.activation,
            residual="residual" in given,
            scale="scale" in given,
            dtype_out=formula.dtype_out,
            keep_sum=keep_sum,
        ),
        epilogue_name=", ".join(names),
        transpose_lhs=formula.transpose_lhs,
        transpose_rhs=formula.transpose_rhs,
        lhs_fn=formula.lhs_fn,
        rhs_fn=formula.rhs_fn,
        beside=beside,
    )
    return compute(product, operands.lhs, operands.rhs, *operands.lhs_args, *operands.rhs_args, *given.values())


@functools.lru_cache(maxsize=256)
def _epilogue(*, bias: bool, activation: Fn | None, residual: bool, scale: bool, dtype_out: str, keep_sum: bool) -> Fn:
    # The same function for the same formula, so that records of products compare equal.
    return epilogue_of(
        bias=bias, activation=activation, residual=residual, scale=scale, dtype_out=dtype_out, keep_sum=keep_sum
    )


def _kept_dtype(operands: Operands) -> str:
    """Of what is kept of the sum for the backward pass: that of the operands, as a network's activations are kept."""
    return "float32" if "float32" in (operands.lhs.dtype.name, operands.rhs.dtype.name) else "bfloat16"


def _multiply_forward(formula: Formula, operands: Operands) -> tuple[Array, tuple[Operands, Array | None]]:
    keep_sum = formula.activation is not None or operands.scale is not None
    out, *kept = _forward(formula, operands, keep_sum=keep_sum)
    return out, (operands, kept[0] if kept else None)


def _multiply_backward(formula: Formula, saved: tuple[Operands, Array | None], dout: Array) -> tuple[Operands]:
    operands, z = saved
    wide = dout.astype(jnp.float32)
    scaled = wide if operands.scale is None else wide * operands.scale.astype(jnp.float32)
    dz, source, fn = _derivative(formula, operands, z, dout, scaled)
    dscale = None
    if operands.scale is not None:
        assert z is not None
        before = z.astype(jnp.float32)
        before = before if formula.activation is None else formula.activation(before)
        if operands.residual is not None:
            before = before + operands.residual.astype(jnp.float32)
        dscale = _summed(wide * before, operands.scale)
    dlhs, dlhs_args = _operand_gradient("lhs", formula, operands, source, fn)
    drhs, drhs_args = _operand_gradient("rhs", formula, operands, source, fn)
    return (
        Operands(
            lhs=dlhs,
            rhs=drhs,
            bias=None if operands.bias is None else _summed(dz, operands.bias),
            residual=None if operands.residual is None else _summed(scaled, operands.residual),
            scale=dscale,
            lhs_args=dlhs_args,
            rhs_args=drhs_args,
        ),
    )


_multiply.defvjp(_multiply_forward, _multiply_backward)


def _derivative(
    formula: Formula, operands: Operands, z: Array | None, dout: Array, scaled: Array
) -> tuple[Array, tuple[Array, ...], Fn | None]:
    """dz in float32; and from which arrays, by which function, the products get it as an operand."""
    multiplied = MatmulProblem.of(1, 1, 1, _kept_dtype(operands)).dtype_multiplied
    if formula.activation is None:
        if operands.scale is None:
            source = dout if jnp.issubdtype(dout.dtype, jnp.floating) else scaled
            return scaled, (source.astype(multiplied),), None
        return scaled, (scaled.astype(multiplied),), None
    assert z is not None
    activation = formula.activation
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
    return work_of(_derivative_fn(activation, "float32"), tile, tile).ops


def _operand_gradient(
    side: Side, formula: Formula, operands: Operands, source: tuple[Array, ...], fn: Fn | None
) -> tuple[Any, tuple[Any, ...]]:
    """The gradient of lhs or rhs, stored like it, and of the arguments of its function."""
    is_lhs = side == "lhs"
    array, args = (operands.lhs, operands.lhs_args) if is_lhs else (operands.rhs, operands.rhs_args)
    other, other_args = (operands.rhs, operands.rhs_args) if is_lhs else (operands.lhs, operands.lhs_args)
    own_fn, other_fn = (formula.lhs_fn, formula.rhs_fn) if is_lhs else (formula.rhs_fn, formula.lhs_fn)
    transposed = formula.transpose_lhs if is_lhs else formula.transpose_rhs
    other_transposed = formula.transpose_rhs if is_lhs else formula.transpose_lhs
    differentiable = [value for value in (array, *args) if jnp.issubdtype(value.dtype, jnp.inexact)]
    if not differentiable:
        return _no_gradient(array), tuple(map(_no_gradient, args))
    # dz stands on the left in the gradient of lhs, and on the right in that of rhs; stored transposed, the other way.
    dz_left = is_lhs != transposed
    # As stored, dz is [m, n]; on the left it is wanted as [m, n] for lhs and [n, m] for rhs, and so on.
    dz_transposed = not is_lhs if dz_left else is_lhs
    others_transposed = (not other_transposed) if not transposed else other_transposed
    first = (source[0], other) if dz_left else (other, source[0])
    fns = (fn, other_fn) if dz_left else (other_fn, fn)
    transposes = (dz_transposed, others_transposed) if dz_left else (others_transposed, dz_transposed)
    dz_side: Side = "lhs" if dz_left else "rhs"
    other_side: Side = "rhs" if dz_left else "lhs"
    beside: list[Side] = [*(dz_side for _ in source[1:]), *(other_side for _ in other_args)]
    extras = [*source[1:], *other_args]
    reduced = _batch_of(first) != array.shape[:-2]
    fused = own_fn is not None and not args and not reduced
    if fused:
        beside.append("out")
        extras.append(array)
    whole = own_fn is None or fused
    product = Product(
        where=_without_tiles(formula.where),
        precision=formula.precision,
        dtypes_out=(array.dtype.name if whole and not reduced else "float32",),
        epilogue=_input_derivative(own_fn, array.dtype.name) if fused else _identity,
        epilogue_name=f"derivative of {side}_fn" if fused else "",
        transpose_lhs=transposes[0],
        transpose_rhs=transposes[1],
        lhs_fn=fns[0],
        rhs_fn=fns[1],
        beside=tuple(beside),
    )
    (found,) = compute(product, *first, *extras)
    if whole:
        return _summed(found, array), tuple(map(_no_gradient, args))
    assert own_fn is not None
    return _through(own_fn, found, array, args)


def _through(fn: Fn, cotangent: Array, array: Array, args: tuple[Array, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A gradient taken back through the function of an operand, over whole arrays."""
    value, back = jax.vjp(fn, array, *args)
    found = back(_summed_to(cotangent, value.shape).astype(value.dtype))
    return found[0], tuple(found[1:])


@functools.lru_cache(maxsize=256)
def _input_derivative(fn: Fn, dtype: str) -> Fn:
    def derivative(total: Array, block: Array) -> tuple[Array]:
        value, back = jax.vjp(fn, block)
        return (back(total.astype(value.dtype))[0].astype(dtype),)

    return derivative


def _identity(total: Array) -> tuple[Array]:
    return (total,)


def _without_tiles(where: Where) -> Where:
    # Tiles were given for the forward product; those of the backward pass have other shapes.
    return Where(implementation=where.implementation, chip=where.chip, tiles=None)


def _batch_of(arrays: tuple[Array, Array]) -> tuple[int, ...]:
    return tuple(max(sizes) for sizes in zip(*(array.shape[:-2] for array in arrays), strict=True))


def _summed(wide: Array, like: Array) -> Any:
    """Summed over what was broadcast, in the dtype of `like`; of integers there is no gradient."""
    if not jnp.issubdtype(like.dtype, jnp.inexact):
        return _no_gradient(like)
    return _summed_to(wide, like.shape).astype(like.dtype)


def _summed_to(wide: Array, shape: tuple[int, ...]) -> Array:
    axes = tuple(axis for axis, (size, own) in enumerate(zip(wide.shape, shape, strict=True)) if size != own)
    return wide.sum(axes, keepdims=True) if axes else wide


def _no_gradient(array: Array) -> Any:
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.zeros(array.shape, array.dtype)
    return np.zeros(array.shape, jax.dtypes.float0)
