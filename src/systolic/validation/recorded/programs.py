"""Rebuild the program of a recorded operation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from systolic.validation.errors import OTHER_PROGRAM, OpError, Rebuilt, chip_of
from systolic.validation.published import PublishedRow
from systolic.validation.recorded.arguments import Arguments, array_of
from systolic.validation.recorded.attention import attention_call, attention_gradient_call
from systolic.validation.recorded.call import Call
from systolic.validation.recorded.chunked_attention import chunked_attention_call
from systolic.validation.recorded.chunked_losses import chunked_loss_call, chunked_loss_gradient_call
from systolic.validation.recorded.gated import gated_linear_unit_call
from systolic.validation.recorded.gathers import ragged_gather_call, ragged_gather_reduce_call
from systolic.validation.recorded.losses import loss_call, loss_gradient_call
from systolic.validation.recorded.norms import (
    normalization_call,
    normalization_gradient_call,
    triangle_multiplication_call,
)
from systolic.validation.recorded.ragged import multiplies_every_group, ragged_dot_call
from systolic.validation.recorded.tokamax_ops import KINDS_OF_TOKAMAX, tokamax_call

_WITH_CONFIG: Mapping[str, Callable[[Arguments, Arguments], Call]] = {
    "chunked_xla_linear_softmax_cross_entropy_loss": chunked_loss_call,
    "chunked_xla_linear_softmax_cross_entropy_loss_vjp": chunked_loss_gradient_call,
}
_PLAIN: Mapping[str, Callable[[Arguments], Call]] = {
    "dot_product_attention": attention_call,
    "dot_product_attention_vjp": attention_gradient_call,
    "gated_linear_unit": gated_linear_unit_call,
    "linear_softmax_cross_entropy_loss": loss_call,
    "linear_softmax_cross_entropy_loss_vjp": loss_gradient_call,
    "normalization": normalization_call,
    "normalization_vjp": normalization_gradient_call,
    "ragged_dot": ragged_dot_call,
    "ragged_gather": ragged_gather_call,
    "ragged_gather_reduce": ragged_gather_reduce_call,
    "triangle_multiplication": triangle_multiplication_call,
    "xla_chunked_dot_product_attention": chunked_attention_call,
}
KINDS_IN_JAX = (*_PLAIN, *_WITH_CONFIG)


def recorded_program(row: PublishedRow) -> Rebuilt:
    """Return the program of a row that records an operation with its arguments.

    Raises:
      OpError: the operation is not known, an argument of it is not, its package is missing, or another program was
        timed.
    """
    call = _call(row.op, row.arguments, row.config)
    if row.op == "ragged_dot" and multiplies_every_group(call, chip_of(row), row.published_us):
        raise OpError(
            f"{OTHER_PROGRAM}: an older compiler's, which multiplies all rows with every group; today's "
            "multiplies each row with its own"
        )
    if row.op == "linear_softmax_cross_entropy_loss_vjp" and row.arguments.get("dout") == "bf16[]":
        raise OpError(
            f"{OTHER_PROGRAM}: an older compiler's, since the package has returned losses in float32 since "
            "March 2026; where its times begin from a float32 and all else is equal, they differ by up to 17 %"
        )
    return Rebuilt(what=_words(row), function=call.function, arguments=call.arguments)


def _call(op: str, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Call:
    try:
        if op in _WITH_CONFIG:
            return _WITH_CONFIG[op](Arguments(arguments), Arguments(config))
        if op in _PLAIN:
            return _PLAIN[op](Arguments(arguments))
    except OpError:
        if op not in KINDS_OF_TOKAMAX:
            raise  # else its package may know more: a quantized operand, say
    return tokamax_call(op, arguments, config)


def _words(row: PublishedRow) -> str:
    """Return the operation with its first arrays, and a few letters that differ for other arguments or tiles."""
    text = json.dumps([row.arguments, row.config], sort_keys=True)
    arrays = [f"{name} {value}" for name, value in row.arguments.items() if array_of(value) is not None]
    return " ".join((row.op, *arrays[:3], hashlib.sha256(text.encode()).hexdigest()[:8]))
