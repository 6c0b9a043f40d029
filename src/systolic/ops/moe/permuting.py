"""Rows of tokens in the order of their experts. The derivative is a sum over each token's rows, and both are gathers.

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

from systolic.ops.engine.backend import Backend
from systolic.ops.engine.linear import linear
from systolic.ops.moe.combining import combined
from systolic.ops.moe.routing import Sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """Copies of tokens' rows, one for each choice that is kept, in the order of experts: [rows, d] of [tokens, d]."""

    backend: Backend
    rows: int

    @property
    def effects(self) -> frozenset[Any]:
        return self.backend.effects

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        choices, (x,) = Sorted(*residuals), arguments
        assert x is not None  # the only argument, without which there is no tangent
        return [x[choices.order[: self.rows] // max(choices.place.size // max(x.shape[0], 1), 1)]]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        choices, (x,), (cotangent,) = Sorted(*residuals), arguments, cotangents
        if x is None:
            return [None]
        weights = jnp.ones((x.shape[0], choices.place.size // x.shape[0]), jnp.float32)
        return [combined(self.backend, cotangent, weights, choices, x.dtype.name)]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moved(move: _Spread, array: Array, choices: Sorted) -> Array:
    return move.forward(choices, (array,))[0]


@_moved.defjvp
def _tangent(move: _Spread, primals: Any, tangents: Any) -> tuple[Array, Array]:
    array, choices = primals
    out = _moved(move, array, choices)
    return out, linear(move, choices, (tangents[0],), (out,))[0]


def spread(backend: Backend, x: Array, choices: Sorted, rows: int) -> Array:
    """Return the rows of tokens in the order of experts, the first `rows` of them."""
    return _moved(_Spread(backend=backend, rows=rows), x, choices)
