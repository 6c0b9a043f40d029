"""The grouped products of a device's experts, of rows that are in their order."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from jax import Array, lax

from systolic.chips import Chip
from systolic.compat import varying_alike
from systolic.ops.grouped import grouped_matmul
from systolic.ops.grouped.codes import Weights, weights_of


class Experts(NamedTuple):
    """The weights of the experts of this device."""

    gate: Any
    up: Any
    down: Any
    bias_gate: Any
    bias_up: Any
    bias_down: Any


def mlp(
    x: Array,
    experts: Experts,
    sizes: Array,
    activation: Any,
    options: dict[str, Any],
    row_scale: Array | None = None,
) -> Array:
    """Return the experts' results for rows sorted by expert; `options` are passed to `product`.

    `row_scale` multiplies the rows between the products, without `bias_up`.
    """
    first = {"bias": experts.bias_gate, "activation": activation, "row_scale": row_scale, **options}
    if experts.up is None or experts.bias_up is None:
        hidden = product(x, experts.gate, sizes, up=experts.up, **first)
    else:  # the gated kernel has a bias for the first product only
        hidden = product(x, experts.gate, sizes, **first)
        hidden *= product(x, experts.up, sizes, bias=experts.bias_up, **options)
    return product(hidden, experts.down, sizes, bias=experts.bias_down, **options)


def product(x: Array, matrices: Array, sizes: Array, *, leaves_rest: bool, **options: Any) -> Array:
    """Return the grouped product; with `leaves_rest`, rows after the last group's are not set: nothing reads them."""
    existing = None
    if leaves_rest:
        existing, _ = varying_alike([lax.empty((x.shape[0], matrices.shape[2]), x.dtype), x])
    return grouped_matmul(x, matrices, sizes, existing_out=existing, **options)


def stored(chip: Chip, experts: Experts, x: Array) -> tuple[Weights, Weights]:
    """Return gate and up, and down, as kernels read them next to x: codes that they do not read are dequantized."""
    weights = functools.partial(weights_of, lhs=x, transpose_rhs=False, side_by_side=False, chip=chip)
    return weights(experts.gate, experts.up), weights(experts.down, None)
