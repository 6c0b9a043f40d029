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

from systolic.kernels.interpreted import tracing_for
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.linear import linear
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.moe.combining import combined
from systolic.ops.moe.kernel.packed_rows import PACKED_DTYPES, SUBLANES, row_codes
from systolic.ops.moe.kernel.spread import spread_rows
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.schedule import CHUNK_BLOCKS, SpreadSchedule, SpreadSpec
from systolic.schedule.legality import LANES
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import vmem_limit


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
        by_pallas, by_xla = (functools.partial(run, self) for run in (_by_pallas, _by_xla))

        def call(x: Array, tokens: Array, kept: Array) -> Array:
            if explicit_mesh([x]) is not None or x.dtype.name not in PACKED_DTYPES:
                return by_xla(x, tokens, kept)
            return dispatched(self.backend, by_pallas, by_xla, x, tokens, kept)

        tokens_of_rows = choices.order[: self.rows] // (choices.order.size // x.shape[0])
        return [one_at_a_time(call, x, tokens_of_rows, choices.sizes.sum())]

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
    """Return the rows of tokens in the order of experts, the first `rows` of them.

    Those after the last expert's are not defined.
    """
    return _moved(_Spread(backend=backend, rows=rows), x, choices)


def _by_xla(move: _Spread, x: Array, tokens_of_rows: Array, kept: Array) -> Array:
    return x[tokens_of_rows]


@functools.partial(jax.jit, static_argnums=0)
def _by_pallas(move: _Spread, x: Array, tokens_of_rows: Array, kept: Array) -> Array:
    chip, d = move.backend.chip, x.shape[1]
    assert chip is not None  # else XLA computes it
    # Whole tiles of rows and columns, by a copy if they are none.
    x = move.backend.on_tpu(x)
    x = jnp.pad(x, [(0, -size % tile) for size, tile in zip(x.shape, (SUBLANES, LANES), strict=True)])
    rows = padded(move.rows, SUBLANES)
    spec = SpreadSpec(tokens=x.shape[0], rows=rows, d=x.shape[1], dtype=x.dtype.name)
    schedule = SpreadSchedule.of(spec, chip)
    codes = row_codes(tokens_of_rows, schedule.columns // LANES, spec.dtype)
    chunk_rows = CHUNK_BLOCKS * schedule.rows
    codes = jnp.pad(codes, (0, schedule.chunks * chunk_rows - move.rows)).reshape(schedule.chunks, 1, chunk_rows)
    with tracing_for(chip):
        out = spread_rows(
            x,
            codes,
            kept.reshape(1),
            spec=spec,
            schedule=schedule,
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
            interpret=move.backend.interpret,
        )
    return out[: move.rows, :d]
