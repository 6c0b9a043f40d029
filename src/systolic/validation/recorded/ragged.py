"""Recorded ragged products of XLA: `jax.lax.ragged_dot_general`, with the group sizes of its record."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.chips import Chip
from systolic.support.untrusted import UntrustedError, shown, structured
from systolic.validation.errors import OpError
from systolic.validation.group_sizes import GroupSizesError, drawn_sizes
from systolic.validation.recorded.arguments import Arguments
from systolic.validation.recorded.call import Call

_FAR_MORE = 4  # than a roofline: kernels for ragged products are within twice of it
_DIMENSIONS = ("dot_dimension_numbers", "lhs_ragged_dimensions", "rhs_group_dimensions")


def ragged_dot_call(arguments: Arguments) -> Call:
    names = ("lhs", "rhs", "group_sizes", "ragged_dot_dimension_numbers", "precision", "preferred_element_type")
    arguments.only(*names, "return_residuals", "fuse_gateup_activation")
    arguments.precision("precision")
    if arguments.values.get("precision") not in (None, ["DEFAULT", "DEFAULT"]):
        raise OpError("a ragged product is known in the default precision only")
    lhs, rhs = arguments.array("lhs", 2), arguments.array("rhs")
    activation = arguments.values.get("fuse_gateup_activation")
    function = functools.partial(
        ragged_dot,
        dimensions=_dimension_numbers(arguments.values.get("ragged_dot_dimension_numbers")),
        dtype_out=str(jnp.dtype(arguments.values.get("preferred_element_type") or jnp.result_type(lhs, rhs))),
        gated=activation is not None and arguments.text("fuse_gateup_activation", "silu") == "silu",
    )
    return Call(function, (lhs, rhs, recorded_group_sizes(arguments.values.get("group_sizes"))))


def ragged_dot(
    lhs: Array, rhs: Array, sizes: Array, *, dimensions: jax.lax.RaggedDotDimensionNumbers, dtype_out: str, gated: bool
) -> Array:
    """Return the ragged product, summed in float32; gated: silu of the first half of its columns times the second."""
    sums = jax.lax.ragged_dot_general(
        lhs, rhs, sizes, dimensions, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32
    )
    product = sums.astype(dtype_out)
    if not gated:
        return product
    gate, up = jnp.split(product, 2, axis=-1)
    return jax.nn.silu(gate) * up


def multiplies_every_group(call: Call, chip: Chip, published_us: float) -> bool:
    """True if a published time is long enough to multiply all rows with every group.

    XLA compiled ragged products this way where it had no kernel for them. Only arithmetic decides: the time is at least
    what all rows times all groups take at the published peak, far more than each row times its own group.
    """
    lhs, rhs, sizes = call.arguments
    # An operand with a matrix for each group, or two whose rows are summed by group.
    flops = 2 * lhs.shape[0] * math.prod(rhs.shape) if rhs.ndim == 3 else 2 * math.prod(lhs.shape) * rhs.shape[1]
    flops *= 1 if rhs.ndim == 3 else len(sizes)
    dense_us = flops / chip.peak_ops_per_s("bfloat16") * 1e6
    hbm_bytes = sum(math.prod(operand.shape) * operand.dtype.itemsize for operand in (lhs, rhs))
    ragged_us = max(dense_us / len(sizes), hbm_bytes / chip.hbm_bytes_per_s * 1e6)
    return published_us >= dense_us > _FAR_MORE * ragged_us


def recorded_group_sizes(value: object) -> np.ndarray:
    """Return the sizes of groups: as listed, or drawn at random as the source draws them.

    Raises:
      OpError: they are neither.
    """
    try:
        if isinstance(value, Mapping):
            numbers = structured(dict(value), dict[str, int])
            if set(numbers) == {"num_groups", "total_size"}:
                sizes = drawn_sizes(groups=numbers["num_groups"], rows=numbers["total_size"])
                return np.asarray(sizes, np.int32)
        elif isinstance(value, list):
            return np.asarray(structured(value, tuple[int, ...]), np.int32)
    except (UntrustedError, GroupSizesError, OverflowError) as error:
        raise OpError(f"group_sizes={shown(value)}: {error}") from error
    raise OpError(f"group_sizes={shown(value)} are neither a list nor num_groups and total_size")


def _dimension_numbers(value: object) -> jax.lax.RaggedDotDimensionNumbers:
    if isinstance(value, dict) and set(value) == set(_DIMENSIONS):
        try:
            parts: dict[str, Any] = value
            return jax.lax.RaggedDotDimensionNumbers(**parts)
        except (TypeError, ValueError):
            pass
    raise OpError(f"ragged_dot_dimension_numbers={shown(value)} are not dimension numbers")
