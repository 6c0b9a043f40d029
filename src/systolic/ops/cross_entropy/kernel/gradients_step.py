"""A step of the gradients' kernel: products of a part of the features, with elementwise work between them.

Errors are computed where matrix units leave the most slots of a bundle free. Where logits are computed again, that is
the product of the logits. Else it is the product of w's gradient where matrix units add up its parts, and the product
of x's gradient where vector units do (with kept logits 2048·4096·128256 on v7x: 8,760 cycles a step, and 9,640 beside
x's gradient; on v6e 9,330, and 9,560 beside w's; simulated).
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.kernels.dots import dot
from systolic.kernels.subtiles import times
from systolic.ops.cross_entropy.kernel.errors import store_errors
from systolic.ops.cross_entropy.kernel.gradient_refs import GradientRefs
from systolic.ops.cross_entropy.kernel.logits import CHUNK_ROWS, after_all, by_rows
from systolic.ops.cross_entropy.kernel.sum_copies import SumCopies
from systolic.ops.cross_entropy.schedule import ROWS, LossSchedule
from systolic.schedule import LANES
from systolic.schedule.sizes import largest_divisor, padded

# Features beside whose products comes one piece of elementwise work: where it is beside the product of w's gradient,
# errors are loaded as weights for each piece; elsewhere a piece fills the columns of a matrix unit.
_PIECE_FEATURES, _UNIT_FEATURES = 512, 256


def gradients_step(
    schedule: LossSchedule, soft_cap: float | None, refs: GradientRefs, copies: SumCopies, slot: Any
) -> None:
    """Compute a part of the products, and some rows of errors, which the next tile's steps multiply.

    Args:
      slot: of the logits that are computed, and of the errors.
    """
    (inputs, outputs, scratch), tiles, spec = refs, schedule.config.tiles, schedule.spec
    errors_vmem, next_errors_vmem = scratch.errors_vmem.at[1 - slot], scratch.errors_vmem.at[slot]

    @pl.when((copies.j < schedule.lag) & (copies.part == 0))
    def _() -> None:
        def clear(rows: Any) -> None:
            errors_vmem[rows, :] = jnp.zeros((rows.size, tiles.tile_n), errors_vmem.dtype)

        by_rows(tiles.tile_m, clear)

    features = pl.ds(times(copies.part, tiles.tile_k), tiles.tile_k)
    x_vmem = inputs.x_vmem if schedule.streams_x else inputs.x_vmem.at[:, features]
    recomputes = scratch.logits_vmem is not None
    logits_vmem = scratch.logits_vmem.at[1 - slot] if recomputes else inputs.kept_vmem
    piece_features = _UNIT_FEATURES if recomputes or not schedule.adds_in_units else _PIECE_FEATURES
    slices = _slices(tiles.tile_k, piece_features)
    # The first slice waits for no errors; without a second one, what comes after it waits for them.
    pieces = max(len(slices) - 1, 1)
    piece_rows = padded(-(-tiles.tile_m // (pieces * schedule.parts)), ROWS)
    chunk_rows = math.gcd(piece_rows, CHUNK_ROWS)

    def beside(piece: int) -> list[Array]:
        """Compute some of the errors."""
        # The last pieces may begin with rows of the piece before.
        first = jnp.minimum((copies.part * pieces + piece) * piece_rows, tiles.tile_m - piece_rows)
        starts = (pl.multiple_of(first + chunk, ROWS) for chunk in range(0, piece_rows, chunk_rows))
        return [_convert(schedule, soft_cap, refs, logits_vmem, next_errors_vmem, row, chunk_rows) for row in starts]

    def add_to_dx(within: slice, done: list[Array]) -> None:
        product = dot(after_all(errors_vmem[...], done), inputs.w_vmem[within, :], (1, 1), spec)
        outputs.dx_vmem.at[:, features][:, within] += product

    def add_to_dw(within: slice, done: list[Array]) -> None:
        total = dot(after_all(x_vmem[:, within], done), errors_vmem[...], (0, 0), spec)
        if scratch.sums_vmem is not None:
            sums = scratch.sums_vmem.at[copies.slot, within]
            if schedule.core_grid[1] > 1:
                total = total + jnp.where(copies.i > 0, sums[...], 0.0)
            sums[...] = total
        if scratch.dw_vmem is not None:
            scratch.dw_vmem[copies.converted_slot, within] = total.astype(scratch.dw_vmem.dtype)

    all_features, done = slice(0, tiles.tile_k), []
    # Where vector units add up parts of a sum, w's gradient comes last: before it cross-lane units transpose x.
    first, last = (add_to_dw, add_to_dx) if schedule.adds_in_units else (add_to_dx, add_to_dw)
    if recomputes:
        work = [[], *map(beside, range(pieces))][: len(slices)]
        _add_to_logits(schedule, x_vmem, inputs.next_w_vmem, scratch.logits_vmem.at[slot], copies.part, slices, work)
        first(all_features, done)
        last(all_features, done)
        return
    for piece, within in enumerate(slices):
        first(within, done)
        done = beside(piece) if piece < pieces else []
    last(all_features, done)


def _slices(size: int, max_length: int) -> list[slice]:
    length = largest_divisor(size, LANES, max_length)
    return [slice(first, first + length) for first in range(0, size, length)]


def _add_to_logits(
    schedule: LossSchedule,
    x_vmem: Any,
    w_vmem: Any,
    sums_vmem: Any,
    part: Any,
    slices: list[slice],
    work: list[list[Array]],
) -> None:
    """Add a product to a tile of logits; each slice of the features comes after numbers that depend on some errors."""
    total = None
    for within, done in zip(slices, work, strict=True):
        product = dot(after_all(x_vmem[:, within], done), w_vmem[within, :], (1, 0), schedule.spec)
        total = product if total is None else total + product
    assert total is not None
    sums_vmem[...] = total + jnp.where(part > 0, sums_vmem[...], 0.0) if schedule.parts > 1 else total


def _convert(
    schedule: LossSchedule,
    soft_cap: float | None,
    refs: GradientRefs,
    logits_vmem: Any,
    errors_vmem: Any,
    row: Any,
    n_rows: int,
) -> Array:
    """Store the errors of rows of a tile of logits; return numbers above zero that depend on all of them."""
    core, i, j = (pl.program_id(axis) for axis in range(3))
    spec, tiles = schedule.spec, schedule.config.tiles
    rows, column = pl.ds(row, n_rows), (j - (schedule.lag - 1)) * tiles.tile_n

    def store(group: int, errors: Array) -> None:
        errors_vmem[rows, group : group + LANES] = errors.astype(errors_vmem.dtype)

    columns_left = spec.n - column if spec.n % tiles.tile_n else None
    if refs.inputs.kept_vmem is not None and spec.m != schedule.rows:
        # Rows of logits that are not there are garbage, by which zeros would be multiplied.
        present = spec.m - (core * schedule.core_grid[1] + i) * tiles.tile_m - row
        columns_left = jnp.where(lax.broadcasted_iota(jnp.int32, (n_rows, 1), 0) < present, spec.n - column, 0)
    return store_errors(soft_cap, rows, column, columns_left, logits_vmem.at[rows, :], refs.scratch, store)
