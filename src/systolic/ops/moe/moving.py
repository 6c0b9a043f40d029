"""Rows of tokens in the order of experts, and the weighted sum of what a token's experts return, by kernels or by XLA.

The derivative of each is the other. JAX would transpose a gather to a scatter-add, which a TPU does row by row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.interpreted import tracing_for
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.derivative import bilinear
from systolic.ops.engine.dispatch import dispatched, one_at_a_time
from systolic.ops.engine.linear import linear
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.moe.kernel.combine import combine_rows
from systolic.ops.moe.kernel.packed_rows import PACKED_DTYPES, SUBLANES, row_codes
from systolic.ops.moe.kernel.spread import spread_rows
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.schedule import (
    CHUNK_BLOCKS,
    GRANULE_TOKENS,
    CombineSchedule,
    CombineSpec,
    SpreadSchedule,
    SpreadSpec,
)
from systolic.schedule.legality import LANES
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import vmem_limit

# Of VMEM, for results, beside what is gathered from it.
# Source: simulated on v6e with 2,048 tokens of Qwen3-30B, whose 64 MiB XLA does keep in VMEM of 128 MiB.
_SHARE_OF_VMEM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """`out[t] = Σ weights[t, j] · results[row of choice j of t]` over choices that have an expert."""

    backend: Backend
    dtype_out: str

    @property
    def effects(self) -> frozenset[Any]:
        return self.backend.effects

    def multiply(self, lhs: Array, rhs: Array, rest: Sorted) -> Array:
        by_pallas, by_xla = (functools.partial(run, self) for run in (_by_pallas, _by_xla))

        def call(results: Array, weights: Array, choices: Sorted) -> Array:
            if explicit_mesh([results, weights]) is not None or results.dtype.name not in PACKED_DTYPES:
                return by_xla(results, weights, choices)
            return dispatched(self.backend, by_pallas, by_xla, results, weights, choices)

        return one_at_a_time(call, lhs, rhs, rest)

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Sorted) -> Array:
        rows = lhs.shape[0]
        weights = lax.sort((rest.place, rhs.reshape(-1)), num_keys=1)[1][:rows, None]
        return _kept(self._of_rows(cotangent, rest, rows).astype(jnp.float32) * weights, rest).astype(lhs.dtype)

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Sorted) -> Array:
        rows = self._of_rows(cotangent, rest, lhs.shape[0]).astype(jnp.float32)
        products = _kept((rows * lhs.astype(jnp.float32)).sum(1, keepdims=True), rest)[:, 0]
        products = jnp.pad(products, (0, rest.order.size - products.size))
        # A sort in place of a gather: a TPU gathers numbers one by one.
        return lax.sort((rest.order, products), num_keys=1)[1].reshape(rhs.shape).astype(rhs.dtype)

    def _of_rows(self, cotangent: Array, choices: Sorted, rows: int) -> Array:
        return spread(self.backend, cotangent, choices, rows)


def combined(backend: Backend, results: Array, weights: Array, choices: Sorted, dtype_out: str) -> Array:
    """Return the weighted sums, [tokens, d]. Choices without an expert add nothing, whatever their weight."""
    has_expert = (choices.place < choices.sizes.sum()).reshape(weights.shape)
    combine = Combine(backend=backend, dtype_out=dtype_out)
    return bilinear(combine, results, jnp.where(has_expert, weights, 0), choices)


def _kept(rows: Array, choices: Sorted) -> Array:
    """Return rows of experts, and zeros after the last one, whatever is there."""
    return jnp.where(jnp.arange(rows.shape[0])[:, None] < choices.sizes.sum(), rows, 0)


@functools.partial(jax.jit, static_argnums=0)
def _by_pallas(combine: Combine, results: Array, weights: Array, choices: Sorted) -> Array:
    chip = combine.backend.chip
    assert chip is not None  # else XLA computes it
    (tokens, top_k), d = weights.shape, results.shape[1]
    results = combine.backend.on_tpu(results)
    # Whole tiles of rows and columns, by a copy if they are none.
    results = jnp.pad(results, [(0, -size % tile) for size, tile in zip(results.shape, (SUBLANES, LANES), strict=True)])
    spec = CombineSpec(
        tokens=tokens,
        top_k=top_k,
        experts=choices.counts.shape[1],
        d=results.shape[1],
        dtype=results.dtype.name,
        dtype_out=combine.dtype_out,
    )
    schedule = CombineSchedule.of(spec, chip)
    runs, codes = _runs_and_codes(spec, schedule, choices)
    with tracing_for(chip):
        out = combine_rows(
            results,
            runs,
            codes,
            _by_block(weights.astype(jnp.float32), schedule, 0),
            spec=spec,
            schedule=schedule,
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
            interpret=combine.backend.interpret,
        )
    return out[:, :d]


def _by_block(choices: Array, schedule: CombineSchedule, fill: int) -> Array:
    """Return numbers of choices as [blocks, 1, choices of a block]."""
    padding = schedule.blocks * schedule.tokens - choices.shape[0]
    return jnp.pad(choices, [(0, padding), (0, 0)], constant_values=fill).reshape(schedule.blocks, 1, -1)


def _runs_and_codes(spec: CombineSpec, schedule: CombineSchedule, choices: Sorted) -> tuple[Array, Array]:
    """Return the runs of each block, [blocks, fields, experts], and the codes of choices, [blocks, 1, choices]."""
    granules = schedule.tokens // GRANULE_TOKENS
    counts = jnp.pad(choices.counts, [(0, schedule.blocks * granules - choices.counts.shape[0]), (0, 0)])
    counts = counts.reshape(schedule.blocks, granules, spec.experts).sum(1)
    sizes = counts.sum(0)
    ends = jnp.cumsum(counts, axis=0) + (jnp.cumsum(sizes) - sizes)
    first_tile = (ends - counts) // SUBLANES
    tiles = jnp.where(counts > 0, -(-ends // SUBLANES) - first_tile, 0)
    target = jnp.cumsum(tiles, axis=1) - tiles
    ids = _by_block(choices.ids.reshape(-1, spec.top_k), schedule, spec.experts)[:, 0]
    is_of_run = ids[:, :, None] == jnp.arange(spec.experts, dtype=ids.dtype)
    offset = jnp.where(is_of_run, ((target - first_tile) * SUBLANES)[:, None, :], 0).sum(2)
    place = _by_block(choices.place.reshape(-1, spec.top_k), schedule, 0)[:, 0]
    zero_row = (schedule.tiles - 1) * SUBLANES
    rows = jnp.where(ids < spec.experts, place + offset, zero_row)
    codes = row_codes(rows, schedule.columns // LANES, spec.dtype)
    return jnp.stack([first_tile, target, tiles], axis=1), codes[:, None, :]


def _by_xla(combine: Combine, results: Array, weights: Array, choices: Sorted) -> Array:
    chip, place = combine.backend.chip, choices.place
    if chip is not None and results.nbytes <= chip.vmem_bytes_per_core * _SHARE_OF_VMEM:
        # XLA gathers rows in VMEM five times as fast as in HBM. It does not keep a kernel's result there, so it passes
        # through an operation that XLA computes: rows after the last expert's are zero anyway.
        results = _kept(results, choices)
    # Not times zero: a row that is read in place of one that was dropped may hold NaN.
    is_kept = (place < choices.sizes.sum())[:, None]
    rows = jnp.where(is_kept, results[jnp.minimum(place, results.shape[0] - 1)], 0)
    rows = rows.astype(jnp.float32).reshape(*weights.shape, -1)
    return (rows * weights.astype(jnp.float32)[:, :, None]).sum(1).astype(combine.dtype_out)


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
        by_pallas, by_xla = (functools.partial(run, self) for run in (_spread_by_pallas, _spread_by_xla))

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


def _spread_by_xla(move: _Spread, x: Array, tokens_of_rows: Array, kept: Array) -> Array:
    return x[tokens_of_rows]


@functools.partial(jax.jit, static_argnums=0)
def _spread_by_pallas(move: _Spread, x: Array, tokens_of_rows: Array, kept: Array) -> Array:
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
