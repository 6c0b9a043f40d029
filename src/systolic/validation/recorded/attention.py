"""Recorded attention of XLA, with all weights at once, and its gradient.

q[…, length, heads, size], k and v[…, kv length, kv heads, size]; weights [..., heads, length, kv length] in float32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.support.untrusted import shown
from systolic.validation.errors import OpError
from systolic.validation.recorded.arguments import Arguments, DotPrecision
from systolic.validation.recorded.call import Call

_TENSORS = ("q", "k", "v", "bias", "mask")
_SETTINGS = ("precision", "logits_dtype", "logits_scale", "normalize_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Attention's arguments that are not arrays.

    Attributes:
      precisions: of q·k and of the weights times v.
    """

    precisions: tuple[DotPrecision, DotPrecision]
    scale: float
    causal: bool


def attention_call(arguments: Arguments) -> Call:
    settings = attention_settings(arguments, "return_residuals")
    function = functools.partial(attention, settings=settings, with_residuals=arguments.flag("return_residuals"))
    return Call(function, attention_operands(arguments))


def attention_gradient_call(arguments: Arguments) -> Call:
    settings = attention_settings(arguments, "residuals", "out", "dout")
    residuals = arguments.arrays("residuals")
    if len(residuals) != 2:
        raise OpError(f"the gradient of attention has two residuals, not {len(residuals)}")
    function = functools.partial(attention_gradient, settings=settings)
    return Call(function, (*residuals, arguments.array("dout"), *attention_operands(arguments)))


def attention(
    q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None, *, settings: Settings, with_residuals: bool
) -> Array | tuple[Array, tuple[Array, Array]]:
    """Return attention in the dtype of q; with residuals, also each row's maximum and sum of exponentials."""
    k, v = (repeated_heads(operand, q) for operand in (k, v))
    logits = masked_logits(q, k, bias, mask, settings)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(logits - largest)
    sums = jnp.sum(weights, axis=-1, keepdims=True)
    result = _dot("...hqk,...khd->...qhd", weights / sums, v, settings.precisions[1]).astype(q.dtype)
    return (result, (jnp.squeeze(largest, -1), jnp.squeeze(sums, -1))) if with_residuals else result


def attention_gradient(
    largest: Array,
    sums: Array,
    cotangent: Array,
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    mask: Array | None,
    *,
    settings: Settings,
) -> tuple[Array, Array, Array, Array | None]:
    """Return the derivatives by q, k, v and bias; the weights are computed again from the residuals."""
    of_logits, of_values = settings.precisions
    wide_k, wide_v = (repeated_heads(operand, q) for operand in (k, v))
    weights = jnp.exp(masked_logits(q, wide_k, bias, mask, settings) - largest[..., None]) / sums[..., None]
    cotangent = cotangent.astype(jnp.float32)
    by_v = _dot("...hqk,...qhd->...khd", weights, cotangent, of_values)
    by_weights = _dot("...qhd,...khd->...hqk", cotangent, wide_v, of_values)
    by_logits = weights * by_weights - weights * jnp.sum(weights * by_weights, axis=-1, keepdims=True)
    if (whole_mask := mask_array(mask, q, k, settings)) is not None:
        by_logits = jnp.where(whole_mask, by_logits, 0.0)
    by_bias = None if bias is None else _summed_to(by_logits, bias)
    by_logits = by_logits * settings.scale
    by_q = _dot("...hqk,...khd->...qhd", by_logits, wide_k, of_logits)
    by_k = _dot("...hqk,...qhd->...khd", by_logits, q, of_logits)
    return by_q.astype(q.dtype), _summed_heads(by_k, k), _summed_heads(by_v, v), by_bias


def masked_logits(q: Array, k: Array, bias: Array | None, mask: Array | None, settings: Settings) -> Array:
    logits = _dot("...qhd,...khd->...hqk", q, k, settings.precisions[0]) * settings.scale
    if bias is not None:
        logits = (logits + bias).astype(logits.dtype)
    whole_mask = mask_array(mask, q, k, settings)
    return logits if whole_mask is None else jnp.where(whole_mask, logits, float(jnp.finfo(logits.dtype).min))


def mask_array(mask: Array | None, q: Array, k: Array, settings: Settings) -> Array | None:
    """Return the mask and causality as one array of booleans; None: all pairs count."""
    if not settings.causal:
        return mask
    causal = jnp.arange(q.shape[-3])[:, None] >= jnp.arange(k.shape[-3])[None, :]
    return jax.lax.broadcast_to_rank(causal if mask is None else mask & causal, 3)


def repeated_heads(operand: Array, q: Array) -> Array:
    """Return k or v with as many heads as q."""
    repeats = q.shape[-2] // operand.shape[-2]
    return operand if repeats == 1 else jnp.repeat(operand, repeats, axis=-2)


def attention_settings(arguments: Arguments, *others: str) -> Settings:
    arguments.only(*_TENSORS, *_SETTINGS, *others)
    arguments.text("logits_dtype", "float32")
    if not arguments.flag("normalize_output"):
        raise OpError("normalize_output=false is not known for this operation")
    first, second = arguments.precisions("precision")
    preset = jax.lax.DotAlgorithmPreset.BF16_BF16_F32  # the default for operands of at most 32 bits on a TPU
    return Settings(
        precisions=(preset if isinstance(first, tuple) else first, preset if isinstance(second, tuple) else second),
        scale=arguments.number("logits_scale"),
        causal=_mask_parts(arguments)[1],
    )


def attention_operands(arguments: Arguments) -> tuple[jax.ShapeDtypeStruct | None, ...]:
    """Return q, k, v, and bias and mask or None for each."""
    q, k, v = (arguments.array(name) for name in ("q", "k", "v"))
    if len(q.shape) < 3 or q.shape[-2] % k.shape[-2] or k.shape[:-1] != v.shape[:-1]:
        raise OpError(f"q {q.shape}, k {k.shape} and v {v.shape} do not fit each other")
    return q, k, v, arguments.array_or_none("bias"), _mask_parts(arguments)[0]


def _mask_parts(arguments: Arguments) -> tuple[jax.ShapeDtypeStruct | None, bool]:
    """Return the array of booleans, and whether the mask is causal as well."""
    parts = arguments.values.get("mask")
    if not isinstance(parts, dict):
        raise OpError(f"mask={shown(parts)} is not a record of an attention mask")
    mask = Arguments(parts)
    mask.only("bool_mask", "causal_mask")
    if mask.values.get("causal_mask") not in (None, {"offset": 0, "window_size": None}):
        raise OpError(f"causal_mask={shown(mask.values['causal_mask'])}: an offset or a window is not known")
    return mask.array_or_none("bool_mask"), mask.values.get("causal_mask") is not None


def _dot(equation: str, lhs: Array, rhs: Array, precision: Any) -> Array:
    return jnp.einsum(equation, lhs, rhs, precision=precision, preferred_element_type=jnp.float32)


def _summed_heads(gradient: Array, operand: Array) -> Array:
    """Return the gradient of k or v, summed over the query heads of each of its heads."""
    *others, heads, size = gradient.shape
    grouped = gradient.reshape(*others, operand.shape[-2], heads // operand.shape[-2], size)
    return jnp.sum(grouped, axis=-2).astype(operand.dtype)


def _summed_to(gradient: Array, operand: Array) -> Array:
    """Return the gradient summed over dimensions along which the operand was broadcast."""
    shape = (1,) * (gradient.ndim - operand.ndim) + operand.shape
    axes = [axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] > 1]
    return jnp.sum(gradient, axis=axes, keepdims=True).reshape(operand.shape).astype(operand.dtype)
