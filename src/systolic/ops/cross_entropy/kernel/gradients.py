"""Gradients of x and w in one pass: three products where logits are computed again, two where they were kept.

Grid: tiles of rows, then all tiles of the vocabulary. A tile of x and its float32 gradient stay in VMEM while w passes
once. The errors are in VMEM only, in the operands' dtype.

- recompute: the errors of one subtile are computed during the products of the next subtile's logits.
- keep: the grid has one step more for each tile of rows, and products come a step after their errors: the errors of a
  tile are computed during the products of the tile before, into the other one of two slots.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.launch import from_hbm
from systolic.kernels.subtiles import loop, times
from systolic.ops.cross_entropy.kernel.gradient_parts import add_products, store_errors
from systolic.ops.cross_entropy.kernel.gradient_refs import GradientRefs, Inputs, Outputs, Scratch
from systolic.ops.cross_entropy.kernel.logits import CHUNK_ROWS, chunk_rows, multiply_beside, place_of
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, ROW_COLUMNS, ROWS, LossSchedule
from systolic.schedule import LANES
from systolic.schedule.sizes import padded

_LAST_ROWS = 256  # of the last subtile's errors at once: no product hides them, and short loops leave units idle


def loss_gradients(
    x: Array,
    w: Array,
    rows: Array,
    logits: Array | None,
    *,
    schedule: LossSchedule,
    soft_cap: float | None,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Array, Array]:
    """Return dx [rows, depth] in float32 and dw [cores, stored depth, columns]: in its own dtype, float32 if cores > 1.

    Args:
      x: [rows, depth]; padding is zero.
      w: [stored depth, n].
      rows: [rows, 8] float32, whose columns are listed in `gradient_parts`; cotangents of padding are zero.
      logits: [m, n] before their cap in x's dtype, if they were kept.
    """
    spec, config, tiles = schedule.spec, schedule.config, schedule.config.tiles
    dw_dtype = jnp.dtype(schedule.dw_dtype)
    cores, grid_m, grid_n = schedule.core_grid
    keeps = logits is not None
    lag = int(keeps)
    sums_tile = schedule.depth, tiles.tile_n

    def of_rows(core: Any, i: Any, j: Any) -> tuple[Any, int]:
        return core * grid_m + i, 0

    once = pl.Buffered(1)  # it changes with the tile of rows, and a second copy would take the room of larger tiles
    last_rows = -(-spec.m // tiles.tile_m) - 1  # a core may have a tile of padding alone

    def of_logits(core: Any, i: Any, j: Any) -> tuple[Any, Any]:
        return jnp.minimum(core * grid_m + i, last_rows), jnp.minimum(j, grid_n - 1)

    operands = Inputs(from_hbm(x), from_hbm(w), rows, None if logits is None else from_hbm(logits))
    arrays = jax.tree.leaves(operands)
    ((dx, dw, _),) = pl.pallas_call(
        functools.partial(_kernel, schedule=schedule, soft_cap=soft_cap),
        grid=(cores, grid_m, grid_n + lag),
        in_specs=[
            Inputs(
                x_vmem=pl.BlockSpec((tiles.tile_m, schedule.depth), of_rows, pipeline_mode=once),
                w_vmem=pl.BlockSpec((schedule.depth, tiles.tile_n), lambda core, i, j: (0, jnp.maximum(j - lag, 0))),
                rows_vmem=pl.BlockSpec((tiles.tile_m, ROW_COLUMNS), of_rows),
                kept_vmem=pl.BlockSpec((tiles.tile_m, tiles.tile_n), of_logits) if keeps else None,
            )
        ],
        out_specs=[
            Outputs(
                dx_vmem=pl.BlockSpec((tiles.tile_m, schedule.depth), of_rows, pipeline_mode=once),
                dw_hbm=pl.BlockSpec(memory_space=pltpu.HBM),
                sums_hbm=pl.BlockSpec(memory_space=pltpu.HBM),
            )
        ],
        out_shape=[
            Outputs(
                dx_vmem=shape_with_mesh_axes((schedule.rows, schedule.depth), jnp.float32, arrays),
                dw_hbm=shape_with_mesh_axes((cores * schedule.stored_depth, schedule.columns), dw_dtype, arrays),
                sums_hbm=shape_with_mesh_axes(schedule.sums_shape, jnp.float32, arrays),
            )
        ],
        scratch_shapes=[
            Scratch(
                logits_vmem=None if keeps else pltpu.VMEM((config.subtile_m, config.subtile_n), jnp.float32),
                errors_vmem=pltpu.VMEM((schedule.errors_slots, tiles.tile_m, tiles.tile_n), x.dtype),
                sums_vmem=pltpu.VMEM((DW_SLOTS, *sums_tile), jnp.float32),
                read_sem=pltpu.SemaphoreType.DMA((DW_SLOTS,)),
                write_sem=pltpu.SemaphoreType.DMA((DW_SLOTS,)),
                dw_vmem=pltpu.VMEM((CONVERTED_SLOTS, *sums_tile), dw_dtype) if schedule.converts_dw else None,
            )
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes
        ),
        cost_estimate=pl.CostEstimate(
            flops=spec.flops * spec.passes, transcendentals=spec.m * spec.n, bytes_accessed=schedule.hbm_bytes
        ),
        interpret=interpret,
        name=f"systolic_loss_gradients_{spec.dtype}_{spec.m}_{spec.k}_{spec.n}",
    )(operands)
    return dx, dw.reshape(cores, schedule.stored_depth, schedule.columns)


def _kernel(
    inputs: Inputs, outputs: Outputs, scratch: Scratch, *, schedule: LossSchedule, soft_cap: float | None
) -> None:
    w_vmem = inputs.w_vmem
    if schedule.stored_depth < schedule.depth:  # what a copy does not reach is garbage, by which zeros are multiplied
        rest = schedule.depth - schedule.stored_depth
        w_vmem[pl.ds(schedule.stored_depth, rest), :] = jnp.zeros((rest, w_vmem.shape[1]), w_vmem.dtype)
    run = _recompute if inputs.kept_vmem is None else _keep
    run(schedule, soft_cap, GradientRefs(inputs, outputs, scratch))


def _recompute(schedule: LossSchedule, soft_cap: float | None, refs: GradientRefs) -> None:
    core, i, j = (pl.program_id(axis) for axis in range(3))
    spec, config = schedule.spec, schedule.config
    rows_at_once, subtiles, first_column = chunk_rows(schedule), config.subtiles, j * config.tiles.tile_n

    @pl.when(j == 0)
    def _() -> None:
        refs.outputs.dx_vmem[...] = jnp.zeros(refs.outputs.dx_vmem.shape, jnp.float32)

    def convert(place: Any, chunk: Any) -> Array:
        """Store the errors of a chunk of rows of the logits in VMEM."""
        rows, column = pl.ds(place.row + chunk, rows_at_once), place.column + first_column

        def store(group: int, errors: Array) -> None:
            at = place.column + group
            columns = pl.ds(at if isinstance(at, int) else pl.multiple_of(at, LANES), LANES)
            refs.scratch.errors_vmem[0, rows, columns] = errors.astype(refs.scratch.errors_vmem.dtype)

        columns_left = spec.n - column if spec.n % config.tiles.tile_n else None
        logits = refs.scratch.logits_vmem.at[pl.ds(chunk, rows_at_once), :]
        return store_errors(schedule, soft_cap, refs.inputs.rows_vmem[rows, :], column, columns_left, logits, store)

    def subtile(number: Any) -> None:
        before = place_of(jnp.maximum(number - 1, 0), schedule)

        def work(first: int, last: int) -> Array:
            return jnp.concatenate([convert(before, chunk) for chunk in range(first, last, rows_at_once)], axis=0)

        refs.scratch.logits_vmem[...] = multiply_beside(
            schedule, refs.inputs.x_vmem, refs.inputs.w_vmem, place_of(number, schedule), work
        )

    def errors() -> None:
        # Before the first subtile, what is left in VMEM is converted, to be overwritten after the second.
        loop(subtiles, subtile)
        place = place_of(subtiles - 1, schedule)
        at_once = math.gcd(config.subtile_m, _LAST_ROWS)

        def rest(number: Any) -> None:
            for chunk in range(0, at_once, rows_at_once):
                convert(place, times(number, at_once) + chunk)

        loop(config.subtile_m // at_once, rest)

    add_products(schedule, refs, core, i, j, refs.scratch.errors_vmem.at[0], errors, lambda number: None)


def _keep(schedule: LossSchedule, soft_cap: float | None, refs: GradientRefs) -> None:
    core, i, j = (pl.program_id(axis) for axis in range(3))
    spec, tiles = schedule.spec, schedule.config.tiles
    first_row = (core * schedule.core_grid[1] + i) * tiles.tile_m
    next_errors = refs.scratch.errors_vmem.at[lax.rem(j, jnp.int32(2))]

    def convert(first: Any, n_rows: int) -> None:
        """Store the errors of some rows of the logits in VMEM."""
        rows, column = pl.ds(first, n_rows), j * tiles.tile_n

        def store(group: int, errors: Array) -> None:
            next_errors[rows, group : group + LANES] = errors.astype(refs.scratch.errors_vmem.dtype)

        columns_left = spec.n - column if spec.n % tiles.tile_n else None
        if spec.m != schedule.rows:  # rows of logits that are not there are garbage, by which zeros would be multiplied
            row = lax.broadcasted_iota(jnp.int32, (n_rows, 1), 0)
            columns_left = jnp.where(row < spec.m - first_row - first, spec.n - column, 0)
        logits = refs.inputs.kept_vmem.at[rows, :]
        store_errors(schedule, soft_cap, refs.inputs.rows_vmem[rows, :], column, columns_left, logits, store)

    @pl.when(j == 0)
    def _() -> None:
        refs.outputs.dx_vmem[...] = jnp.zeros(refs.outputs.dx_vmem.shape, jnp.float32)
        rows = math.gcd(tiles.tile_m, CHUNK_ROWS)
        loop(tiles.tile_m // rows, lambda number: convert(times(number, rows), rows))

    part_rows = padded(-(-tiles.tile_m * schedule.gradient_part // schedule.depth), ROWS)
    at_once = math.gcd(part_rows, CHUNK_ROWS)

    def beside(number: Any) -> None:
        # The last part may begin with rows of the part before.
        first = jnp.minimum(number * part_rows, tiles.tile_m - part_rows)
        for chunk in range(0, part_rows, at_once):
            convert(pl.multiple_of(first + chunk, ROWS), at_once)

    @pl.when(j > 0)
    def _() -> None:
        errors = refs.scratch.errors_vmem.at[lax.rem(j - 1, jnp.int32(2))]
        add_products(schedule, refs, core, i, j - 1, errors, lambda: None, beside)
