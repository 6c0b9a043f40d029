"""Gradients of x and w in one pass: three products where logits are computed again, two where they were kept.

Grid: tiles of rows, then all tiles of the vocabulary. A tile of x and its float32 gradient stay in VMEM while w passes
once. The errors are in VMEM only, in the operands' dtype.

The grid has one step more for each tile of rows, and the products of the gradients come a step after their errors, so
that no errors wait for their own products:

- recompute: the errors of one subtile are computed during the products of the next subtile's logits, those of the last
  one during the products of the gradients of the tile before.
- keep: the errors of a tile are computed during the products of the gradients of the tile before.
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
from systolic.kernels.subtiles import loop
from systolic.ops.cross_entropy.kernel.gradient_parts import add_products, pieces, spread_rows, store_errors
from systolic.ops.cross_entropy.kernel.gradient_refs import GradientRefs, Inputs, Outputs, Scratch
from systolic.ops.cross_entropy.kernel.logits import (
    CHUNK_ROWS,
    Place,
    by_rows,
    chunk_rows,
    multiply_beside,
    place_of,
)
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, ROW_COLUMNS, ROWS, LossSchedule
from systolic.schedule import LANES
from systolic.schedule.sizes import padded

_MOVED_ROWS = 256  # of errors from one ref to the other at once


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
    sums_tile = schedule.depth, tiles.tile_n

    def of_rows(core: Any, i: Any, j: Any) -> tuple[Any, int]:
        return core * grid_m + i, 0

    once = pl.Buffered(1)  # it changes with the tile of rows, and a second copy would take the room of larger tiles
    last_rows = -(-spec.m // tiles.tile_m) - 1  # a core may have a tile of padding alone

    def of_logits(core: Any, i: Any, j: Any) -> tuple[Any, Any]:
        return jnp.minimum(core * grid_m + i, last_rows), jnp.minimum(j, grid_n - 1)

    def of_next_w(core: Any, i: Any, j: Any) -> tuple[int, Any]:
        return 0, jnp.minimum(j, grid_n - 1)

    w = from_hbm(w)
    operands = Inputs(from_hbm(x), w, None if keeps else w, from_hbm(logits) if keeps else None, rows)
    arrays = jax.tree.leaves(operands)
    ((dx, dw, _),) = pl.pallas_call(
        functools.partial(_kernel, schedule=schedule, soft_cap=soft_cap),
        grid=(cores, grid_m, grid_n + 1),
        in_specs=[
            Inputs(
                x_vmem=pl.BlockSpec((tiles.tile_m, schedule.depth), of_rows, pipeline_mode=once),
                w_vmem=pl.BlockSpec((schedule.depth, tiles.tile_n), lambda core, i, j: (0, jnp.maximum(j - 1, 0))),
                next_w_vmem=None if keeps else pl.BlockSpec((schedule.depth, tiles.tile_n), of_next_w),
                kept_vmem=pl.BlockSpec((tiles.tile_m, tiles.tile_n), of_logits) if keeps else None,
                rows_vmem=pl.BlockSpec((tiles.tile_m, ROW_COLUMNS), of_rows),
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
                labels_vmem=pltpu.VMEM((tiles.tile_m, LANES), jnp.int32),
                spread_vmem=pltpu.VMEM((3 + spec.total, tiles.tile_m, LANES), jnp.float32),
                logits_vmem=None if keeps else pltpu.VMEM((config.subtile_m, config.subtile_n), jnp.float32),
                errors_vmem=pltpu.VMEM((tiles.tile_m, tiles.tile_n), x.dtype),
                next_errors_vmem=pltpu.VMEM((tiles.tile_m, tiles.tile_n), x.dtype),
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
    core, i, j = (pl.program_id(axis) for axis in range(3))
    grid_n, config = schedule.core_grid[2], schedule.config
    recomputes = inputs.kept_vmem is None
    if schedule.stored_depth < schedule.depth:  # what a copy does not reach is garbage, by which zeros are multiplied
        rest = schedule.depth - schedule.stored_depth
        for w_vmem in (inputs.w_vmem, inputs.next_w_vmem) if recomputes else (inputs.w_vmem,):
            w_vmem[pl.ds(schedule.stored_depth, rest), :] = jnp.zeros((rest, w_vmem.shape[1]), w_vmem.dtype)

    @pl.when(j == 0)
    def _() -> None:
        def clear(rows: Any) -> None:
            outputs.dx_vmem[rows, :] = jnp.zeros((rows.size, schedule.depth), jnp.float32)

        by_rows(config.tiles.tile_m, clear)
        spread_rows(inputs.rows_vmem, scratch)

    # Errors that wait for the products of the tile before: of the last subtile's logits, or of all that were kept.
    last, rows = Place(row=0, column=0), config.tiles.tile_m
    if recomputes:
        last, rows = place_of(config.subtiles - 1, schedule), config.subtile_m
        pl.when(j < grid_n)(functools.partial(_logits, schedule, soft_cap, inputs, scratch))
    convert = functools.partial(_convert, schedule, soft_cap, inputs, scratch, last)

    @pl.when(j == 0)
    def _() -> None:
        def chunk(rows: Any) -> None:
            convert(rows.start, rows.size)

        by_rows(rows, chunk)

    piece_rows = padded(-(-rows // pieces(schedule)), ROWS)
    at_once = math.gcd(piece_rows, CHUNK_ROWS)

    def beside(number: Any) -> list[Array]:
        # The last pieces may begin with rows of the piece before.
        first = jnp.minimum(number * piece_rows, rows - piece_rows)
        return [convert(pl.multiple_of(first + chunk, ROWS), at_once) for chunk in range(0, piece_rows, at_once)]

    @pl.when(j > 0)
    def _() -> None:
        add_products(schedule, GradientRefs(inputs, outputs, scratch), core, i, j - 1, beside)

    def move(rows: Any) -> None:
        scratch.errors_vmem[rows, :] = scratch.next_errors_vmem[rows, :]

    by_rows(config.tiles.tile_m, move, _MOVED_ROWS)


def _logits(schedule: LossSchedule, soft_cap: float | None, inputs: Inputs, scratch: Scratch) -> None:
    """Compute the logits of a tile, and the errors of all but its last subtile."""
    rows_at_once = chunk_rows(schedule)

    def subtile(number: Any) -> None:
        # Before the first subtile, what is left in VMEM is converted, to be overwritten later.
        before = place_of(jnp.maximum(number - 1, 0), schedule)

        def work(chunk: int) -> Array:
            return _convert(schedule, soft_cap, inputs, scratch, before, chunk, rows_at_once)

        scratch.logits_vmem[...] = multiply_beside(
            schedule, inputs.x_vmem, inputs.next_w_vmem, place_of(number, schedule), work
        )

    loop(schedule.config.subtiles, subtile)


def _convert(
    schedule: LossSchedule,
    soft_cap: float | None,
    inputs: Inputs,
    scratch: Scratch,
    place: Place,
    row: Any,
    n_rows: int,
) -> Array:
    """Store the errors of rows of the logits in VMEM, which begin at a place of the step's tile."""
    core, i, j = (pl.program_id(axis) for axis in range(3))
    spec, tiles = schedule.spec, schedule.config.tiles
    rows, column = pl.ds(place.row + row, n_rows), place.column + j * tiles.tile_n

    def store(group: int, errors: Array) -> None:
        at = place.column + group
        columns = pl.ds(at if isinstance(at, int) else pl.multiple_of(at, LANES), LANES)
        scratch.next_errors_vmem[rows, columns] = errors.astype(scratch.next_errors_vmem.dtype)

    columns_left = spec.n - column if spec.n % tiles.tile_n else None
    if inputs.kept_vmem is not None and spec.m != schedule.rows:
        # Rows of logits that are not there are garbage, by which zeros would be multiplied.
        present = spec.m - (core * schedule.core_grid[1] + i) * tiles.tile_m - place.row - row
        columns_left = jnp.where(lax.broadcasted_iota(jnp.int32, (n_rows, 1), 0) < present, spec.n - column, 0)
    logits_vmem = scratch.logits_vmem if inputs.kept_vmem is None else inputs.kept_vmem
    logits = logits_vmem.at[pl.ds(row, n_rows), :]
    return store_errors(schedule, soft_cap, rows, column, columns_left, logits, scratch, store)
