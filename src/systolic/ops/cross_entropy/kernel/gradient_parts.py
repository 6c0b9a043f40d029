"""The parts that both kernels of the gradients share: errors of some rows of logits, and the products of a tile.

    errors = dlse · exp(logits - lse) + dpicked · (column = label) + dtotal
    dx = errors @ wᵀ          dw = xᵀ @ errors

A tile of dw is one sum over the tiles of rows: the kernel reads the sum of the tiles before, adds its part, and writes
it, with copies of its own that take place during the products: in float32, for the last tile of rows in w's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.kernels.dots import dot
from systolic.kernels.subtiles import loop, times
from systolic.ops.cross_entropy.kernel.gradient_refs import GradientRefs, Scratch
from systolic.ops.cross_entropy.kernel.logits import after_all, by_rows, soft_capped
from systolic.ops.cross_entropy.kernel.sum_copies import SumCopies
from systolic.ops.cross_entropy.schedule import CONVERTED_SLOTS, DW_SLOTS, LossSchedule
from systolic.schedule import LANES
from systolic.schedule.sizes import largest_divisor

# Columns of `rows`: a row's label, log-sum-exp, and the cotangents of log-sum-exp, label's logit and sum of logits.
LABEL, LSE, DLSE, DPICKED, DTOTAL = range(5)
_CLEARED_ROWS = 512  # of w's last tile at once
_PIECE_FEATURES = 256  # of k, beside whose products comes one piece of elementwise work: columns of a matrix unit


def spread_rows(rows_vmem: Any, scratch: Scratch) -> None:
    """Write the numbers of the rows across all lanes, once for a tile: each use would take 4 cycles a register."""

    def spread(rows: Any) -> None:
        values = [jnp.broadcast_to(rows_vmem[rows, at : at + 1], (rows.size, LANES)) for at in range(DTOTAL + 1)]
        scratch.labels_vmem[rows, :] = values[LABEL].astype(jnp.int32)
        for at in range(LSE, scratch.spread_vmem.shape[0] + LSE):
            scratch.spread_vmem[at - LSE, rows, :] = values[at]

    by_rows(rows_vmem.shape[0], spread)


def store_errors(
    schedule: LossSchedule,
    soft_cap: float | None,
    rows: Any,
    column: Any,
    columns_left: Any,
    logits_vmem: Any,
    scratch: Scratch,
    store: Callable[[int, Array], None],
) -> Array:
    """Store the errors of some rows; return numbers above zero that depend on all of them: [rows, 128].

    Args:
      rows: a slice of the tile's rows.
      column: the vocabulary's at which the logits begin.
      columns_left: the number of logits in front of the padding, a number or [rows, 1]; None if there is no padding.
      logits_vmem: [rows, columns].
      scratch: has the rows' numbers, from `spread_rows`.
      store: takes the first of 128 columns of errors, and these errors.
    """
    label = scratch.labels_vmem[rows, :] - column
    lane = lax.broadcasted_iota(jnp.int32, label.shape, 1)
    lse, dlse, dpicked, *dtotal = (scratch.spread_vmem[at, rows, :] for at in range(scratch.spread_vmem.shape[0]))
    seen = jnp.zeros(lane.shape, jnp.float32)
    for group in range(0, logits_vmem.shape[1], LANES):
        logits = soft_capped(logits_vmem[:, group : group + LANES].astype(jnp.float32), soft_cap)
        probabilities = jnp.exp(logits - lse)
        errors = dlse * probabilities + jnp.where(lane + group == label, dpicked, 0.0)
        if dtotal:
            errors = errors + dtotal[0]
        if soft_cap is not None:
            errors = errors * (1 - jnp.square(logits * (1 / soft_cap)))
        if columns_left is not None:
            errors = jnp.where(lane < columns_left - group, errors, 0.0)
        store(group, errors)
        seen = jnp.maximum(seen, probabilities)
    return seen


def add_products(
    schedule: LossSchedule,
    refs: GradientRefs,
    core: Any,
    i: Any,
    j: Any,
    beside: Callable[[Any], list[Array]],
) -> None:
    """Add the products of tile `j` of the vocabulary to the gradients, and move the sums of w's gradient.

    Args:
      beside: takes the number of a piece of the elementwise work, does it, and returns numbers that depend on it and
        are not negative: [rows, 128] each. There are `pieces(schedule)`.
    """
    grid_m, grid_n = schedule.core_grid[1:]
    step = i * grid_n + j
    copies = SumCopies(schedule, refs, core)

    # The slot of the next step is free once the copy of the step two before has left it.
    @pl.when(step >= DW_SLOTS - 1)
    def _() -> None:
        copies.each(step - (DW_SLOTS - 1), "write", "wait")

    if grid_m > 1:

        @pl.when((step + 1 >= grid_n) & (step + 1 < grid_m * grid_n))
        def _() -> None:
            copies.each(step + 1, "read", "start")

    _clear_padding(schedule, refs.inputs.w_vmem, j)
    if grid_m > 1:

        @pl.when(i > 0)
        def _() -> None:
            copies.each(step, "read", "wait")

    _add(schedule, refs, step, i, beside)
    copies.each(step, "write", "start")

    @pl.when(step == grid_m * grid_n - 1)
    def _() -> None:
        for back in range(min(DW_SLOTS - 1, grid_m * grid_n) - 1, -1, -1):
            copies.each(step - back, "write", "wait")


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


def pieces(schedule: LossSchedule) -> int:
    """Return the number of pieces of the elementwise work beside a tile's products."""
    return schedule.depth // _piece_features(schedule)


def _piece_features(schedule: LossSchedule) -> int:
    return largest_divisor(schedule.gradient_part, LANES, _PIECE_FEATURES)


def _add(schedule: LossSchedule, refs: GradientRefs, step: Any, i: Any, beside: Callable[[Any], list[Array]]) -> None:
    """Add a tile's part to both gradients; both products of some of k are one stretch of code, which drains once."""
    size, features_at_once = schedule.gradient_part, _piece_features(schedule)
    sums_vmem = refs.scratch.sums_vmem.at[lax.rem(step, jnp.int32(DW_SLOTS))]
    dw_vmem = (
        None if refs.scratch.dw_vmem is None else refs.scratch.dw_vmem.at[lax.rem(step, jnp.int32(CONVERTED_SLOTS))]
    )

    def part(number: Any) -> None:
        errors, done = refs.scratch.errors_vmem[...], []
        for feature in range(0, size, features_at_once):
            piece = number * (size // features_at_once) + feature // features_at_once
            features = pl.ds(times(piece, features_at_once), features_at_once)
            errors = after_all(errors, done)
            done = beside(piece)
            refs.outputs.dx_vmem[:, features] += dot(errors, refs.inputs.w_vmem[features, :], (1, 1), schedule.spec)
        # w's gradient takes one product: for fewer features the errors would be loaded as weights more often.
        features = pl.ds(times(number, size), size)
        before = jnp.where(i > 0, sums_vmem[features, :], 0.0)
        x = after_all(refs.inputs.x_vmem[:, features], done)
        total = before + dot(x, refs.scratch.errors_vmem[...], (0, 0), schedule.spec)
        sums_vmem[features, :] = total
        if dw_vmem is not None:
            dw_vmem[features, :] = total.astype(dw_vmem.dtype)

    loop(schedule.depth // size, part)
