"""Gradients of x and w from logits that are computed again, in one pass: three products.

    errors = dlse · exp(logits - lse) + dpicked · (column = label) + dtotal
    dx = errors @ wᵀ          dw = xᵀ @ errors

Grid: tiles of rows, then all tiles of the vocabulary. A tile of x and its float32 gradient stay in VMEM while w passes
once. A tile of dw is one sum over the tiles of rows: the kernel reads the sum of the tiles before, adds its part, and
writes it, with copies of its own that take place during the products: in float32, for the last tile of rows in w's
dtype. The errors are in VMEM only, in the operands' dtype.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.dots import dot
from systolic.kernels.launch import from_hbm
from systolic.kernels.subtiles import loop, times
from systolic.ops.cross_entropy.kernel.logits import Place, chunk_rows, multiply_beside, place_of, soft_capped
from systolic.ops.cross_entropy.kernel.sum_copies import SumCopies
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, ROW_COLUMNS, LossSchedule
from systolic.schedule import LANES
from systolic.schedule.sizes import largest_divisor

# Columns of `rows`: a row's label, log-sum-exp, and the cotangents of log-sum-exp, label's logit and sum of logits.
LABEL, LSE, DLSE, DPICKED, DTOTAL = range(5)
_LAST_ROWS = 256  # of the last subtile's errors at once: no product hides them, and short loops leave units idle
_CLEARED_ROWS = 512  # of w's last tile at once


def loss_gradients(
    x: Array,
    w: Array,
    rows: Array,
    *,
    schedule: LossSchedule,
    soft_cap: float | None,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Array, Array]:
    """Return dx [rows, depth] in float32, and dw [cores, depth, columns] in its own dtype, or in float32 if cores > 1.

    Args:
      x: [rows, depth]; padding is zero.
      w: [depth, n].
      rows: [rows, 8] float32, whose columns are listed above; cotangents of padding are zero.
    """
    spec, config, tiles = schedule.spec, schedule.config, schedule.config.tiles
    inputs = [x, w, rows]
    dw_dtype = jnp.dtype(schedule.dw_dtype)

    def of_rows(core: Any, i: Any, j: Any) -> tuple[Any, int]:
        return core * schedule.core_grid[1] + i, 0

    once = pl.Buffered(1)  # it changes with the tile of rows, and a second copy would take the room of larger tiles
    dx, dw, _ = pl.pallas_call(
        functools.partial(_kernel, schedule=schedule, soft_cap=soft_cap),
        grid=schedule.core_grid,
        in_specs=[
            pl.BlockSpec((tiles.tile_m, schedule.depth), of_rows, pipeline_mode=once),
            pl.BlockSpec((schedule.depth, tiles.tile_n), lambda core, i, j: (0, j)),
            pl.BlockSpec((tiles.tile_m, ROW_COLUMNS), of_rows),
        ],
        out_specs=[
            pl.BlockSpec((tiles.tile_m, schedule.depth), of_rows, pipeline_mode=once),
            pl.BlockSpec(memory_space=pltpu.HBM),
            pl.BlockSpec(memory_space=pltpu.HBM),
        ],
        out_shape=[
            shape_with_mesh_axes((schedule.rows, schedule.depth), jnp.float32, inputs),
            shape_with_mesh_axes((schedule.cores * schedule.depth, schedule.columns), dw_dtype, inputs),
            shape_with_mesh_axes(schedule.sums_shape, jnp.float32, inputs),
        ],
        scratch_shapes=[
            pltpu.VMEM((config.subtile_m, config.subtile_n), jnp.float32),
            pltpu.VMEM((tiles.tile_m, tiles.tile_n), x.dtype),
            pltpu.VMEM((DW_SLOTS, schedule.depth, tiles.tile_n), jnp.float32),
            pltpu.SemaphoreType.DMA((DW_SLOTS,)),
            pltpu.SemaphoreType.DMA((DW_SLOTS,)),
            *([pltpu.VMEM((CONVERTED_SLOTS, schedule.depth, tiles.tile_n), dw_dtype)] if schedule.converts_dw else []),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes
        ),
        cost_estimate=pl.CostEstimate(
            flops=spec.flops * spec.passes, transcendentals=spec.m * spec.n, bytes_accessed=schedule.hbm_bytes
        ),
        interpret=interpret,
        name=f"systolic_loss_gradients_{spec.dtype}_{spec.m}_{spec.k}_{spec.n}",
    )(from_hbm(x), from_hbm(w), rows)
    return dx, dw.reshape(schedule.cores, schedule.depth, schedule.columns)


def _kernel(
    x_vmem: Any,  # [tile_m, depth]
    w_vmem: Any,  # [depth, tile_n]
    rows_vmem: Any,  # [tile_m, 8] float32
    dx_vmem: Any,  # [tile_m, depth] float32
    dw_hbm: Any,  # [depth, columns]
    sums_hbm: Any,  # [depth, columns] float32, if there are several tiles of rows
    logits_vmem: Any,  # [subtile_m, subtile_n] float32
    errors_vmem: Any,  # [tile_m, tile_n]
    sums_vmem: Any,  # [slots, depth, tile_n] float32
    read_sem: Any,
    write_sem: Any,
    dw_vmem: Any = None,  # [slots, depth, tile_n], if the sums are converted
    *,
    schedule: LossSchedule,
    soft_cap: float | None,
) -> None:
    grid_m, grid_n = schedule.core_grid[1:]
    core, i, j = (pl.program_id(axis) for axis in range(3))
    step = i * grid_n + j
    slot = lax.rem(step, jnp.int32(DW_SLOTS))
    copies = SumCopies(
        schedule, core, (sums_hbm, sums_vmem), (dw_hbm, sums_vmem if dw_vmem is None else dw_vmem), read_sem, write_sem
    )

    # The slot of the next step is free once the copy of the step two before has left it.
    @pl.when(step >= DW_SLOTS - 1)
    def _() -> None:
        copies.each(step - (DW_SLOTS - 1), "write", "wait")

    if grid_m > 1:

        @pl.when((step + 1 >= grid_n) & (step + 1 < grid_m * grid_n))
        def _() -> None:
            copies.each(step + 1, "read", "start")

    @pl.when(j == 0)
    def _() -> None:
        dx_vmem[...] = jnp.zeros(dx_vmem.shape, jnp.float32)

    _clear_padding(schedule, w_vmem, j)
    _errors(schedule, soft_cap, x_vmem, w_vmem, rows_vmem, logits_vmem, errors_vmem, j)

    if grid_m > 1:

        @pl.when(i > 0)
        def _() -> None:
            copies.each(step, "read", "wait")

    converted = None if dw_vmem is None else dw_vmem.at[lax.rem(step, jnp.int32(CONVERTED_SLOTS))]
    _add(schedule, x_vmem, w_vmem, errors_vmem, dx_vmem, sums_vmem.at[slot], converted, i)
    copies.each(step, "write", "start")

    @pl.when(step == grid_m * grid_n - 1)
    def _() -> None:
        for before in range(min(DW_SLOTS - 1, grid_m * grid_n) - 1, -1, -1):
            copies.each(step - before, "write", "wait")


def _clear_padding(schedule: LossSchedule, w_vmem: Any, j: Any) -> None:
    """Overwrite columns of w after the vocabulary with zeros: they are garbage, by which zeros would be multiplied."""
    tile_n, depth = schedule.config.tiles.tile_n, schedule.depth
    present = schedule.spec.n - (schedule.grid[1] - 1) * tile_n
    if present == tile_n:
        return
    at_once = largest_divisor(depth, LANES, _CLEARED_ROWS)

    @pl.when(j == schedule.grid[1] - 1)
    def _() -> None:
        def clear(number: Any) -> None:
            rows = pl.ds(times(number, at_once), at_once)
            for column in range(present // LANES * LANES, tile_n, LANES):
                columns = pl.ds(column, LANES)
                lane = lax.broadcasted_iota(jnp.int32, (at_once, LANES), 1)
                values = w_vmem[rows, columns].astype(jnp.float32)
                w_vmem[rows, columns] = jnp.where(lane < present - column, values, 0.0).astype(w_vmem.dtype)

        loop(depth // at_once, clear)


def _errors(
    schedule: LossSchedule,
    soft_cap: float | None,
    x_vmem: Any,
    w_vmem: Any,
    rows_vmem: Any,
    logits_vmem: Any,
    errors_vmem: Any,
    j: Any,
) -> None:
    """Compute the errors of a tile from its logits: those of one subtile during the products of the next."""
    spec, config = schedule.spec, schedule.config
    rows_at_once, subtiles = chunk_rows(schedule), config.subtiles
    lane = lax.broadcasted_iota(jnp.int32, (rows_at_once, LANES), 1)

    def convert(place: Place, chunk: Any) -> Array:
        """Store the errors of a chunk of rows of the logits in VMEM; return numbers above zero that depend on them."""
        rows, chunk_at = pl.ds(place.row + chunk, rows_at_once), pl.ds(chunk, rows_at_once)
        row = rows_vmem[rows, :]
        label = row[:, LABEL : LABEL + 1].astype(jnp.int32) - (place.column + j * config.tiles.tile_n)
        lse, dlse, dpicked, dtotal = (row[:, at : at + 1] for at in (LSE, DLSE, DPICKED, DTOTAL))
        seen = jnp.zeros((rows_at_once, LANES), jnp.float32)
        for group in range(0, config.subtile_n, LANES):
            logits = soft_capped(logits_vmem[chunk_at, group : group + LANES], soft_cap)
            probabilities = jnp.exp(logits - lse)
            errors = dlse * probabilities + jnp.where(lane + group == label, dpicked, 0.0)
            if spec.total:
                errors = errors + dtotal
            if soft_cap is not None:
                errors = errors * (1 - jnp.square(logits * (1 / soft_cap)))
            if spec.n % config.tiles.tile_n:
                left = spec.n - j * config.tiles.tile_n - place.column - group
                errors = jnp.where(lane < left, errors, 0.0)
            errors_vmem[rows, pl.ds(times_of(place.column, group), LANES)] = errors.astype(errors_vmem.dtype)
            seen = jnp.maximum(seen, probabilities)
        return seen

    def step(number: Any) -> None:
        before = place_of(jnp.maximum(number - 1, 0), schedule)

        def work(first: int, last: int) -> Array:
            return jnp.concatenate([convert(before, chunk) for chunk in range(first, last, rows_at_once)], axis=0)

        logits_vmem[...] = multiply_beside(schedule, x_vmem, w_vmem, place_of(number, schedule), work)

    # Before the first subtile, what is left in VMEM is converted, to be overwritten after the second.
    loop(subtiles, step)
    place = place_of(subtiles - 1, schedule)
    at_once = math.gcd(config.subtile_m, _LAST_ROWS)

    def rest(number: Any) -> None:
        for chunk in range(0, at_once, rows_at_once):
            convert(place, times(number, at_once) + chunk)

    loop(config.subtile_m // at_once, rest)


def times_of(column: Any, group: int) -> Any:
    return column + group if isinstance(column, int) else pl.multiple_of(column + group, LANES)


def _add(
    schedule: LossSchedule,
    x_vmem: Any,
    w_vmem: Any,
    errors_vmem: Any,
    dx_vmem: Any,
    sums_vmem: Any,
    dw_vmem: Any,
    i: Any,
) -> None:
    """Add a tile's part to both gradients; both products of some of k are one stretch of code, which drains once."""
    size = schedule.gradient_part

    def part(number: Any) -> None:
        features = pl.ds(times(number, size), size)
        dx_vmem[:, features] += dot(errors_vmem[...], w_vmem[features, :], (1, 1), schedule.spec)
        before = jnp.where(i > 0, sums_vmem[features, :], 0.0)
        total = before + dot(x_vmem[:, features], errors_vmem[...], (0, 0), schedule.spec)
        sums_vmem[features, :] = total
        if dw_vmem is not None:
            dw_vmem[features, :] = total.astype(dw_vmem.dtype)

    loop(schedule.depth // size, part)
