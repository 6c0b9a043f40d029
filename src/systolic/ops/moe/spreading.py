"""Rows of tokens in the order of their experts, by a kernel or by XLA's gather."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.compat import varying_alike
from systolic.kernels.interpreted import tracing_for
from systolic.ops.engine.backend import Backend
from systolic.ops.moe.kernel.packed_rows import SUBLANES, row_codes
from systolic.ops.moe.kernel.spread import spread_rows
from systolic.ops.moe.schedule import CHUNK_BLOCKS, SpreadSchedule, SpreadSpec
from systolic.schedule.legality import LANES
from systolic.schedule.vmem import vmem_limit


def spread_by_xla(backend: Backend, x: Array, tokens_of_rows: Array, kept: Array) -> Array:
    return x[tokens_of_rows]


@functools.partial(jax.jit, static_argnums=0)
def spread_by_pallas(backend: Backend, x: Array, tokens_of_rows: Array, kept: Array) -> Array:
    # Whole tiles of rows and columns, by a copy if they are none.
    padded = jnp.pad(x, [(0, -size % tile) for size, tile in zip(x.shape, (SUBLANES, LANES), strict=True)])
    out = no_rows(tokens_of_rows.size, padded)
    out = spread_into(backend, out, 0, [padded], jnp.zeros(1, jnp.int32), tokens_of_rows, kept)
    return in_rows(out, tokens_of_rows.size)[:, : x.shape[1]]


def no_rows(rows: int, x: Array) -> Array:
    """Return an array of tiles for `spread_into`, for as many columns as x has."""
    shape = (-(-rows // SUBLANES), x.shape[1] // LANES, SUBLANES, LANES)
    return varying_alike([lax.empty(shape, x.dtype), x])[0]


def in_rows(tiles: Array, rows: int) -> Array:
    """Return the rows of an array of tiles."""
    return tiles.transpose(0, 2, 1, 3).reshape(tiles.shape[0] * SUBLANES, -1)[:rows]


def spread_into(
    backend: Backend,
    out: Array,
    first_register: int,
    parts: Sequence[Array],
    first_rows: Array,
    tokens_of_rows: Array,
    kept: Array,
) -> Array:
    """Return `out` with rows of tokens, from a register on.

    Tokens lie in several arrays of whole tiles, each from one of `first_rows` on.
    """
    chip, all_rows = backend.chip, tokens_of_rows.size
    assert chip is not None  # else XLA computes it
    d, dtype = parts[0].shape[1], out.dtype.name
    spec = SpreadSpec.of(sum(part.shape[0] for part in parts), all_rows, d, dtype)
    schedule = SpreadSchedule.of(spec, chip)
    codes = row_codes(tokens_of_rows, schedule.columns // LANES, spec.dtype)
    chunk_rows = CHUNK_BLOCKS * schedule.rows
    codes = jnp.pad(codes, (0, schedule.chunks * chunk_rows - all_rows)).reshape(schedule.chunks, 1, chunk_rows)
    with tracing_for(chip):
        return spread_rows(
            [backend.on_tpu(parts[0]), *parts[1:]],
            first_rows // SUBLANES,
            codes,
            kept.reshape(1),
            spec=spec,
            schedule=schedule,
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
            into=out,
            first_register=first_register,
            interpret=backend.interpret,
        )
