"""The weighted sum of what each token's experts return, by a kernel or by XLA's gather."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array

from systolic.kernels.interpreted import tracing_for
from systolic.kernels.packed_rows import SUBLANES, row_codes
from systolic.ops.engine.backend import Backend
from systolic.ops.moe.forms import SHARE_OF_VMEM
from systolic.ops.moe.kernel.combine import combine_rows
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.schedule import GRANULE_TOKENS, CombineSchedule, CombineSpec
from systolic.schedule.legality import LANES
from systolic.schedule.vmem import vmem_limit


def kept_rows(rows: Array, choices: Sorted) -> Array:
    """Return rows of experts, and zeros after the last one, whatever is there."""
    return jnp.where(jnp.arange(rows.shape[0])[:, None] < choices.sizes.sum(), rows, 0)


def combine_spec(results: Array, weights: Array, choices: Sorted, dtype_out: str) -> CombineSpec:
    (tokens, top_k), (_, d) = weights.shape, results.shape
    experts = choices.counts.shape[1]
    return CombineSpec.of(
        tokens=tokens, top_k=top_k, experts=experts, d=d, dtype=results.dtype.name, dtype_out=dtype_out
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def combine_by_pallas(backend: Backend, dtype_out: str, results: Array, weights: Array, choices: Sorted) -> Array:
    chip = backend.chip
    assert chip is not None  # else XLA computes it
    d, spec = results.shape[1], combine_spec(results, weights, choices, dtype_out)
    schedule = CombineSchedule.of(spec, chip)
    operands = combine_operands(spec, schedule, backend.on_tpu(results), weights, choices)
    with tracing_for(chip):
        out = combine_rows(
            *operands,
            spec=spec,
            schedule=schedule,
            vmem_limit_bytes=vmem_limit(schedule.buffers, chip),
            interpret=backend.interpret,
        )
    return out[:, :d]


def combine_operands(
    spec: CombineSpec, schedule: CombineSchedule, results: Array, weights: Array, choices: Sorted
) -> tuple[Array, Array, Array, Array]:
    """Return the operands of `combine_rows`."""
    # Whole tiles of rows and columns, by a copy if they are none.
    results = jnp.pad(results, [(0, -size % tile) for size, tile in zip(results.shape, (SUBLANES, LANES), strict=True)])
    runs, codes = _runs_and_codes(spec, schedule, choices)
    return results, runs, codes, _by_block(weights.astype(jnp.float32), schedule, 0)


def _by_block(choices: Array, schedule: CombineSchedule, fill: int) -> Array:
    """Return numbers of choices as [blocks, 1, choices of a block]."""
    padding = schedule.blocks * schedule.tokens - choices.shape[0]
    return jnp.pad(choices, [(0, padding), (0, 0)], constant_values=fill).reshape(schedule.blocks, 1, -1)


def _runs_and_codes(spec: CombineSpec, schedule: CombineSchedule, choices: Sorted) -> tuple[Array, Array]:
    """Return the runs of each block, [blocks, fields, experts], and the codes of choices, [blocks, 1, choices]."""
    granules = schedule.tokens // GRANULE_TOKENS
    # After the last block's there may be rows of no choice.
    counts = choices.counts[: -(-spec.tokens // GRANULE_TOKENS)]
    counts = jnp.pad(counts, [(0, schedule.blocks * granules - counts.shape[0]), (0, 0)])
    counts = counts.reshape(schedule.blocks, granules, spec.experts).sum(1)
    sizes = choices.sizes
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


def combine_by_xla(backend: Backend, dtype_out: str, results: Array, weights: Array, choices: Sorted) -> Array:
    chip, place = backend.chip, choices.place
    if chip is not None and results.nbytes <= chip.vmem_bytes_per_core * SHARE_OF_VMEM:
        # XLA gathers rows in VMEM five times as fast as in HBM. It does not keep a kernel's result there, so it passes
        # through an operation that XLA computes: rows after the last expert's are zero anyway.
        results = kept_rows(results, choices)
    # Not times zero: a row that is read in place of one that was dropped may hold NaN.
    is_kept = (place < choices.sizes.sum())[:, None]
    rows = jnp.where(is_kept, results[jnp.minimum(place, results.shape[0] - 1)], 0)
    rows = rows.astype(jnp.float32).reshape(*weights.shape, -1)
    return (rows * weights.astype(jnp.float32)[:, :, None]).sum(1).astype(dtype_out)
