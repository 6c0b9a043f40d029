"""Softmax statistics of `x @ w` by rows: log-sum-exp, the label's logit, and the sum of all logits.

Grid: tiles of rows, then all tiles of the vocabulary. A tile of x stays in VMEM while w passes once. A step computes
its logits subtile by subtile. During the products of one subtile, the logits of the one before update a running maximum
and a sum of exponentials for each row and lane (online softmax, Milakov and Gimelshein 2018); lanes are joined after
the last tile. Logits are never in HBM, unless they are kept for the gradients: then they are rounded to the operands'
dtype, and the statistics come from the rounded logits, so that probabilities computed from them add up to one.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.launch import from_hbm
from systolic.kernels.subtiles import loop, times
from systolic.ops.cross_entropy.kernel.logits import (
    LOWEST,
    by_rows,
    chunk_rows,
    multiply_beside,
    place_of,
    soft_capped,
)
from systolic.ops.cross_entropy.schedule import ROW_COLUMNS, LossSchedule
from systolic.schedule import LANES


def loss_statistics(
    x: Array,
    w: Array,
    labels: Array,
    *,
    schedule: LossSchedule,
    soft_cap: float | None,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Array, Array | None]:
    """Return [rows, 8] in float32: its first columns are log-sum-exp, the label's logit, and the logits' sum.

    The second result has the logits before their cap, [m, n] in x's dtype, if they are kept.

    Args:
      x: [rows, depth].
      w: [depth, n].
      labels: [rows, 1] of int32; `IGNORED` for a row without a label, whose logit is then 0.
    """
    spec, tiles, config = schedule.spec, schedule.config.tiles, schedule.config
    kernel = functools.partial(_kernel, schedule=schedule, soft_cap=soft_cap)
    dtypes = jnp.float32, jnp.float32, jnp.float32, jnp.float32, jnp.int32
    lanes = [pltpu.VMEM((tiles.tile_m, LANES), dtype) for dtype in dtypes]
    inputs = [x, w, labels]
    out_specs = [pl.BlockSpec((tiles.tile_m, ROW_COLUMNS), lambda i, j: (i, 0))]
    out_shape = [shape_with_mesh_axes((schedule.rows, ROW_COLUMNS), jnp.float32, inputs)]
    if spec.keep_logits:
        out_specs.append(pl.BlockSpec((tiles.tile_m, tiles.tile_n), lambda i, j: (i, j)))
        out_shape.append(shape_with_mesh_axes((spec.m, spec.n), x.dtype, inputs))
    statistics, *logits = pl.pallas_call(
        kernel,
        grid=schedule.grid,
        in_specs=[
            pl.BlockSpec((tiles.tile_m, schedule.depth), lambda i, j: (i, 0)),
            pl.BlockSpec((schedule.depth, tiles.tile_n), lambda i, j: (0, j)),
            pl.BlockSpec((tiles.tile_m, 1), lambda i, j: (i, 0)),
        ],
        out_specs=out_specs,
        out_shape=out_shape,
        scratch_shapes=[pltpu.VMEM((config.subtile_m, config.subtile_n), jnp.float32), *lanes],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes
        ),
        cost_estimate=pl.CostEstimate(
            flops=spec.flops * spec.passes, transcendentals=spec.m * spec.n, bytes_accessed=schedule.hbm_bytes
        ),
        interpret=interpret,
        name=f"systolic_loss_{spec.dtype}_{spec.m}_{spec.k}_{spec.n}",
    )(from_hbm(x), from_hbm(w), labels)
    return statistics, logits[0] if logits else None


def _kernel(
    x_vmem: Any,  # [tile_m, depth]
    w_vmem: Any,  # [depth, tile_n]
    labels_vmem: Any,  # [tile_m, 1] int32
    out_vmem: Any,  # [tile_m, 8] float32
    *refs: Any,  # if logits are kept [tile_m, tile_n] in x's dtype; scratch
    schedule: LossSchedule,
    soft_cap: float | None,
) -> None:
    # [subtile_m, subtile_n] float32, of the subtile before; four times [tile_m, 128] float32; [tile_m, 128] int32, of
    # which each row has its label in all lanes: to write it there for each use takes 4 cycles a register.
    *kept_vmem, logits_vmem, max_vmem, sum_vmem, picked_vmem, total_vmem, spread_vmem = refs
    spec, config = schedule.spec, schedule.config
    j, last = pl.program_id(1), schedule.grid[1] - 1
    tile_n, rows_at_once = config.tiles.tile_n, chunk_rows(schedule)
    lane = lax.broadcasted_iota(jnp.int32, (rows_at_once, LANES), 1)

    @pl.when(j == 0)
    def _() -> None:
        max_vmem[...] = jnp.full(max_vmem.shape, LOWEST, jnp.float32)
        for statistic in (sum_vmem, picked_vmem, total_vmem):
            statistic[...] = jnp.zeros(statistic.shape, jnp.float32)

        def spread(rows: Any) -> None:
            spread_vmem[rows, :] = jnp.broadcast_to(labels_vmem[rows, :], (rows.size, LANES))

        def clear(rows: Any) -> None:
            logits_vmem[rows, :] = jnp.full((rows.size, config.subtile_n), LOWEST, jnp.float32)

        by_rows(config.tiles.tile_m, spread)
        by_rows(config.subtile_m, clear)

    def absorb(row: Any, chunk: Any, column: Any) -> Array:
        """Add a chunk of rows of the logits in VMEM, whose subtile begins at this row and column, to the statistics.

        Returns numbers above zero that depend on all of them: [rows, 128].
        """
        rows, chunk_at = pl.ds(row + chunk, rows_at_once), pl.ds(chunk, rows_at_once)
        label = spread_vmem[rows, :] - column
        groups = []
        for group in range(0, config.subtile_n, LANES):
            logits = soft_capped(logits_vmem[chunk_at, group : group + LANES], soft_cap)
            if soft_cap is not None:  # before the first subtile there are none, and their cap is not the lowest number
                logits = jnp.where(lane + group >= -column, logits, LOWEST)
            if spec.n % tile_n:
                logits = jnp.where(lane < spec.n - column - group, logits, LOWEST)
            groups.append(logits)
        old = max_vmem[rows, :]
        new = functools.reduce(jnp.maximum, groups, old)
        exponentials = [jnp.exp(logits - new) for logits in groups]
        max_vmem[rows, :] = new
        sums = [functools.reduce(jnp.add, exponentials, sum_vmem[rows, :] * jnp.exp(old - new))]
        sum_vmem[rows, :] = sums[0]
        picked = [jnp.where(lane + number * LANES == label, logits, 0.0) for number, logits in enumerate(groups)]
        sums.append(functools.reduce(jnp.add, picked, picked_vmem[rows, :]))
        picked_vmem[rows, :] = sums[-1]
        if spec.total:
            present = [jnp.where(logits > LOWEST, logits, 0.0) for logits in groups]
            sums.append(functools.reduce(jnp.add, present, total_vmem[rows, :]))
            total_vmem[rows, :] = sums[-1]
        return functools.reduce(jnp.maximum, sums)

    subtiles = config.subtiles

    def step(number: Any) -> None:
        is_first = number == 0
        before = place_of(jnp.where(is_first, subtiles - 1, number - 1), schedule)
        column = before.column + jnp.where(is_first, j - 1, j) * tile_n

        def work(chunk: int) -> Array:
            return absorb(before.row, chunk, column)

        place = place_of(number, schedule)
        logits = multiply_beside(schedule, x_vmem, w_vmem, place, work)
        for stored_vmem in kept_vmem:
            rounded = logits.astype(stored_vmem.dtype)
            stored_vmem[pl.ds(place.row, config.subtile_m), pl.ds(place.column, config.subtile_n)] = rounded
            logits = rounded.astype(jnp.float32)
        logits_vmem[...] = logits

    loop(subtiles, step)

    def join(number: Any) -> None:
        rows = pl.ds(times(number, rows_at_once), rows_at_once)
        largest = jnp.max(max_vmem[rows, :], axis=1, keepdims=True)
        exponentials = jnp.sum(sum_vmem[rows, :] * jnp.exp(max_vmem[rows, :] - largest), axis=1, keepdims=True)
        columns = [
            largest + jnp.log(exponentials),
            jnp.sum(picked_vmem[rows, :], axis=1, keepdims=True),
            jnp.sum(total_vmem[rows, :], axis=1, keepdims=True) if spec.total else jnp.zeros_like(largest),
        ]
        place = lax.broadcasted_iota(jnp.int32, (rows_at_once, ROW_COLUMNS), 1)
        joined = functools.reduce(
            lambda rest, column: jnp.where(place == column[0], column[1], rest),
            enumerate(columns),
            jnp.zeros(place.shape),
        )
        out_vmem[rows, :] = joined

    @pl.when(j == last)
    def _() -> None:
        place = place_of(subtiles - 1, schedule)

        def rest(number: Any) -> None:
            absorb(place.row, times(number, rows_at_once), place.column + j * tile_n)

        loop(config.subtile_m // rows_at_once, rest)
        loop(config.tiles.tile_m // rows_at_once, join)
