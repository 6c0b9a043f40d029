"""Gradients of x and w in one pass: three products where logits are computed again, two where they were kept.

    dx = errors @ wᵀ          dw = xᵀ @ errors

Grid: tiles of rows, for each of them tiles of the vocabulary, and for each of these parts of the features: w and
its gradient pass through VMEM part by part. A tile of x and its float32 gradient stay there. Errors are in VMEM only,
in the operands' dtype.

A step is one stretch of straight code, which has a part of the features in three products: of logits, and of both
gradients, for tiles of the vocabulary two apart. Between them is the tile whose logits become errors during these
products. Where logits were kept, errors are computed during the products of the tile before. The grid has two
more tiles of the vocabulary, or one: errors are zero in the first steps, and the last steps repeat the last tile's
logits.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.launch import from_hbm
from systolic.kernels.subtiles import loop, times
from systolic.ops.cross_entropy.kernel.errors import spread_rows
from systolic.ops.cross_entropy.kernel.gradient_refs import GradientRefs, Inputs, Outputs, Scratch
from systolic.ops.cross_entropy.kernel.gradients_step import gradients_step
from systolic.ops.cross_entropy.kernel.logits import by_rows
from systolic.ops.cross_entropy.kernel.sum_copies import SumCopies
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, ROW_COLUMNS, LossSchedule
from systolic.schedule import LANES
from systolic.schedule.sizes import largest_divisor

_MOVED_ROWS = 256  # of errors from one slot to the other at once
_CLEARED_ROWS = 512  # of w's last tile at once


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

    Columns of dx after w's features are garbage.

    Args:
      x: [rows, depth]; padding is zero.
      w: [stored depth, n].
      rows: [rows, 8] float32, whose columns are listed in `errors`; cotangents of padding are zero.
      logits: [m, n] before their cap in x's dtype, if they were kept.
    """
    spec, tiles, lag = schedule.spec, schedule.config.tiles, schedule.lag
    dw_dtype = jnp.dtype(schedule.dw_dtype)
    cores, grid_m, grid_n = schedule.core_grid
    keeps = logits is not None
    part, logits_tile = (tiles.tile_k, tiles.tile_n), (tiles.tile_m, tiles.tile_n)

    def of_rows(core: Any, i: Any, j: Any, f: Any) -> tuple[Any, int]:
        return core * grid_m + i, 0

    def of_x(core: Any, i: Any, j: Any, f: Any) -> tuple[Any, Any]:
        return core * grid_m + i, f

    def of_w(core: Any, i: Any, j: Any, f: Any) -> tuple[Any, Any]:
        return f, jnp.maximum(j - lag, 0)

    def of_next_w(core: Any, i: Any, j: Any, f: Any) -> tuple[Any, Any]:
        return f, jnp.minimum(j, grid_n - 1)

    once = pl.Buffered(1)  # it changes with the tile of rows, and a second copy would take the room of larger tiles
    last_rows = -(-spec.m // tiles.tile_m) - 1  # a core may have a tile of padding alone

    def of_logits(core: Any, i: Any, j: Any, f: Any) -> tuple[Any, Any]:
        return jnp.minimum(core * grid_m + i, last_rows), jnp.minimum(j, grid_n - 1)

    w = from_hbm(w)
    operands = Inputs(from_hbm(x), w, None if keeps else w, from_hbm(logits) if keeps else None, rows)
    arrays = jax.tree.leaves(operands)
    ((dx, dw, _),) = pl.pallas_call(
        functools.partial(_kernel, schedule=schedule, soft_cap=soft_cap),
        grid=(cores, grid_m, grid_n + lag, schedule.parts),
        in_specs=[
            Inputs(
                x_vmem=pl.BlockSpec((tiles.tile_m, tiles.tile_k), of_x)
                if schedule.streams_x
                else pl.BlockSpec((tiles.tile_m, schedule.depth), of_rows, pipeline_mode=once),
                w_vmem=pl.BlockSpec(part, of_w),
                next_w_vmem=None if keeps else pl.BlockSpec(part, of_next_w),
                kept_vmem=pl.BlockSpec(logits_tile, of_logits) if keeps else None,
                rows_vmem=pl.BlockSpec((tiles.tile_m, ROW_COLUMNS), of_rows, pipeline_mode=once),
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
                logits_vmem=None if keeps else pltpu.VMEM((2, *logits_tile), jnp.float32),
                errors_vmem=pltpu.VMEM((2, *logits_tile), x.dtype),
                sums_vmem=pltpu.VMEM((DW_SLOTS, *part), jnp.float32) if schedule.has_sums else None,
                dw_vmem=pltpu.VMEM((CONVERTED_SLOTS, *part), dw_dtype) if schedule.converts_dw else None,
                slots_smem=pltpu.SMEM((2,), jnp.int32),
                read_sem=pltpu.SemaphoreType.DMA((DW_SLOTS,)),
                write_sem=pltpu.SemaphoreType.DMA((DW_SLOTS,)),
            )
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes
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
    core, i, j, part = (pl.program_id(axis) for axis in range(4))
    tiles, refs = schedule.config.tiles, GradientRefs(inputs, outputs, scratch)

    @pl.when((j == 0) & (part == 0))
    def _() -> None:
        def clear(rows: Any) -> None:
            outputs.dx_vmem[rows, :] = jnp.zeros((rows.size, schedule.depth), jnp.float32)

        by_rows(tiles.tile_m, clear)
        spread_rows(inputs.rows_vmem, scratch)

    _clear_padding(schedule, inputs, jnp.maximum(j - schedule.lag, 0), part)
    copies = SumCopies(schedule, refs, core, i, j, part)
    copies.begin()
    slot, step = lax.rem(j, jnp.int32(2)), functools.partial(gradients_step, schedule, soft_cap, refs, copies)
    # Two slots whose numbers the compiler does not know may be the same memory to it, and it would compute no products
    # before errors of the next tile are stored. Where logits are computed again, these are stored first.
    if inputs.kept_vmem is None:
        step(slot)
    elif schedule.alternates:
        for number in range(2):
            pl.when(slot == number)(functools.partial(step, number))
    else:
        step(1)

        @pl.when(part == schedule.parts - 1)
        def _() -> None:
            def move(rows: Any) -> None:
                scratch.errors_vmem[0, rows, :] = scratch.errors_vmem[1, rows, :]

            by_rows(tiles.tile_m, move, _MOVED_ROWS)

    copies.end()


def _clear_padding(schedule: LossSchedule, inputs: Inputs, j: Any, part: Any) -> None:
    """Overwrite what copies of w do not reach with zeros: it is garbage, by which zeros would be multiplied."""
    tiles = schedule.config.tiles
    if inputs.next_w_vmem is not None and schedule.last_features < tiles.tile_k:

        @pl.when(part == schedule.parts - 1)
        def _() -> None:
            shape = tiles.tile_k - schedule.last_features, tiles.tile_n
            inputs.next_w_vmem[schedule.last_features :, :] = jnp.zeros(shape, inputs.next_w_vmem.dtype)

    w_vmem, present = inputs.w_vmem, schedule.spec.n - (schedule.grid[1] - 1) * tiles.tile_n
    if present == tiles.tile_n:
        return
    at_once = largest_divisor(tiles.tile_k, LANES, _CLEARED_ROWS)

    @pl.when(j == schedule.grid[1] - 1)
    def _() -> None:
        def clear(number: Any) -> None:
            rows = pl.ds(times(number, at_once), at_once)
            for column in range(present // LANES * LANES, tiles.tile_n, LANES):
                columns = pl.ds(column, LANES)
                lane = lax.broadcasted_iota(jnp.int32, (at_once, LANES), 1)
                values = w_vmem[rows, columns].astype(jnp.float32)
                w_vmem[rows, columns] = jnp.where(lane < present - column, values, 0.0).astype(w_vmem.dtype)

        loop(tiles.tile_k // at_once, clear)
