"""Recorded losses of XLA: the cross entropy of softmax(x @ w), and its gradient.

x[tokens, hidden], w[hidden, vocabulary] and one label per token. The logits are kept as a whole; `chunked_losses`
computes them in blocks.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array

from systolic.validation.errors import OpError
from systolic.validation.recorded.arguments import Arguments
from systolic.validation.recorded.call import Call


def loss_call(arguments: Arguments) -> Call:
    arguments.only("x", "labels", "w", "reduction", "return_residuals")
    operands = loss_operands(arguments)
    function = functools.partial(
        loss, reduction=reduction_of(arguments), with_residuals=arguments.flag("return_residuals")
    )
    return Call(function, operands)


def loss_gradient_call(arguments: Arguments) -> Call:
    arguments.only("residuals", "out", "dout", "x", "labels", "w", "reduction")
    operands = gradient_operands(arguments)
    return Call(functools.partial(loss_gradient, reduction=reduction_of(arguments)), operands)


def loss(
    x: Array, labels: Array, w: Array, *, reduction: str, with_residuals: bool
) -> Array | tuple[Array, tuple[Array]]:
    """Return the mean or the sum of the losses; with residuals, also each token's logarithm of summed exponentials."""
    logits = x @ w
    chosen = jax.nn.one_hot(labels, num_classes=w.shape[1], dtype=x.dtype)
    of_tokens = jnp.sum(-chosen * jax.nn.log_softmax(logits, axis=-1), axis=-1, dtype=jnp.float32)
    total = (jnp.mean if reduction == "mean" else jnp.sum)(of_tokens, dtype=jnp.float32)
    if not with_residuals:
        return total
    return total, (jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1),)


def loss_gradient(
    lse: Array, cotangent: Array, x: Array, labels: Array, w: Array, *, reduction: str
) -> tuple[Array, Array, Array]:
    """Return the derivatives by x, labels (zeros) and w, from the residual `lse` of each token."""
    chosen = jax.nn.one_hot(labels, num_classes=w.shape[1], dtype=x.dtype)
    errors = jnp.exp(x @ w - lse[:, None]) - chosen
    scale = cotangent / x.shape[0] if reduction == "mean" else cotangent
    return (errors @ w.T) * scale, jnp.zeros_like(labels), (x.T @ errors) * scale


def loss_operands(arguments: Arguments) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return x, labels and w."""
    x, labels, w = arguments.array("x", 2), arguments.array("labels", 1), arguments.array("w", 2)
    if x.shape[0] != labels.shape[0] or x.shape[1] != w.shape[0]:
        raise OpError(f"x {x.shape}, labels {labels.shape} and w {w.shape} do not fit each other")
    return x, labels, w


def gradient_operands(arguments: Arguments) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the residual, the cotangent, x, labels and w."""
    residuals = arguments.arrays("residuals")
    if len(residuals) != 1:
        raise OpError(f"the gradient of a loss has one residual, not {len(residuals)}")
    return (*residuals, arguments.array("dout"), *loss_operands(arguments))


def reduction_of(arguments: Arguments) -> str:
    return arguments.text("reduction", "mean", "sum")
