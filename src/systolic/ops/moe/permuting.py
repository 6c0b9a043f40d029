"""Rows of tokens in the order of their experts, and back: each is the other's derivative, and both are gathers.

JAX would transpose a gather to a scatter-add, which a TPU does row by row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.ops.engine.linear import linear


@dataclass(frozen=True, slots=True)
class _Spread:
    """Copies of tokens' rows, one for each choice that is kept, in the order of experts: [rows, d] of [tokens, d]."""

    rows: int

    effects = frozenset[Any]()

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        (order, place), (x,) = residuals, arguments
        assert x is not None  # the only argument, without which there is no tangent
        tokens_of_rows = order[: self.rows] // max(place.size // max(x.shape[0], 1), 1)
        return [x[tokens_of_rows]]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        (order, place), (x,), (cotangent,) = residuals, arguments, cotangents
        if x is None:
            return [None]
        choices = _returned(cotangent, order, place).reshape(x.shape[0], -1, x.shape[1])
        return [choices.astype(jnp.float32).sum(1).astype(x.dtype)]


@dataclass(frozen=True, slots=True)
class _Return:
    """Rows of experts in the order of choices, zero for those that were not kept: [choices, d] of [rows, d]."""

    rows: int

    effects = frozenset[Any]()

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        (order, place), (rows,) = residuals, arguments
        assert rows is not None  # the only argument, without which there is no tangent
        return [_returned(rows, order, place)]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        (order, _), (rows,), (cotangent,) = residuals, arguments, cotangents
        return [None if rows is None else cotangent[order[: self.rows]]]


def _returned(rows: Array, order: Array, place: Array) -> Array:
    if rows.shape[0] == order.size:
        return rows[place]
    is_kept = place < rows.shape[0]
    # Not times zero: a row that is read in place of one that was dropped may hold NaN.
    return jnp.where(is_kept[:, None], rows[jnp.where(is_kept, place, 0)], 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moved(move: _Spread | _Return, array: Array, order: Array, place: Array) -> Array:
    return move.forward((order, place), (array,))[0]


@_moved.defjvp
def _tangent(move: _Spread | _Return, primals: Any, tangents: Any) -> tuple[Array, Array]:
    array, order, place = primals
    out = _moved(move, array, order, place)
    return out, linear(move, (order, place), (tangents[0],), (out,))[0]


def spread(x: Array, order: Array, place: Array, rows: int) -> Array:
    """Return the rows of tokens in the order of experts, the first `rows` of them."""
    return _moved(_Spread(rows), x, order, place)


def returned(rows: Array, order: Array, place: Array) -> Array:
    """Return the rows of experts in the order of choices."""
    return _moved(_Return(rows.shape[0]), rows, order, place)
