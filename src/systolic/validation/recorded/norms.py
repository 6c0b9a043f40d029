"""Recorded normalizations of XLA along one axis, their gradient, and the triangle multiplication built on them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array

from systolic.validation.errors import OpError
from systolic.validation.recorded.arguments import Arguments
from systolic.validation.recorded.call import Call

_PARAMETERS = ("x", "scale", "offset", "axis", "epsilon", "subtract_mean")


def normalization_call(arguments: Arguments) -> Call:
    arguments.only(*_PARAMETERS, "return_residuals")
    x, scale, offset = _operands(arguments)
    function = functools.partial(
        layer_norm,
        axis=_axis(arguments, x),
        epsilon=arguments.number("epsilon"),
        with_residuals=arguments.flag("return_residuals"),
    )
    return Call(function, (x, scale, offset))


def normalization_gradient_call(arguments: Arguments) -> Call:
    arguments.only(*_PARAMETERS, "residuals", "out", "dout")
    x, scale, offset = _operands(arguments)
    residuals = arguments.arrays("residuals")
    if len(residuals) != 2:
        raise OpError(f"the gradient of a normalization has two residuals, not {len(residuals)}")
    function = functools.partial(layer_norm_gradient, axis=_axis(arguments, x))
    return Call(function, (*residuals, arguments.array("dout"), x, scale, offset))


def layer_norm(
    x: Array, scale: Array, offset: Array, *, axis: int, epsilon: float, with_residuals: bool = False
) -> Array | tuple[Array, tuple[Array, Array]]:
    """Return the layer norm of x along an axis, in float32; with residuals, also mean and inverse deviation."""
    centered = x.astype(jnp.float32)
    mean = jnp.mean(centered, axis, keepdims=True)
    centered = centered - mean
    inverse_deviation = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis, keepdims=True) + epsilon)
    others = _others(x, axis)
    scaled = centered * inverse_deviation * jnp.expand_dims(scale.astype(jnp.float32), others)
    result = (scaled + jnp.expand_dims(offset.astype(jnp.float32), others)).astype(x.dtype)
    return (result, (mean, inverse_deviation)) if with_residuals else result


def layer_norm_gradient(
    mean: Array, inverse_deviation: Array, cotangent: Array, x: Array, scale: Array, offset: Array, *, axis: int
) -> tuple[Array, Array, Array]:
    """Return the derivatives by x, scale and offset, from the residuals of `layer_norm`."""
    cotangent = cotangent.astype(jnp.float32)
    normal = (x.astype(jnp.float32) - mean) * inverse_deviation
    others = _others(x, axis)
    by_offset = jnp.sum(cotangent, others).astype(offset.dtype)
    by_scale = jnp.sum(cotangent * normal, others).astype(scale.dtype)
    scaled = cotangent * jnp.expand_dims(scale.astype(jnp.float32), others)
    along = scaled - jnp.mean(scaled * normal, axis=axis, keepdims=True) * normal
    by_x = (along - jnp.mean(scaled, axis=axis, keepdims=True)) * inverse_deviation
    return by_x.astype(x.dtype), by_scale, by_offset


def triangle_multiplication_call(arguments: Arguments) -> Call:
    names = ("x", "mask", "projection_in_weights", "gate_in_weights", "projection_out_weights", "gate_out_weights")
    names += ("layernorm_in_scale", "layernorm_in_offset", "layernorm_out_scale", "layernorm_out_offset")
    arguments.only(*names, "triangle_type", "precision", "epsilon", "return_residuals")
    if arguments.values.get("precision") not in (None, ["DEFAULT", "DEFAULT"]):
        raise OpError("a triangle multiplication is known in the default precision only")
    function = functools.partial(
        triangle_multiplication,
        outgoing=arguments.text("triangle_type", "outgoing", "incoming") == "outgoing",
        epsilon=arguments.number("epsilon"),
    )
    return Call(function, tuple(arguments.array(name) for name in names))


def triangle_multiplication(
    x: Array,
    mask: Array,
    projection_in: Array,
    gate_in: Array,
    projection_out: Array,
    gate_out: Array,
    scale_in: Array,
    offset_in: Array,
    scale_out: Array,
    offset_out: Array,
    *,
    outgoing: bool,
    epsilon: float,
) -> Array:
    """Return the triangle multiplicative update of pairs x[n, n, c], AlphaFold's supplementary algorithms 11 and 12.

    The gates of the edges are a gated linear unit of two separate products, as the timed program has it.
    """
    normal = layer_norm(x, scale_in, offset_in, axis=x.ndim - 1, epsilon=epsilon)
    assert isinstance(normal, jax.Array)
    gate, projection = (
        jnp.matmul(normal, weights.reshape(weights.shape[0], -1)) for weights in (gate_in, projection_in)
    )
    edges = (jax.nn.sigmoid(gate.astype(jnp.float32)) * projection.astype(jnp.float32)).astype(x.dtype)
    edges = edges.reshape(*edges.shape[:2], 2, scale_out.shape[0])
    left, right = mask * jnp.transpose(edges, (2, 3, 0, 1))
    sums = jnp.einsum("cik,cjk->ijc" if outgoing else "ckj,cki->ijc", left, right)
    result = layer_norm(sums, scale_out, offset_out, axis=sums.ndim - 1, epsilon=epsilon)
    assert isinstance(result, jax.Array)
    return (result @ projection_out) * jax.nn.sigmoid(normal @ gate_out)


def _operands(arguments: Arguments) -> tuple[jax.ShapeDtypeStruct, ...]:
    if not arguments.flag("subtract_mean"):
        raise OpError("subtract_mean=false is not known for this operation")
    return arguments.array("x"), arguments.array("scale", 1), arguments.array("offset", 1)


def _axis(arguments: Arguments, x: jax.ShapeDtypeStruct) -> int:
    axis = arguments.whole("axis")
    if not -len(x.shape) <= axis < len(x.shape):
        raise OpError(f"axis={axis} is none of x {x.shape}")
    return axis % len(x.shape)


def _others(x: Array, axis: int) -> list[int]:
    return [dimension for dimension in range(x.ndim) if dimension != axis]
