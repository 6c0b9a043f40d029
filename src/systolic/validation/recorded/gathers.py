"""Recorded gathers of rows, which XLA puts on SparseCores."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.validation.errors import OpError
from systolic.validation.recorded.arguments import Arguments
from systolic.validation.recorded.call import Call


def ragged_gather_call(arguments: Arguments) -> Call:
    arguments.only("x", "indices", "start", "end", "return_residuals")
    x, indices = arguments.array("x", 2), arguments.array("indices", 1)
    return Call(gathered_rows, (x, _drawn_indices(indices, x.shape[0])))


def gathered_rows(x: Array, indices: Array) -> Array:
    """Return the rows of x[rows, columns] that the indices name."""
    return x[indices]


def ragged_gather_reduce_call(arguments: Arguments) -> Call:
    arguments.only("x", "indices", "topk_weights", "valid_rows_mask", "reduce_group_size", "return_residuals")
    x, indices = arguments.array("x", 2), arguments.array("indices", 1)
    group = arguments.whole("reduce_group_size")
    if group < 1 or indices.shape[0] % group:
        raise OpError(f"{indices.shape[0]} indices are not a whole number of groups of {group}")
    others = (arguments.array("topk_weights", 1), arguments.array("valid_rows_mask", 1))
    return Call(functools.partial(combined_rows, group=group), (x, _drawn_indices(indices, x.shape[0]), *others))


def combined_rows(x: Array, indices: Array, weights: Array, valid: Array, *, group: int) -> Array:
    """Return the weighted sums of groups of gathered rows, in float32 and then in the dtype of x."""
    rows = jnp.where(valid[:, None], x[indices] * weights[:, None].astype(jnp.float32), 0)
    return jnp.sum(rows.reshape(-1, group, x.shape[1]), axis=1).astype(x.dtype)


def _drawn_indices(indices: jax.ShapeDtypeStruct, rows: int) -> np.ndarray:
    """Return indices at random: records do not say which rows were gathered."""
    return np.random.default_rng(0).integers(0, rows, indices.shape).astype(np.int32)
