"""Rows of tokens in the order of their experts, by a kernel or by XLA's gather."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from systolic.kernels.interpreted import tracing_for
from systolic.kernels.packed_rows import SUBLANES, row_codes
from systolic.ops.engine.backend import Backend
from systolic.ops.moe.kernel.spread import spread_rows
from systolic.ops.moe.schedule import CHUNK_BLOCKS, SpreadSchedule, SpreadSpec
from systolic.schedule.legality import LANES
from systolic.schedule.vmem import vmem_limit


def spread_by_xla(backend: Backend, permutes: bool, x: Array, tokens_of_rows: Array, expert_rows: Array) -> Array:
    return x[tokens_of_rows]


@functools.partial(jax.jit, static_argnums=(0, 1))
def spread_by_pallas(backend: Backend, permutes: bool, x: Array, tokens_of_rows: Array, expert_rows: Array) -> Array:
    # Whole tiles of rows and columns, by a copy if they are none.
    padded = jnp.pad(x, [(0, -size % tile) for size, tile in zip(x.shape, (SUBLANES, LANES), strict=True)])
    first_rows = jnp.zeros(1, jnp.int32)
    rows = spread_of_parts(backend, [padded], first_rows, tokens_of_rows, expert_rows, permutes=permutes)
    return rows[:, : x.shape[1]]


def spread_of_parts(
    backend: Backend,
    parts: Sequence[Array],
    first_rows: Array,
    tokens_of_rows: Array,
    expert_rows: Array,
    *,
    permutes: bool = False,
) -> Array:
    """Return rows of tokens that lie in several arrays of whole tiles, each from one of `first_rows` on."""
    chip, d, all_rows = backend.chip, parts[0].shape[1], tokens_of_rows.size
    assert chip is not None  # else XLA computes it
    tokens = sum(part.shape[0] for part in parts)
    spec = SpreadSpec.of(tokens, all_rows, d, parts[0].dtype.name, permutes=permutes)
    schedule = SpreadSchedule.of(spec, chip)
    codes = row_codes(tokens_of_rows, schedule.columns // LANES, spec.dtype)
    chunk_rows = CHUNK_BLOCKS * schedule.rows
    codes = jnp.pad(codes, (0, schedule.chunks * chunk_rows - all_rows)).reshape(schedule.chunks, 1, chunk_rows)
    with tracing_for(chip):
        out = spread_rows(
            [backend.on_tpu(parts[0]), *parts[1:]],
            first_rows // SUBLANES,
            codes,
            expert_rows.reshape(1),
            spec=spec,
            schedule=schedule,
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
            interpret=backend.interpret,
        )
    return out[:all_rows]
