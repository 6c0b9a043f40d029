"""Recorded losses of XLA whose logits are computed in blocks of tokens and of the vocabulary.

Tokens and vocabulary are padded to whole blocks. As in the timed programs, sums over the vocabulary are kept in the
dtype of x, and the zero logits of padded columns count.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.support.untrusted import shown
from systolic.validation.errors import OpError
from systolic.validation.recorded.arguments import Arguments
from systolic.validation.recorded.call import Call
from systolic.validation.recorded.losses import gradient_operands, loss_operands, reduction_of


def chunked_loss_call(arguments: Arguments, config: Arguments) -> Call:
    arguments.only("x", "labels", "w", "reduction", "return_residuals")
    function = functools.partial(
        chunked_loss,
        reduction=reduction_of(arguments),
        with_residuals=arguments.flag("return_residuals"),
        **_blocks(config),
    )
    return Call(function, loss_operands(arguments))


def chunked_loss_gradient_call(arguments: Arguments, config: Arguments) -> Call:
    arguments.only("residuals", "out", "dout", "x", "labels", "w", "reduction")
    function = functools.partial(chunked_loss_gradient, reduction=reduction_of(arguments), **_blocks(config))
    return Call(function, gradient_operands(arguments))


def chunked_loss(
    x: Array, labels: Array, w: Array, *, token_block: int, column_block: int, reduction: str, with_residuals: bool
) -> Array | tuple[Array, tuple[Array]]:
    """Return the loss of `losses.loss`, computed in blocks of logits."""
    tokens = x.shape[0]
    x_blocks, labels_blocks = _padded(x, token_block, 0), _padded(labels, token_block, 0)
    w_blocks = _padded(w, column_block, 1)
    inside = jnp.arange(x_blocks.shape[0]) < tokens

    def of_tokens(block: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        all_lse, total = carry
        start = block * token_block

        def of_columns(column: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            lse, chosen_sum = sums
            first = column * column_block
            part_x = lax.dynamic_slice_in_dim(x_blocks, start, token_block, 0)
            logits = jnp.dot(part_x, lax.dynamic_slice_in_dim(w_blocks, first, column_block, 1))
            chosen = _chosen(lax.dynamic_slice_in_dim(labels_blocks, start, token_block), first, column_block, x.dtype)
            lse = jnp.logaddexp(lse, jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1))
            return lse, chosen_sum - jnp.sum(logits.astype(x.dtype) * chosen, axis=-1)

        begin = (jnp.full((token_block,), -jnp.inf, jnp.float32), jnp.zeros((token_block,), x.dtype))
        lse, chosen_sum = lax.fori_loop(0, w_blocks.shape[1] // column_block, of_columns, begin)
        mask = lax.dynamic_slice_in_dim(inside, start, token_block).astype(x.dtype)
        all_lse = lax.dynamic_update_slice_in_dim(all_lse, lse, start, 0)
        return all_lse, total + (jnp.sum(chosen_sum * mask) + jnp.sum((lse * mask).astype(x.dtype)))

    begin = (jnp.zeros(x_blocks.shape[0], jnp.float32), jnp.zeros((), x.dtype))
    all_lse, total = lax.fori_loop(0, x_blocks.shape[0] // token_block, of_tokens, begin)
    result = (total / tokens if reduction == "mean" else total).astype(jnp.float32)
    return (result, (all_lse[:tokens],)) if with_residuals else result


def chunked_loss_gradient(
    lse: Array,
    cotangent: Array,
    x: Array,
    labels: Array,
    w: Array,
    *,
    token_block: int,
    column_block: int,
    reduction: str,
) -> tuple[Array, Array, Array]:
    """Return the derivatives of `losses.loss_gradient`, computed in blocks of logits."""
    tokens, columns = x.shape[0], w.shape[1]
    x_blocks, labels_blocks, lse_blocks = (_padded(array, token_block, 0) for array in (x, labels, lse))
    w_blocks = _padded(w, column_block, 1)

    def of_tokens(block: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        by_x, by_w = carry
        start = block * token_block
        part_lse, part_labels, part_x = (
            lax.dynamic_slice_in_dim(array, start, token_block, 0) for array in (lse_blocks, labels_blocks, x_blocks)
        )

        def of_columns(column: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            part_by_x, all_by_w = sums
            first = column * column_block
            part_w = lax.dynamic_slice_in_dim(w_blocks, first, column_block, 1)
            logits = jnp.dot(part_x, part_w)
            chosen = _chosen(part_labels, first, column_block, x.dtype)
            errors = (jnp.exp(logits - part_lse[:, None]) - chosen).astype(logits.dtype)
            before = lax.dynamic_slice_in_dim(all_by_w, first, column_block, 1)
            part_by_w = before + jnp.dot(part_x.T, errors)
            return part_by_x + jnp.dot(errors, part_w.T), lax.dynamic_update_slice_in_dim(all_by_w, part_by_w, first, 1)

        begin = (jnp.zeros((token_block, x.shape[1])), by_w)
        part_by_x, by_w = lax.fori_loop(0, w_blocks.shape[1] // column_block, of_columns, begin)
        return lax.dynamic_update_slice_in_dim(by_x, part_by_x, start, 0), by_w

    begin = (jnp.zeros(x_blocks.shape), jnp.zeros(w_blocks.shape))
    by_x, by_w = lax.fori_loop(0, x_blocks.shape[0] // token_block, of_tokens, begin)
    by_x, by_w = by_x[:tokens], by_w[:, :columns]
    if reduction == "mean":
        by_x, by_w = by_x / tokens, by_w / tokens
    return (by_x * cotangent).astype(x.dtype), jnp.zeros_like(labels), (by_w * cotangent).astype(w.dtype)


def _chosen(labels: Array, first: Array, column_block: int, dtype: jnp.dtype) -> Array:
    return jax.nn.one_hot(labels - first, column_block, dtype=dtype)


def _padded(array: Array, block: int, axis: int) -> Array:
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, -array.shape[axis] % block)
    return jnp.pad(array, widths)


def _blocks(config: Arguments) -> dict[str, int]:
    blocks = {"token_block": config.whole("b_block_size"), "column_block": config.whole("v_block_size")}
    if any(block < 1 for block in blocks.values()):
        raise OpError(f"config={shown(dict(config.values))} has a block below 1")
    return blocks
